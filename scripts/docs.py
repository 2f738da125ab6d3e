"""Writes what is generated: exit codes in README.md, docs/states.md, tests/web/openapi.json. `make docs` calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from spotsurfer.model.errors import every_kind
from spotsurfer.model.job import HOLDS, WAITS
from spotsurfer.model.state_machine import ATTEMPT, JOB
from spotsurfer.web.app import make_app

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"(<!-- exit-codes -->\n).*?(<!-- /exit-codes -->)", re.DOTALL)


def exit_code_table() -> str:
    """The table of the README, in Markdown: the first paragraph of each docstring."""
    first = {k: " ".join((k.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".") for k in every_kind()}
    rows = [f"| {k.exit_code} | {text[:1].lower()}{text[1:]} |" for k, text in first.items()]
    return "\n".join(["| code | meaning |", "|---:|---|", "| 0 | done |", *rows])


STATES = """# States

Made from `spotsurfer/model/state_machine.py` by `make docs`; the reasons for each edge stand there. A move that is not drawn
is refused.

## Job

{job}

## Attempt: one machine's try at a job

At most one waiter ({waiters}) and one holder ({holders}) per job.
Only a holder may commit and publish.

{attempt}
"""


def states_page() -> str:
    """The whole of docs/states.md."""
    waiters, holders = (", ".join(sorted(states)) for states in (WAITS, HOLDS))
    return STATES.format(job=_diagram(JOB), attempt=_diagram(ATTEMPT), waiters=waiters, holders=holders)


def _diagram(table: Mapping[Any, Mapping[Any, Any]]) -> str:
    """A table as Mermaid draws it; its first state is where all begin."""
    lines = [f"    [*] --> {next(iter(table))}"]
    for state, edges in table.items():
        lines += [f"    {state} --> {target}: {event}" for event, target in edges.items()]
        if not edges:
            lines.append(f"    {state} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def main() -> None:
    """Rewrites them."""
    readme = ROOT / "README.md"
    table = f"\\1{exit_code_table()}\n\\2"
    text, found = SECTION.subn(table, readme.read_text())
    if found != 1:
        raise SystemExit("README.md needs one pair of markers: <!-- exit-codes --> and <!-- /exit-codes -->")
    readme.write_text(text)
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs" / "states.md").write_text(states_page())
    page = make_app(cast(Any, None)).openapi()
    (ROOT / "tests" / "web" / "openapi.json").write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
