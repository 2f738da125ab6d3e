"""Runs the parts, writes build/bench/policies.json and the tables of docs/policies.md."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

from bench.policies import deadline, roaming
from bench.policies.part import Part

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "policies.md"
JSON = ROOT / "build" / "bench" / "policies.json"
PARTS: dict[str, Callable[[int], Part]] = {
    "deadline": deadline.run,
    "placement": roaming.run_placement,
    "interval": roaming.run_interval,
}


def main() -> None:
    """See `--help`."""
    parser = argparse.ArgumentParser(prog="python -m bench.policies", description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts with commas between: {', '.join(PARTS)}")
    parser.add_argument("--every", type=int, default=1, help="only each so-many-th window: a quick look, no documentation")
    options = parser.parse_args()
    JSON.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in options.only.split(","):
        part = PARTS[name](options.every)
        known.update(part.keys)
        for marker, text in part.tables.items():
            print(f"\n{marker}\n{text}")
            if options.every == 1:
                PAGE.write_text(between(PAGE.read_text(), marker, text))
        JSON.write_text(json.dumps(known, indent=2) + "\n")
    print(json.dumps(known, indent=2))


def between(page: str, marker: str, text: str) -> str:
    """The page with new text between `<!-- marker -->` and `<!-- /marker -->`; raises ValueError where they are not there."""
    found, count = re.subn(
        rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"docs/policies.md has no markers {marker}")
    return found


if __name__ == "__main__":
    main()
