"""`licences`: the pools of licences that jobs take."""

from __future__ import annotations

from typing import Any

import typer

from spotsurfer.cli.common import SESSION, examples
from spotsurfer.cli.printing import put, put_json, table, tell

NAMED = 5  # jobs with licences


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(epilog=examples("spotsurfer licences", "spotsurfer licences --json"))(licences)


def licences() -> None:
    """Show pools of licences: how many there are, who has them, who waits."""
    found = SESSION.client().get("/v1/licences")["licences"]
    put_json({"licences": found})
    if not found:
        put("There are no pools of licences: [licences] of the configuration makes some.")
        return
    table(["licences", "for jobs", "in use", "free", "for others", "jobs waiting", "held by"], [_row(p) for p in found])
    for pool in (p for p in found if p["trouble"]):
        tell(f"{pool['kind']}: {pool['trouble']}.")


def _row(p: dict[str, Any]) -> list[str]:
    held = [u["job"] + (f" ({u['count']})" if u["count"] > 1 else "") for u in p["held"]]
    more = [f"and {len(held) - NAMED} more"] if len(held) > NAMED else []
    free, counts = max(p["total"] - p["used"], 0), (p["reserve"], p["waiting_jobs"])
    return [p["kind"], *map(str, (p["total"], p["used"], free, *counts)), ", ".join([*held[:NAMED], *more]) or "-"]
