"""Writes what is generated: exit codes in README.md, docs/states.md, tests/web/openapi.json. `make docs` calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

from spotsurfer.model.errors import exit_code_table
from spotsurfer.model.state_machine import states_page
from spotsurfer.web.app import make_app

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"(<!-- exit-codes -->\n).*?(<!-- /exit-codes -->)", re.DOTALL)


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
    page = make_app(cast(Any, None), token=None).openapi()
    (ROOT / "tests" / "web" / "openapi.json").write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
