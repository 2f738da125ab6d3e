"""Scenes on a minibox: steps one after the other, a look at the files of a job that runs, output over many machines."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from spotsurfer_agent.host import steps as stepping
from spotsurfer_agent.ports.engine import WorkloadState as W
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Spec, Step, StepRun
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import JOB, CriuEngine, engine, newest, output, request, stands_still, until

ZERO = {"out": 0, "err": 0}
MOVES = 5
STEPS = [
    Step("setup", ["sh", "-c", "echo from setup; echo kept > file; (sleep 1000; echo late) & exit 0"], protect=False),
    Step("main", ["sh", "-c", "echo main in $SPOTSURFER_STEP; cat file; while [ ! -e go ]; do sleep 0.05; done; exit 3"]),
    Step("finish", ["sh", "-c", "echo finish after $SPOTSURFER_EXIT_CODE"], always=True),
]
NUMBERED = """
import sys, time
n = 0
while True:
    print("line", n, flush=True)
    if n % 10 == 0: print("tenth", n, file=sys.stderr, flush=True)
    n += 1
    time.sleep(0.002)
"""


def ended(e: CriuEngine, step: int) -> tuple[int | None, dict[str, int]]:
    until(lambda: e.status().state is W.EXITED)
    status = e.status()
    assert status.step == step
    assert status.log is not None
    return status.exit_code, status.log


def steps() -> None:
    """Files stay, processes end, output goes on; an engine that was made anew finds which step ended."""
    spec, e = Spec(JOB, [], steps=STEPS), engine()
    e.start(stepping.at(spec, 0))
    code, log = ended(e, 0)
    assert (code, output(e)) == (0, b"from setup\n")
    e = engine()  # another agent process
    e.adopt()
    e.next_step(stepping.at(spec, 1), log)
    until(lambda: output(e).endswith(b"kept\n"))
    assert len(e.pids()) >= 2
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"sleep\x001000" in p.read_bytes()], "setup is over"
    runs = (StepRun("setup", 0, exit_code=0), StepRun("main", 1, dict(log)))
    kept: list[Manifest] = []
    e.save(dataclasses.replace(request(1, final=True, commit=lambda image: not kept.append(image)), steps=runs))
    image = newest(open_store("file:///run/store"))
    assert (image.steps, image.facts["step"], image.log["out"]) == (list(runs), "2: main", len(output(e)))
    e = engine()
    e.restore(image, stepping.at(spec, 1, image.steps))
    assert e.status().step == 1
    Path(e.scratch(), "work/go").touch()
    code, log = ended(e, 1)
    assert code == 3
    e.next_step(stepping.at(spec, 2, [*runs[:1], StepRun("main", 1, exit_code=3)]), log)
    code, log = ended(e, 2)
    assert (code, output(e)) == (0, b"finish after 3\n"), "what was printed on the machine before is in the store"
    assert log["out"] == image.log["out"] + len(b"finish after 3\n")
    e.kill()


def still() -> None:
    """What is read of a job that runs does not change meanwhile, and a save passes by."""
    e = engine()
    e.start(Spec(JOB, ["sh", "-c", "n=0; while :; do n=$((n+1)); echo $n >> grows; sleep 0.01; done"]))
    file = Path(e.scratch(), "work/grows")
    until(lambda: file.exists() and file.stat().st_size > 20)
    with e.still() as kept:
        assert kept.is_still
        there = Path(kept.path, "work/grows")
        before = there.read_bytes()
        e.save(request(1, final=False))
        time.sleep(0.1)
        assert there.read_bytes() == before
        assert len(file.read_bytes()) > len(before)
    assert not Path(kept.path).exists()
    e.kill()


def numbered() -> None:
    """Five machines take it over, and one more loses it: each line once and in order, on both streams."""
    store, e = open_store("file:///run/store"), engine()
    Path(e.scratch(), "work/count.py").write_text(NUMBERED)
    spec = Spec(JOB, ["/usr/bin/python3", "count.py"])
    e.start(spec)
    pieces: dict[str, bytes] = {"out": b"", "err": b""}

    def keep(until_position: dict[str, int]) -> None:
        for stream, end in ((s, until_position[s]) for s in pieces):
            while len(pieces[stream]) < end:
                piece = e.read_log(stream, len(pieces[stream]), end - len(pieces[stream]))
                assert piece, (stream, len(pieces[stream]), end)
                pieces[stream] += piece

    sequence = 0
    for _ in range(MOVES):
        time.sleep(0.4)
        sequence += 1
        e.save(request(sequence, final=True, commit=lambda image: keep(image.log) is None))
        e = engine()
        e.restore(newest(store), spec)
    time.sleep(0.3)
    sequence += 1
    e.save(request(sequence, final=False, commit=lambda image: keep(image.log) is None))
    time.sleep(0.4)
    undone = (e.status().log or ZERO)["out"]
    image = newest(store)
    assert undone > image.log["out"], "there is work to be lost"
    e.kill()  # without a word
    e = engine()
    e.restore(image, spec)
    until(lambda: (e.status().log or ZERO)["out"] > undone)
    e.hold()
    stands_still(e)
    keep(e.status().log or ZERO)
    e.kill()
    for stream, word, step in (("out", "line", 1), ("err", "tenth", 10)):
        lines = pieces[stream].decode().splitlines()
        assert lines == [f"{word} {n}" for n in range(0, len(lines) * step, step)], stream
        assert len(lines) > 500 // step


if __name__ == "__main__":
    {"steps": steps, "still": still, "numbered": numbered}[sys.argv[1]]()
