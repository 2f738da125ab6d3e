"""Memory that is copied while its process runs is what the process has when it stands still, whatever it did meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from spotsurfer_agent.chunks.fingerprints import PRINT
from spotsurfer_agent.chunks.writer import Table
from spotsurfer_agent.criu import images, interrupted_calls
from spotsurfer_agent.criu.images import StreamError
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.linux import userfaultfd
from spotsurfer_agent.save import memory_reserve, precopy
from spotsurfer_agent.save.image_intake import Intake
from spotsurfer_agent.save.memory_reserve import Closed, Reserve
from spotsurfer_agent.save.pages import Composed, PageFile, Pages
from spotsurfer_agent.save.precopy import Aheads, Area
from spotsurfer_wire.linux import syscalls
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.store.port import StoreError
from support.chunks import Store
from support.tree import ROOT

pytestmark = pytest.mark.real
PROGRAM = ROOT / "tests/support/restless.py"
SIZE = 4 << 20
HEAD = b"criucriu" + b"\x02\x00\x00\x00\x08\x01"  # a magic number, and a message that names pages-1.img
MB = 1 << 20


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(precopy, "WORTH_BYTES", 0)


@pytest.fixture
def restless(request):
    process = subprocess.Popen([sys.executable, str(PROGRAM), str(request.param), str(SIZE)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def stand_still(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


def present(pid: int) -> list[tuple[int, int]]:
    """Runs of private pages that are there, as CRIU finds them: addresses and numbers of pages."""
    runs = []
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        for start, end in private(pid):
            pagemap.seek(start // PAGE * 8)
            bits = np.frombuffer(pagemap.read((end - start) // PAGE * 8), dtype=np.uint64) >> np.uint64(62)
            edges = np.flatnonzero(np.diff(np.concatenate(([0], (bits > 0).astype(np.int8), [0])))).reshape(-1, 2)
            runs += [(start + int(a) * PAGE, int(b - a)) for a, b in edges]
    return runs


def private(pid: int) -> list[tuple[int, int]]:
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split()
        if words[1][0] == "r" and words[1][3] == "p" and words[-1] not in ("[vvar]", "[vdso]", "[vvar_vclock]"):
            start, end = (int(x, 16) for x in words[0].split("-"))
            found.append((start, end))
    return found


def criu_says(pid: int, folder: Path) -> int:
    """Write the map of pages as a dump would; returns the bytes of the pages."""
    runs, at = [], 0
    for start, pages in present(pid):
        runs.append(images.PageRun(start, pages, at, False))
        at += pages
    data = images.encoded(HEAD, images.Pagemap("pages-1.img", tuple(runs)))
    (folder / f"pagemap-{pid}.img").write_bytes(data)
    return at * PAGE


def memory_of(pid: int, folder: Path) -> bytes:
    """What the pages of the map hold. Of a process that stands still more may be there by now: the kernel makes huge pages."""
    runs = images.pagemap(next(folder.glob("pagemap-*.img")).read_bytes()).runs
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        parts = []
        for run in runs:
            memory.seek(run.start)
            parts.append(memory.read(run.pages * PAGE))
        return b"".join(parts)


def image_of(pid: int, folder: Path, wait: float = 0.03) -> tuple[bytes, Pages]:
    """The process's memory by way of `Aheads`, and whoever gathered it."""
    store, memory = Store(), Reserve(0, 1 << 30, MB)
    store.table = Table()
    pages = Pages(memory, store, None)
    with contextlib.closing(Aheads([pid], pages)) as aheads:
        assert aheads.has(f"pagemap-{pid}.img")
        aheads.copy()
        time.sleep(wait)
        stand_still(pid)
        size = criu_says(pid, folder)
        aheads.settle(folder, {"pages-1.img": size}, {pid: pid})
    pages.finish()
    (entry,) = pages.entries()
    memory.close()
    return store.read(entry), pages


def test_who_waits_for_room_that_a_failed_store_closed_is_told_of_the_store(tmp_path, monkeypatch):
    memory = Reserve(0, 1 << 30, MB)
    intake = Intake(tmp_path, Pages(memory, Store(), None))
    try:
        intake.ahead([], lambda: contextlib.nullcontext(True), sends=False)

        def closed(*_):
            intake.pages.failure = StoreError("no answer")
            raise Closed

        monkeypatch.setattr(Aheads, "settle", closed)
        with pytest.raises(StoreError, match="no answer"):
            intake.settle([])
    finally:
        intake.close()


@pytest.mark.parametrize("restless", range(8), indirect=True)
def test_the_copy_is_what_the_memory_is(restless, tmp_path):
    found, _ = image_of(restless.pid, tmp_path)
    assert found == memory_of(restless.pid, tmp_path)


