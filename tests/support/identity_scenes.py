"""Scenes on a minibox: files keep their inode numbers, and who knows them by these goes on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from spotsurfer_agent.files import identity, tree
from spotsurfer_agent.files.scratch import Scratch
from spotsurfer_agent.save import blockers
from spotsurfer_wire.chunks.reader import Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Entry
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, STORE, CriuEngine, engine, newest, refused, request, until

DATABASE = Path(__file__).with_name("database_job.py")
LISTING = Path(__file__).with_name("listing_job.py")
ROWS, NAMES = 400, 4000


def numbers() -> None:
    """However a tree came to be, it is made again with the numbers that it had; a file that nobody holds may lose its own."""
    s = Scratch(BASE, ("btrfs",))
    s.make()
    work = s.path / "work"
    for number in range(300):
        (work / f"{number:03}").write_bytes(b"")
    for number in range(0, 300, 7):
        (work / f"{number:03}").unlink()
    for name in ("b", "b/d", "a"):
        (work / name).mkdir()
    for number in range(10, 20):
        (work / f"{number:03}").rename(work / "a" / f"{number}") if number % 7 else None
    (work / "b").rename(work / "a" / "b")  # what lies in it is younger than the folder above it
    os.link(work / "001", work / "a/b/d/link")
    os.link(work / "002", work / "000")
    (work / "to").symlink_to("002")
    os.mkfifo(work / "pipe")
    (work / "001").rename(work / "zzz")
    before, entries = seen(s.path), made_of(s.path)
    s.empty()
    tree.build(s.path, entries, [], Reader(open_store("memory:///"), JOB, Keys.derive(b"", JOB)))
    assert seen(s.path) == before, {p: (n, seen(s.path).get(p)) for p, n in before.items() if seen(s.path).get(p) != n}


def seen(root: Path) -> dict[str, int]:
    """Number of each path; the scratch itself has another one on ext4."""
    return {str(p.relative_to(root)): p.lstat().st_ino for p in root.rglob("*")}


def made_of(root: Path) -> list[Entry]:
    return [tree.top(root), *tree.walk(root).entries]


def database(act: str) -> None:
    """One machine's part: a connection in rollback mode stays open from one machine to the next."""
    e, spec = engine(), Spec(JOB, ["/usr/bin/python3", "database_job.py", str(ROWS)])
    if act == "begin":
        for place in ("work", "tmp"):
            for number in range(50):
                (Path(e.scratch()) / place / f"before-{number}").write_bytes(b"")
            for number in range(25):
                (Path(e.scratch()) / place / f"before-{number}").unlink()
        shutil.copy(DATABASE, Path(e.scratch(), "work"))
        e.start(spec)
    else:
        e.restore(newest(open_store(STORE)), spec)
    rows_pass(e, 5)
    if act == "end":
        ended_well(e)
        return
    e.save(request(1 if act == "begin" else 3, final=False))
    rows_pass(e, 5)
    e.save(request(2 if act == "begin" else 4, final=True))
    e.kill()


def lists(act: str) -> None:
    """One machine's part: a folder is listed from one machine to the next; entries went and came before."""
    e, spec = engine(), Spec(JOB, ["/usr/bin/python3", "listing_job.py", str(NAMES)])
    if act == "begin":
        begin_listing(e, spec)
    else:
        e.restore(newest(open_store(STORE)), spec)
    if act == "end":
        allow(e, 10**6)
        ended_well(e)
        return
    number = 1 if act == "begin" else 3
    allow(e, 10 * number)
    e.save(request(number, final=False))
    allow(e, 10 * number + 10)
    e.save(request(number + 1, final=True))
    e.kill()


def waits() -> None:
    """One that takes long is told, and the job runs on to its end; one that ends in time is no matter."""
    e = engine()
    begin_listing(e, Spec(JOB, ["/usr/bin/python3", "listing_job.py", str(NAMES)]))
    said = refused("save", lambda: e.save(request(1, final=False)))
    assert "in the middle of listing /var/lib/spotsurfer/work/many" in said and "btrfs or ext4" in said, said
    allow(e, 10)
    real, looks = identity.under_way, [0]

    def ends(pids: Iterable[int], device: int) -> list[identity.Listing]:
        looks[0] += 1
        if looks[0] == 2:
            Path(e.scratch(), "work/calls").write_text(str(10**6))
            ended_well(e, kill=False)
        return real(pids, device)

    with mock.patch.object(identity, "under_way", ends):
        gone = refused("save", lambda: e.save(request(2, final=False)))
    assert "ended by itself" in gone and looks[0] >= 2, gone
    e.kill()


def begin_listing(e: CriuEngine, spec: Spec) -> None:
    work = Path(e.scratch(), "work")
    shutil.copy(LISTING, work)
    (work / "calls").write_text("5")
    e.start(spec)
    allow(e, 5)


def allow(e: CriuEngine, calls: int) -> None:
    """Let it list on, until it has done that or is at the end."""
    Path(e.scratch(), "work/calls").write_text(str(calls))
    until(lambda: (e.status().log or {}).get("out", 0) >= 4 * calls or e.status().exit_code is not None)


def ended_well(e: CriuEngine, *, kill: bool = True) -> None:
    until(lambda: e.status().exit_code is not None, 60)
    assert e.status().exit_code == 0, e.read_log("err", 0, 4000)
    if kill:
        e.kill()


def told() -> None:
    """By the look at its processes, and by a save that finds it later."""
    e = engine()
    shutil.copy(DATABASE, Path(e.scratch(), "work"))
    e.start(Spec(JOB, ["/usr/bin/python3", "database_job.py", str(ROWS)]))
    rows_pass(e, 5)
    found = blockers.findings(blockers.Job(e.pids(), str(BASE), scratch=e.scratch()))
    assert len(found) == 1 and "rows.db" in found[0] and "xfs" in found[0] and "journal_mode=WAL" in found[0], found
    said = refused("save", lambda: e.save(request(1, final=False)))
    assert "xfs" in said and "journal_mode=WAL" in said, said
    rows_pass(e, 5)
    e.kill()


def rows_pass(e: CriuEngine, count: int) -> None:
    enough = (e.status().log or {}).get("out", 0) + count * 4
    until(lambda: (e.status().log or {}).get("out", 0) > enough or e.status().exit_code is not None)
    assert e.status().exit_code is None, e.read_log("err", 0, 4000)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
