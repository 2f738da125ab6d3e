"""`python -m bench`: measure, print a table, write JSON. `make bench-checkpoint` calls this."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench import figures
from bench.figures import Figure
from bench.machine import WORK, huge_pages_now, kept_memory, wide_pipes
from bench.order import Order
from bench.parts import PARTS


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: every figure that was asked for met its target; 1: one did not, or could not be measured."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that machines are given back
    wanted = [x for x in options.only.split(",") if x] or list(PARTS)
    if unknown := [x for x in wanted if x not in PARTS]:
        print(f"unknown parts: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if not options.only:
        options.out.unlink(missing_ok=True)  # figures that are not measured any more
    order = Order(options.size_mb << 20, options.dirty_mb << 20, options.dumps, options.work, options.quick)
    with wide_pipes() as pipe_bytes, kept_memory() as kept:
        about = {
            "size_bytes": order.size, "dirty_bytes": order.dirty_bytes, "processors": os.cpu_count(),
            "kernel": platform.release(), "pipe_bytes": pipe_bytes, "memory_kept": kept,
            "huge_pages": huge_pages_now(),
        }  # fmt: skip
        code = _measure(wanted, order, options.out, about)
    if options.page:
        options.page.write_text(figures.page(options.out))
        print(f"written to {options.page}")
    return code


def _measure(wanted: list[str], order: Order, out: Path, about: dict[str, Any]) -> int:
    made: list[Figure] = []
    failed = False
    for number, name in enumerate(wanted, 1):
        print(f"== {number}/{len(wanted)} {name}", flush=True)
        began = time.monotonic()
        try:
            found = list(PARTS[name](order))
        except Exception:  # one part that fails must not lose what the others measured
            traceback.print_exc()
            failed, found = True, []
        made += found
        figures.write(out, found, {**about, "part_seconds": round(time.monotonic() - began, 1)})
    print(figures.table(made))
    print(f"written to {out}")
    return int(failed or any(f.passed is False for f in made))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--size-mb", type=int, default=4096, help="memory of the job (default %(default)s)")
    parser.add_argument(
        "--dirty-mb", type=int, default=10240, help="data on the job's disk at the freeze (default %(default)s)"
    )
    parser.add_argument(
        "--dumps", type=int, default=200, help="live dumps that are looked at for torn pages (default %(default)s)"
    )
    parser.add_argument("--only", default="", help=f"some parts, by comma: {', '.join(PARTS)}")
    parser.add_argument(
        "--quick", action="store_true", help="one round, not three, and huge pages only as they are: for large jobs"
    )
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the store and all files (default %(default)s)")
    parser.add_argument("--page", type=Path, help="also write everything in the report as a page of Markdown")
    parser.add_argument("--out", type=Path, default=WORK / "checkpoint.json", help="the report (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
