"""Writes what is generated: docs/reference, docs/states.md, prices in docs/costs.md, two pictures, tests/web/openapi.json.

`make docs` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import reference_pages
import savings_picture
import terminal_picture
from spotsurfer_providers.catalog.price_tables import billing_rules, list_prices

from spotsurfer.model.errors import every_kind
from spotsurfer.model.job import HOLDS, WAITS
from spotsurfer.model.money import MICROS
from spotsurfer.model.prices import ALWAYS, HOUR_SECONDS, MONTH_SECONDS, PER_THOUSAND, PRICED_QUANTITY
from spotsurfer.model.state_machine import ATTEMPT, JOB, MACHINE
from spotsurfer.web.app import make_app

ROOT = Path(__file__).resolve().parent.parent
CLOUDS = {"aws": "AWS", "gcp": "Google Cloud"}
UNITS = {HOUR_SECONDS: "hour", MONTH_SECONDS: "GiB-month", PER_THOUSAND: "1000"}


def exit_code_table() -> str:
    """The table of docs/reference/exit-codes.md: the first paragraph of each docstring."""
    first = {k: " ".join((k.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".") for k in every_kind()}
    rows = [f"| {k.exit_code} | {text[:1].lower()}{text[1:]} | {_more(k.page)} |" for k, text in first.items()]
    return "\n".join(["| code | meaning | more |", "|---:|---|---|", "| 0 | done | |", *rows])


def _more(page: str) -> str:
    """A link from docs/reference to a page of docs."""
    path = page.removeprefix("docs/")
    return f"[{Path(path.partition('#')[0]).stem}](../{path})" if path else ""


def price_tables() -> str:
    """The tables of docs/costs.md: rules and prices of each cloud, from the providers' catalogue."""
    return "\n\n".join(f"**{name}**\n\n{_rules(cloud)}\n\n{_prices(cloud)}" for cloud, name in CLOUDS.items())


def _rules(cloud: str) -> str:
    free = {True: "spot, free if taken back in it", False: "billed"}
    rows = [
        f"| {r.begins:%Y-%m-%d} | {r.minimum_seconds:g} s | {free[r.reclaimed_first_hour_free]} | {r.source} |"
        for r in billing_rules(cloud)
    ]
    return "\n".join(["| from | at least | the first hour | source |", "|---|---|---|---|", *rows])


def _prices(cloud: str) -> str:
    rows = []
    for p in list_prices(cloud):
        of = " ".join(
            x for x in (p.of.kind, p.of.detail, p.of.market, p.of.instance_type.replace("*", "\\*")) if x != "\\*" and x
        )
        begins = "always" if p.begins == ALWAYS else f"{p.begins:%Y-%m-%d}"
        amount = f"{Decimal(p.usd_micros) / MICROS:f}"
        rows.append(f"| {of} | {amount} | {UNITS[PRICED_QUANTITY[p.of.kind]]} | {begins} | {p.source} |")
    return "\n".join(["| for | USD | per | from | source |", "|---|---:|---|---|---|", *rows])


STATES = """# States

Made from `spotsurfer/model/state_machine.py` by `make docs`; the reasons for each edge stand there. A move that is not drawn
is refused.

## Job

{job}

## Attempt: one machine's try at a job

At most one waiter ({waiters}) and one holder ({holders}) per job.
Only a holder may commit and publish.

{attempt}

## Machine

One that is kept takes several attempts, one after the other or at a time; the others have one.

{machine}
"""


def states_page() -> str:
    """The whole of docs/states.md."""
    waiters, holders = (", ".join(sorted(states)) for states in (WAITS, HOLDS))
    return STATES.format(
        job=_diagram(JOB), attempt=_diagram(ATTEMPT), machine=_diagram(MACHINE), waiters=waiters, holders=holders
    )


def _diagram(table: Mapping[Any, Mapping[Any, Any]]) -> str:
    """A table as Mermaid draws it; its first state is where all begin."""
    lines = [f"    [*] --> {next(iter(table))}"]
    for state, edges in table.items():
        lines += [f"    {state} --> {target}: {event}" for event, target in edges.items()]
        if not edges:
            lines.append(f"    {state} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _fill(name: str, part: str, text: str) -> None:
    """Put `text` between the markers of a part of a page."""
    page, begin, end = ROOT / name, f"<!-- {part} -->\n", f"<!-- /{part} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{name} needs one pair of markers: {begin.strip()} and {end}")
    page.write_text(f"{before}{begin}{text}\n{end}{after}")


def main() -> None:
    """Rewrites them."""
    _fill("docs/reference/exit-codes.md", "exit-codes", exit_code_table())
    _fill("docs/costs.md", "price-tables", price_tables())
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs" / "states.md").write_text(states_page())
    for name, made in reference_pages.PAGES.items():
        (ROOT / name).write_text(made())
    savings_picture.main()
    terminal_picture.main()
    page = make_app(cast(Any, None)).openapi()
    (ROOT / "tests" / "web" / "openapi.json").write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
