"""`submit --dry-run`: what would be launched, at which price, and what not and why. Nothing is uploaded or kept."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from spotsurfer.cli.gpunotes import about_nccl, about_room
from spotsurfer.cli.screen import money, put, put_json, table
from spotsurfer.model.errors import NoCapacity

if TYPE_CHECKING:
    from spotsurfer.cli.client import Client
    from spotsurfer.jobfile import JobRequest

SHOWN = 5


def dry_run(client: Client, request: JobRequest, as_json: bool) -> None:
    """Ask and show."""
    from spotsurfer.cli.wire import spec_body

    body = spec_body(request.spec)
    plan = client.post("/v1/plans", {"spec": body})
    if as_json:
        put_json(plan)
        _launchable(plan)
        return
    choices = plan["choices"]
    if choices and not plan["obstacle"]:
        put(f"Would be launched now: {_name(choices[0])}, {money(choices[0]['usd_micros_per_hour'])} USD an hour.")
    if choices:
        more = f", then {len(choices) - SHOWN} more" if len(choices) > SHOWN else ""
        put(f"\nTried in this order{more}:")
        columns = ["market", "machine", "zone", "cpu", "GiB", "gpu", "usd/h", "list", "interrupted"]
        table(columns, [_row(o) for o in choices[:SHOWN]])
    for note in (about_nccl(body), about_room(body, choices)):
        if note:
            put(f"\n{note}")
    if plan["rejected"]:
        put("\nNot taken:")
        table(["offers", "for example", "why"], _reasons(plan["rejected"]))
    _launchable(plan)


def _launchable(plan: dict[str, Any]) -> None:
    """Raise NoCapacity where nothing would be launched."""
    if plan["obstacle"] or not plan["choices"]:
        why = plan["obstacle"] or "no machine on offer fits the job"
        raise NoCapacity(f"Nothing would be launched now: {why.rstrip('.')}.")


def _name(offer: dict[str, Any]) -> str:
    return f"{offer['market']} {offer['instance_type']} in {offer['zone']}"


BANDS = ("<5 %", "5-10 %", "10-15 %", "15-20 %", ">20 %")  # of machines in a month, as the cloud's advisor says it


def _row(o: dict[str, Any]) -> list[str]:
    band = "" if o["interruption_band"] is None else BANDS[o["interruption_band"]]
    size = [str(o["cpus"]), f"{o['memory_bytes'] / (1 << 30):g}", f"{o['gpus']} {o['gpu']}" if o["gpus"] else ""]
    prices = [money(o["usd_micros_per_hour"]), money(o["list_usd_micros_per_hour"])]
    return [o["market"], o["instance_type"], o["zone"], *size, *prices, band]


def _reasons(rejected: list[dict[str, Any]]) -> list[list[str]]:
    """One line a reason, the most frequent first."""
    count = Counter(r["why"] for r in rejected)
    first = {r["why"]: _name(r["offer"]) for r in reversed(rejected)}
    return [[str(n), first[why], why] for why, n in count.most_common()]
