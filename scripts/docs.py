"""Writes the generated parts of the documentation: exit codes in README.md, docs/states.md. `make docs` calls it."""

from __future__ import annotations

import re
from pathlib import Path

from spotsurfer.model.errors import exit_code_table
from spotsurfer.model.state_machine import states_page

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"(<!-- exit-codes -->\n).*?(<!-- /exit-codes -->)", re.DOTALL)


def main() -> None:
    """Rewrites both."""
    readme = ROOT / "README.md"
    table = f"\\1{exit_code_table()}\n\\2"
    text, found = SECTION.subn(table, readme.read_text())
    if found != 1:
        raise SystemExit("README.md needs one pair of markers: <!-- exit-codes --> and <!-- /exit-codes -->")
    readme.write_text(text)
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs" / "states.md").write_text(states_page())


if __name__ == "__main__":
    main()
