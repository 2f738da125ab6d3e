"""`python -m bench.gpu.bring`: a job without a GPU is brought back on ever more processors, to see what a restore waits for.

A job of so much memory is saved once and restored again and again, as a job on a GPU is: with all memory before its first
instruction. `alone`: one process, whose memory every processor brings. `shared`: its child has all of it, too, so that CRIU
brings it by one. Each row has what the pager wrote down, with the time of day. Needs root, the agent's runtime, and two and a
half times as much memory as the job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from spotsurfer_agent.gpu import suspend_resume
from support.engine_kit import BASE, newest, output, request

from bench.gpu import scenes
from bench.gpu.box import Place, played
from bench.gpu.memory import pages

PROGRAM = Path(__file__).parent / "programs/memory.py"
STEPS = 10**6
LINES_SECONDS = 30.0
Row = dict[str, Any]


def main() -> int:
    """Exit code 0: no restore brought a wrong page."""
    options = _parser().parse_args()
    place = Place(options.runtime.resolve(), options.work, options.limit, options.verbose)
    with suspend_resume.huge_pages_everywhere(Path("/run")) if options.huge else contextlib.nullcontext():
        rows = _rows(place, options)
    shutil.rmtree(options.work, ignore_errors=True)
    for r in rows:
        print(f"{r['kind']:8} {r['processors']:3} processors {r['seconds']:7.2f} s {r['gb_s']:6.2f} GB/s, "
              f"{100 * r['huge_share']:3.0f} % huge pages, {r['wrong']} wrong pages")  # fmt: skip
    return int(any(r["wrong"] for r in rows))


def _rows(place: Place, options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for kind in options.kinds.split(","):
        shutil.rmtree(options.work, ignore_errors=True)
        (options.work / "store").mkdir(parents=True)
        processors = [int(x) for x in options.processors.split(",")]
        plan = {"gb": options.gb, "kind": kind, "processors": processors if kind == "alone" else processors[-1:]}
        rows += played(place, kind, "bench.gpu.bring", "inside", json.dumps(plan))["rows"]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1))
    return rows


def inside(plan: Row) -> Row:
    """On its machine: save once, restore once for each number of processors."""
    words = ["/usr/bin/python3", PROGRAM.name, str(plan["gb"]), str(STEPS), *(["shared"] if plan["kind"] == "shared" else [])]
    saving = {"threads": len(os.sched_getaffinity(0)), "compression": "none", "memory_bytes": 0}
    plain = {"environment": {}, "hold": False, "compact": False, "standin": False, "lazy": False}
    m = scenes.Machine({"command": words, **plain, **saving})
    shutil.copy(PROGRAM, Path(m.engine.scratch(), "work"))
    m.engine.start(m.spec)
    m.wait_step(3)
    began = time.monotonic()
    m.save(request(1, final=True))
    scenes.say(f"saved in {time.monotonic() - began:.2f} s")
    m.engine.kill()
    return {"rows": [_restored(m, plan, count) for count in plan["processors"]]}


def _restored(m: scenes.Machine, plan: Row, count: int) -> Row:
    everywhere, image = os.sched_getaffinity(0), newest(m.store)
    os.sched_setaffinity(0, sorted(everywhere)[:count])  # what is started now inherits it
    told, before = len(_told()), pages()
    if why := m.engine.unfit(image):
        raise AssertionError(why)
    m.engine.expect(image)  # as on every machine that waits for its job
    time.sleep(scenes.STAND_BY_SECONDS)
    began = time.monotonic()
    m.engine.restore(image, m.spec)
    seconds = time.monotonic() - began
    os.sched_setaffinity(0, everywhere)
    came = pages().since(before)
    row = {
        "kind": plan["kind"], "gb": plan["gb"], "processors": min(count, len(everywhere)), "seconds": seconds,
        "gb_s": image.image_bytes / 1e9 / seconds, "huge_share": came.told(1)["huge_share"], "wrong": _wrong(m),
        "pager": _told()[told:],
    }  # fmt: skip
    scenes.say(json.dumps(row))
    m.engine.kill()
    return row


def _told() -> list[str]:
    return scenes.pager_says() if (BASE / "job/pager.log").exists() else []


def _wrong(m: scenes.Machine) -> int:
    """Pages that are not what they were, as the job says."""
    Path(m.engine.scratch(), "work", "look").touch()
    end = time.monotonic() + LINES_SECONDS
    while time.monotonic() < end:
        lines = output(m.engine).decode().splitlines()
        found = [int(x.split()[2]) for x in lines if x.count(" ") == 2]
        if found and (last := [n for n in found if n >= 0][-1:]) and not Path(m.engine.scratch(), "work", "look").exists():
            return last[0]
        time.sleep(0.1)
    raise AssertionError("the job did not look at its memory")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.bring", description=__doc__)
    parser.add_argument("--gb", type=float, default=20.0, help="memory of the job (default %(default)s)")
    parser.add_argument("--processors", default="2,4,8,16", help="numbers of them, by comma (default %(default)s)")
    parser.add_argument("--kinds", default="alone,shared", help="(default %(default)s)")
    parser.add_argument("--runtime", type=Path, default=Path("build/runtime/current"), help="the agent's, unpacked")
    parser.add_argument("--work", type=Path, default=Path("/dev/shm/bench-bring"), help="folder of the store")
    parser.add_argument("--out", type=Path, default=Path("build/bench/bring.json"), help="the rows (default %(default)s)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one kind")
    parser.add_argument("--huge", action=argparse.BooleanOptionalAction, default=True, help="transparent huge pages everywhere")
    parser.add_argument("--verbose", action="store_true")
    return parser


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        (scenes.SHARE / "figures.json").write_text(json.dumps(inside(json.loads(sys.argv[2]))))
        sys.exit(0)
    sys.exit(main())
