"""Runs the parts, writes build/bench/size.json and the tables of docs/size.md."""

from __future__ import annotations

import argparse

from bench.report import ROOT, write
from bench.size import inrun, nextrun, poster

PAGE = ROOT / "docs" / "size.md"
JSON = ROOT / "build" / "bench" / "size.json"
PARTS = {"first": inrun.run_first, "history": inrun.run_history, "poster": poster.run, "next": nextrun.run}


def main() -> None:
    """See `--help`."""
    parser = argparse.ArgumentParser(prog="python -m bench.size", description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts with commas between: {', '.join(PARTS)}")
    write(PARTS, parser.parse_args().only.split(","), JSON, PAGE)


if __name__ == "__main__":
    main()
