"""What happens on a minibox to files on shared file systems that a job writes: each function is one scene."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.prepare.inputs.shared_file_systems import Shares
from spotsurfer_wire.manifest import GROWS, KEPT, UNKEPT
from spotsurfer_wire.messages import Share, Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, STORE, W, engine, newest, output, refused, request, turns_pass, until

FAR = Path("/run/store/nfs/out")
PROGRAM = Path(__file__).with_name("shared_job.py")
TURNS = 150


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
    return e.note


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


def is_refused() -> None:
    """What can't be brought back is told at the save, and refused with both values; the rest is not touched."""
    e = begun()
    e.shared.most_bytes = 200_000
    e.save(request(1, final=False))
    assert "not kept" in e.shared.warning, e.shared.warning
    assert "out/count.bin (1 MiB)" in e.shared.warning, e.shared.warning
    turns_pass(e, 10)
    e.kill()
    image = newest(open_store(STORE))
    assert {x.entry.path for x in image.shared if x.way == UNKEPT} == {"out/count.bin", "out/mapped.bin"}
    length = (FAR / "log.txt").stat().st_size
    Shares(BASE).ready(spec(), e.scratch())
    assert "out/count.bin" in refused("refused", lambda: e.restore(image, spec()))
    assert e.status().state is W.ABSENT
    assert (FAR / "log.txt").stat().st_size == length
    (FAR / "log.txt").write_text("0\n")
    then = next(x.entry.size for x in image.shared if x.entry.path == "out/log.txt")
    whole = refused("refused", lambda: e.restore(image, spec()))
    assert "more such files" in whole or f"had {then} bytes and has 2" in whole, whole
    over(e)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
