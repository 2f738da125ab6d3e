"""Runs the parts, writes build/bench/policies.json and the tables of docs/policies.md."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from bench.policies import deadline, roaming
from bench.report import ROOT, Part, write

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
    parts = {name: partial(PARTS[name], options.every) for name in PARTS}
    write(parts, options.only.split(","), JSON, PAGE if options.every == 1 else None)


if __name__ == "__main__":
    main()