@pytest.mark.parametrize("restless", [3], indirect=True)
def test_a_process_that_got_the_number_of_one_that_ended_is_read_whole(restless, tmp_path):
    """After a restore numbers of ended processes come back soon."""
    store, memory = Store(), Reserve(0, 1 << 30, MB)
    store.table = Table()
    pages = Pages(memory, store, None)
    command = [sys.executable, str(PROGRAM), "1", str(SIZE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first, contextlib.closing(Aheads([first.pid], pages)) as aheads:
        aheads.copy()
        first.kill()
        first.wait()
        stand_still(restless.pid)
        size = criu_says(restless.pid, tmp_path)
        (tmp_path / f"pagemap-{restless.pid}.img").rename(tmp_path / f"pagemap-{first.pid}.img")
        aheads.settle(tmp_path, {"pages-1.img": size}, {first.pid: restless.pid})
        expected = memory_of(restless.pid, tmp_path)
    pages.finish()
    (entry,) = pages.entries()
    memory.close()
    assert store.read(entry) == expected


@pytest.mark.parametrize("restless", [1], indirect=True)
def test_a_watch_that_sees_nothing_is_found_out(restless, tmp_path, monkeypatch):
    monkeypatch.setattr(Area, "good", lambda area, _: area.copied)
    found, _ = image_of(restless.pid, tmp_path, 0.3)
    assert found != memory_of(restless.pid, tmp_path)


@pytest.mark.parametrize("restless", [2], indirect=True)
def test_what_was_not_written_is_not_read_again(restless, tmp_path):
    """A process that stands still all the while: next to nothing is left for the freeze."""
    stand_still(restless.pid)
    _, pages = image_of(restless.pid, tmp_path)
    (file,) = pages._files
    assert isinstance(file, Composed)
    assert 0 < file.late.count < file.count / 2


@pytest.mark.parametrize("restless", [3], indirect=True)
def test_the_process_goes_on_and_keeps_no_descriptor(restless, tmp_path):
    for _ in range(3):
        image_of(restless.pid, tmp_path)
        os.kill(restless.pid, signal.SIGCONT)
    time.sleep(0.1)
    assert restless.poll() is None
    links = {str(x.readlink()) for x in Path(f"/proc/{restless.pid}/fd").iterdir()}
    assert not any("userfaultfd" in x for x in links), links


@pytest.mark.parametrize("restless", [4], indirect=True)
def test_a_stream_that_is_short_fails_the_save(restless, tmp_path):
    pages = Pages(Reserve(0, 1 << 30, MB), Store(), None)
    with contextlib.closing(Aheads([restless.pid], pages)) as aheads:
        aheads.copy()
        stand_still(restless.pid)
        size = criu_says(restless.pid, tmp_path)
        with pytest.raises(StreamError, match=f"CRIU sent {size - PAGE} bytes"):
            aheads.settle(tmp_path, {"pages-1.img": size - PAGE}, {restless.pid: restless.pid})
    pages.abandon()


@pytest.mark.parametrize("restless", [5], indirect=True)
def test_a_process_that_can_not_be_stopped_is_let_go(restless, tmp_path):
    """Its control group was frozen just then: nothing is copied ahead, and later it runs on and can be watched."""
    group = JobCgroup.below_own(f"test-{os.getpid()}")
    group.create()
    try:
        for entry in group.entries():
            Path(entry).write_text(str(restless.pid))
        group.freeze()
        pages = Pages(Reserve(0, MB, MB), Store(), None)
        assert not Aheads([restless.pid], pages)._each or Path("/sys/fs/cgroup/cgroup.controllers").exists()
        pages.abandon()
        group.thaw()
        found, _ = image_of(restless.pid, tmp_path)
        assert found == memory_of(restless.pid, tmp_path)
    finally:
        group.thaw()
        restless.kill()
        restless.wait()
        group.remove()


class Stuck(Store):
    """A store that never gives memory back."""

    def add(self, data, done=None):
        return super().add(data, lambda: None)


@pytest.mark.parametrize("restless", [6], indirect=True)
def test_memory_that_does_not_come_back_fails_the_save_while_the_job_runs(restless, monkeypatch):
    monkeypatch.setattr(memory_reserve, "PATIENCE_SECONDS", 0.1)
    memory, store = Reserve(0, MB, MB), Stuck()
    store.table = Table()
    pages = Pages(memory, store, None)
    pages.release()
    with (
        contextlib.closing(Aheads([restless.pid], pages)) as aheads,
        pytest.raises(memory_reserve.Exhausted, match="nothing of the image"),
    ):
        aheads.copy()
    memory.close()
    pages.abandon()


def test_direct_io_is_not_watched(tmp_path):
    """A device may write into memory that it was given before, and no fault tells."""
    with subprocess.Popen(
        [sys.executable, "-c", f"import os; os.open({str(tmp_path / 'f')!r}, os.O_CREAT | os.O_DIRECT); print(); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(userfaultfd.Unwatchable, match="direct I/O"):
            userfaultfd.WriteWatch(process.pid, partial(interrupted_calls.settle, process.pid))
        process.stdin.close()


OPENS_LATER = """
import mmap, os, sys
m = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.write(b"x" * (4 << 20))
print(flush=True)
input()
os.open(sys.argv[1], os.O_CREAT | os.O_DIRECT)
print(flush=True)
input()
"""


def test_nothing_is_watched_from_the_moment_that_direct_io_may_begin(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", OPENS_LATER, str(tmp_path / "f")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        watch = userfaultfd.WriteWatch(process.pid, partial(interrupted_calls.settle, process.pid))
        area = max(watch.areas, key=lambda a: a[1] - a[0])
        assert len(watch.arm(area)) > 0
        watch.check()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        with pytest.raises(userfaultfd.Unwatchable, match="direct I/O"):
            watch.check()
        watch.close()
        process.stdin.close()


@pytest.mark.parametrize("restless", [7], indirect=True)
def test_many_areas_share_a_look_at_the_descriptors_and_nothing_is_copied_before_it(restless, monkeypatch):
    calls, checked = [], userfaultfd._refuse_devices
    monkeypatch.setattr(userfaultfd, "_refuse_devices", lambda pid: calls.append(pid) or checked(pid))
    store = Store()
    store.table = Table()
    pages = Pages(Reserve(0, 1 << 30, MB), store, None)
    with contextlib.closing(Aheads([restless.pid], pages)) as aheads:
        assert len(aheads._each[0]._areas) > 1
        assert aheads.copy().bytes > 0
    assert len(calls) == 2, "one as it is opened, one for all areas"
    monkeypatch.setattr(precopy, "BATCH_BYTES", 1)
    with contextlib.closing(Aheads([restless.pid], pages)) as aheads:
        monkeypatch.setattr(userfaultfd, "_refuse_devices", refuses)
        assert aheads.copy().bytes == 0
    pages.abandon()


def refuses(_pid):
    raise userfaultfd.Unwatchable(0, "direct I/O")


RELEASES = [("6.1.0-41-cloud-amd64", False), ("6.7.12-amd64", False), ("6.8.9", False), ("6.8.10", True), ("7.0", True)]
RELEASES += [("Ubuntu 6.8.0-31.31-generic 6.8.1", False), ("Ubuntu 6.8.0-51.52-generic 6.8.12", True)]


@pytest.mark.parametrize(("release", "can"), RELEASES)
def test_kernels_that_leave_protection_behind_are_not_trusted(monkeypatch, tmp_path, release, can):
    other = os.uname_result(("Linux", "host", release, "#1 SMP", "x86_64"))
    userfaultfd.can_watch_writes.cache_clear()
    syscalls.kernel_version.cache_clear()
    monkeypatch.setattr(os, "uname", lambda: other)
    monkeypatch.setattr(syscalls, "SIGNATURE", tmp_path / "signature")
    if "Ubuntu" in release:
        syscalls.SIGNATURE.write_text(f"{release}\n")
    assert userfaultfd.can_watch_writes() is can
    monkeypatch.undo()
    userfaultfd.can_watch_writes.cache_clear()
    syscalls.kernel_version.cache_clear()


HUGE = """
import mmap, sys
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(14)
m.write(b"x" * (64 << 20))
for line in sys.stdin:
    for at in range(0, 64 << 20, 1 << 20):
        m[at] = 7
    print(flush=True)
"""


def huge_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(x.split()[1]) << 10 for x in lines if x.startswith("AnonHugePages:"))


def test_huge_pages_that_were_split_are_whole_again():
    with subprocess.Popen([sys.executable, "-c", HUGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def writes(to=process.stdin, answer=process.stdout) -> int:
            print(file=to, flush=True)
            answer.readline()
            return huge_bytes(process.pid)

        before = writes()
        assert before > 48 * MB
        watch = userfaultfd.WriteWatch(process.pid, partial(interrupted_calls.settle, process.pid))
        for area in watch.areas:
            watch.arm(area)
        assert writes() < before / 2
        watch.close()
        assert huge_bytes(process.pid) >= before * 0.9
        process.stdin.close()


def test_without_such_a_kernel_nothing_is_copied_ahead(monkeypatch):
    monkeypatch.setattr(precopy, "can_watch_writes", lambda: False)
    pages = Pages(Reserve(0, MB, MB), Store(), None)
    assert not Aheads([os.getpid()], pages)._each
    pages.abandon()


@pytest.mark.parametrize(
    ("early", "source", "want"), [(b"", [-1, -1], b"yz"), (b"ab", [1, -1, 0, -1], b"byaz"), (b"ab", [0], b"a")]
)
def test_pages_of_a_file_come_from_before_the_freeze_or_from_it(early, source, want):
    late = bytes(x for x in want if x not in early)
    first, second = (PageFile(n, len(x), [bytes([c]) * PRINT for c in x]) for n, x in (("a", early), ("b", late)))
    file = Composed("pages-1.img", first, second, np.array(source))
    assert file.all_prints()[::PRINT] == want


def test_a_page_that_was_never_copied_is_no_other_one():
    file = Composed("pages-1.img", PageFile("a", 1, [bytes(PRINT)]), PageFile("b"), np.array([0, 1]))
    with pytest.raises(IndexError):
        file.all_prints()
