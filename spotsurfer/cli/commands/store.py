"""The store as a whole: `store check`, `store stats`, `store gc`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spotsurfer.cli import follow
from spotsurfer.cli.common import SESSION, examples
from spotsurfer.cli.printing import put, put_json, table
from spotsurfer.common.units import counted, size
from spotsurfer.model.errors import StoreDamaged

JobOption = Annotated[str | None, typer.Argument(metavar="JOB", help="One job; else all.", show_default=False)]


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    store = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Look after the store: check, stats, gc.",
        epilog=examples("spotsurfer store check", "spotsurfer store stats", "spotsurfer store gc --dry-run"),
    )
    store.command(epilog=examples("spotsurfer store check", "spotsurfer store check assembly-3f9a1c --read"))(check)
    store.command(epilog=examples("spotsurfer store stats", "spotsurfer store stats --json"))(stats)
    store.command(epilog=examples("spotsurfer store gc --dry-run", "spotsurfer store gc"))(gc)
    app.add_typer(store, name="store")


def check(
    job: JobOption = None,
    read: Annotated[bool, typer.Option("--read", help="Read and verify every byte, not only names and sizes.")] = False,
) -> None:
    """Look whether everything is there that checkpoints need."""
    found = _work("check", {"job": job, "read": read})
    damage: list[dict[str, Any]] = found["damage"]
    put_json(found)
    for d in damage:
        put(f"{d['job']} {d['checkpoint']}: {d['what']}")
    verified = f", {size(found['bytes'])} verified" if read else ""
    things = f"{counted(found['jobs'], 'job')}, {counted(found['checkpoints'], 'checkpoint')}"
    put(f"{things}, {found['objects']} chunks and packs{verified}.")
    if damage:
        hurt = len({(d["job"], d["checkpoint"]) for d in damage})
        faults = f"{counted(len(damage), 'fault')} in {counted(hurt, 'checkpoint')}"
        raise StoreDamaged(f"{faults}: jobs go on from the newest that is whole, or `resume --from` one.")


def stats(job: JobOption = None) -> None:
    """Say what takes how much room."""
    found = _work("stats", {"job": job})
    put_json(found)
    columns = ["job", "stored", "chunks", "results", "output", "inputs", "checkpoints", "images", "dedup", "compression"]
    table(columns, [_room(x["job"], x) for x in found["jobs"]] + [_room("all", found["total"])])


def _room(name: str, x: dict[str, Any]) -> list[str]:
    kinds = [size(x["kinds"].get(k, 0)) for k in ("chunks", "results", "output", "inputs")]
    images = [str(x["checkpoints"]), size(x["image_bytes"])]
    return [name, size(x["stored_bytes"]), *kinds, *images, _ratio(x["dedup_ratio"]), _ratio(x["compression_ratio"])]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def gc(
    job: JobOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, remove nothing.")] = False,
) -> None:
    """Drop checkpoints by the rules of retention, and chunks that none needs: these go once `[retention] wait` is over.

    The controller does so by itself, too.
    """
    found = _work("gc", {"job": job, "dry_run": dry_run})
    put_json(found)
    for step in found["jobs"]:
        for line in _said(step, dry_run):
            put(f"{step['job']}: {line}")
    if not any(_said(s, dry_run) for s in found["jobs"]):
        put("Nothing to remove.")


def _said(step: dict[str, Any], dry_run: bool) -> list[str]:
    why = {v["id"]: v["why"] for v in step["verdicts"]}
    verb = "would be dropped" if dry_run else "dropped"
    lines = [f"checkpoint {c} {verb}: {why[c]}" for c in step["dropped"]]
    if step["condemned"]:
        what = (
            "would be removed" if dry_run else "are condemned: they go when their time is over, if nothing needs them by then"
        )
        lines.append(f"{step['condemned']} chunks ({size(step['condemned_bytes'])}) {what}")
    if step["deleted"]:
        lines.append(f"{counted(step['deleted'], 'chunk')} removed")
    if step["waits"] and not step["condemned"]:
        lines.append(f"waits: {step['waits']}")
    return lines


def _work(what: str, body: dict[str, object]) -> dict[str, Any]:
    return follow.follow(SESSION.client(), f"/v1/store/{what}", body)
