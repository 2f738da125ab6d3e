"""What happens on a minibox to files on shared file systems that a job writes: each function is one scene."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.prepare.inputs.shared_file_systems import Shares
from spotsurfer_wire.manifest import GROWS, KEPT, UNKEPT
from spotsurfer_wire.messages import Share, Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, STORE, W, engine, newest, output, refused, request, turns_pass, until
from support.patience import FACTOR

FAR = Path("/run/store/nfs/out")
PROGRAM = Path(__file__).with_name("shared_job.py")
TURNS = 400
STILL_SECONDS = 1.0  # longer than without files on shared file systems; 0.5 s on two busy processors


def spec(**changes: object) -> Spec:
    shares = [Share("out", "bind", str(FAR), "out", read_only=False)]
    return Spec(JOB, ["/usr/bin/python3", "shared_job.py", str(TURNS)], shares=shares, **changes)  # type: ignore[arg-type]


def begun() -> JobEngine:
    FAR.mkdir(parents=True, exist_ok=True)
    e = engine(open_store(STORE))
    Shares(BASE).ready(spec(), e.scratch())
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))
    e.start(spec())
    turns_pass(e, 10)
    return e


def lost_after_a_save(e: JobEngine) -> None:
    e.save(request(1, final=False))
    turns_pass(e, 10)
    e.kill()


def back(e: JobEngine) -> str:
    Shares(BASE).ready(spec(), e.scratch())
    e.restore(newest(open_store(STORE)), spec())
    return e.shared().brought_back


def ends_well(e: JobEngine) -> None:
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert e.status().exit_code == 0, output(e, "err")
    lines = [str(i) for i in range(TURNS)]
    for name in ("log.txt", "table.txt"):
        assert (FAR / name).read_text().split() == lines, name
    for name in ("count.bin", "mapped.bin"):
        assert int.from_bytes((FAR / name).read_bytes()[4096:4104], "little") == TURNS, name
    over(e)


def over(e: JobEngine) -> None:
    e.kill()
    Shares(BASE).drop()


def comes_back() -> None:
    """A loss without notice: what was appended is cut, what was rewritten is as it was, what vanished is there again."""
    e = begun()
    (FAR / "later.txt").write_text("not the job's")
    lost_after_a_save(e)
    ways = {x.entry.path: x.way for x in newest(open_store(STORE)).shared}
    expected = {"log.txt": GROWS, "table.txt": GROWS, "count.bin": KEPT, "mapped.bin": KEPT, "quiet.bin": KEPT}
    assert ways == {f"out/{name}": way for name, way in expected.items()}
    (FAR / "count.bin").rename(FAR / "renamed.bin")
    note = back(e)
    assert "2 cut to their length (out/log.txt, out/table.txt)" in note, note
    assert "1 given their content again (out/mapped.bin)" in note, note
    assert "1 made anew (out/count.bin)" in note, note
    assert "quiet" not in note, note
    assert (FAR / "later.txt").read_text() == "not the job's"
    ends_well(e)


def unchanged_ones_cost_nothing() -> None:
    """What did not change since the save before is not sent again, and a final save needs nothing brought back."""
    e = begun()
    Path(FAR, "quiet.bin").write_bytes(os.urandom(30 << 20))
    e.save(request(1, final=False))
    image = newest(open_store(STORE))
    assert sum(x.entry.extents.bytes for x in image.shared) > 30 << 20
    assert e.save(request(2, final=False, base=image.id)).new_bytes < 20 << 20
    turns_pass(e, 3)
    e.save(request(3, final=True, base="000001-000002"))
    e.kill()
    assert "brought back" not in back(e)
    ends_well(e)


def rehearses() -> None:
    """A copy of the job comes to life on the real files, and nothing of them changes, whatever it writes."""
    e = begun()
    lost_after_a_save(e)
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in FAR.iterdir()}
    copy = spec(rehearses="j0")
    Shares(BASE).drop()
    Shares(BASE).ready(copy, e.scratch())
    e.restore(newest(open_store(STORE)), copy)
    told = e.shared().brought_back
    assert "2 cut to their length" in told, told
    assert "2 given their content again" in told, told
    turns_pass(e, 5)
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in FAR.iterdir()} == before
    with pytest.raises(OSError, match="Read-only"):
        (BASE / "shares-seen/out/log.txt").write_text("x")
    over(e)
    assert "out" not in [p.name for p in (BASE / "shares-seen").iterdir()]
    assert str(BASE / "shares") not in Path("/proc/self/mountinfo").read_text()


def comes_back_from_the_next_machine() -> None:
    """The job stays frozen behind its final save; another machine went on with it, failed, and it goes on here."""
    e = begun()
    facts = e.save(replace(request(1, final=True), keep=True))
    assert e.status().pending_final == facts.checkpoint
    with (FAR / "log.txt").open("a") as f:
        f.write("of the other machine\n")
    (FAR / "count.bin").write_bytes(b"of the other machine")
    e.bring_back(newest(open_store(STORE)))
    e.settle(False)
    ends_well(e)


def stands_still_for() -> None:
    """The pause of a save with 100 files that grow and 20 of 16 MiB that are rewritten."""
    FAR.mkdir(parents=True, exist_ok=True)
    lines = [
        "import os, sys, time",
        "grow = [open(f'out/g{i}', 'a', buffering=1) for i in range(100 * int(sys.argv[1]))]",
        "rest = [os.open(f'out/r{i}', os.O_RDWR | os.O_CREAT) for i in range(20 * int(sys.argv[1]))]",
        "blocks = [os.urandom(1 << 20) for _ in range(16)]",
        "for fd in rest:",
        "    for at in range(16): os.pwrite(fd, blocks[at], at << 20)",
        "turn = 0",
        "while True:",
        "    for f in grow: f.write('line\\n')",
        "    for fd in rest: os.pwrite(fd, turn.to_bytes(8, 'little'), (turn % 16) << 20)",
        "    print('turn', turn, flush=True)",
        "    turn += 1",
        "    time.sleep(0.05)",
    ]
    e, found = engine(open_store(STORE)), dict[int, list[tuple[float, int]]]()
    for number, times in enumerate((0, 1)):
        Shares(BASE).ready(spec(), e.scratch())
        Path(e.scratch(), "work/many.py").write_text("\n".join(lines))
        e.start(replace(spec(), command=["/usr/bin/python3", "many.py", str(times)]))
        turns_pass(e, 10)
        base = None
        for turn in range(3):
            saved = e.save(request(1 + turn + 10 * number, final=False, base=base))
            base = saved.checkpoint
            found.setdefault(times, []).append((round(saved.frozen_seconds, 3), saved.new_bytes >> 20))
            turns_pass(e, 5)
        e.kill()
    print(found)
    Shares(BASE).drop()
    assert min(s for s, _ in found[1]) - min(s for s, _ in found[0]) < STILL_SECONDS * FACTOR, found


def is_refused() -> None:
    """What can't be brought back is told at the save, and refused with both values; the rest is not touched."""
    e = begun()
    e.keeps.most_bytes = 200_000
    e.save(request(1, final=False))
    assert "not kept" in e.keeps.warning, e.keeps.warning
    assert "out/count.bin (1 MiB)" in e.keeps.warning, e.keeps.warning
    turns_pass(e, 10)
    e.kill()
    image = newest(open_store(STORE))
    assert {x.entry.path for x in image.shared if x.way == UNKEPT} == {"out/count.bin", "out/mapped.bin"}
    length = (FAR / "log.txt").stat().st_size
    Shares(BASE).ready(spec(), e.scratch())
    assert "out/count.bin" in refused("input", lambda: e.restore(image, spec()))
    assert e.status().state is W.ABSENT
    assert (FAR / "log.txt").stat().st_size == length
    e.keeps.most_bytes = 1 << 30
    grown = replace(image, epoch=0, shared=[x for x in image.shared if x.way == GROWS])
    assert "this is a copy of" in refused("input", lambda: e.restore(grown, spec()))
    assert (FAR / "log.txt").stat().st_size == length, "the other job may need it"
    (FAR / "log.txt").write_text("0\n")
    then = next(x.entry.size for x in image.shared if x.entry.path == "out/log.txt")
    whole = refused("input", lambda: e.restore(image, spec()))
    assert "more such files" in whole or f"had {then} bytes and has 2" in whole, whole
    over(e)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
