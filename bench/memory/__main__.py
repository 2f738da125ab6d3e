"""`make bench-memory`: runs the measurements, writes build/bench/memory.json and the table of docs/memory.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.report import ROOT, between, table

PARTS = ("agent", "controller", "commands")  # a module of this package each: its `main` prints one JSON object
JSON, PAGE = ROOT / "build/bench/memory.json", ROOT / "docs/memory.md"
BEFORE = ROOT / "bench/results/memory-before.json"  # the same, of commit a7cc201: before memory was looked at
MB = 1e6
Row = tuple[str, str]


def main() -> None:
    """See `--help`."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="parts with commas between (default %(default)s)")
    parser.add_argument("--out", type=Path, default=JSON, help="the figures (default %(default)s)")
    parser.add_argument(
        "--json", action="store_true", help="print the figures instead of the table; the page stays as it is, as with --only"
    )
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(","):
        print(f"== {name}", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, "-m", f"bench.memory.{name}"], stdout=subprocess.PIPE, check=True)
        found[name] = json.loads(done.stdout)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.json:
        print(json.dumps(found, indent=1))
        return
    text = compared(json.loads(BEFORE.read_text()), found)
    print(text)
    if options.only == parser.get_default("only"):  # one machine, one run: else the table would mix several
        PAGE.write_text(between(PAGE.read_text(), "memory", text))


def compared(before: dict[str, Any], now: dict[str, Any]) -> str:
    """A table of all that was measured now, beside what it was."""
    old = {name: dict(rows(name, found)) for name, found in before.items()}
    lines = [(what, old.get(name, {}).get(what, "-"), value) for name in now for what, value in rows(name, now[name])]
    return table(["what", "before", "now"], lines)


def rows(part: str, found: dict[str, Any]) -> Iterator[Row]:
    """What the table says of one part: a label and a figure for people."""
    if part == "commands":
        yield from ((f"`{name}`: wall time", f"{1000 * t['median']:.0f} ms") for name, t in found["commands"].items())
    elif part == "controller":
        yield from ((f"controller, {phase}", _mb(m["resident"])) for phase, m in found["phases"].items())
    else:
        for phase, told in found["phases"].items():
            yield from _of_agent(phase, told)


def _of_agent(phase: str, told: dict[str, Any]) -> Iterator[Row]:
    processes = told["processes"]
    if "pss_own" not in told:
        yield from ((f"{kind}, {phase}", _mb(m["rss"])) for kind, m in processes.items())
        yield f"all of these together (PSS), {phase}", _mb(told["pss"])
        return
    yield f"agent, {phase}: at most", _mb(processes["agent"]["rss"])
    yield f"agent, {phase}: at most, without memory for the image", _mb(processes["agent"]["own"])
    if "pager" in processes:
        yield f"pager, {phase}: at most, with chunks on their way", _mb(processes["pager"]["rss"])


def _mb(size: float) -> str:
    return f"{size / MB:.0f} MB"


if __name__ == "__main__":
    main()
