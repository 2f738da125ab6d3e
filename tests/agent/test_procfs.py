"""What the kernel tells of a process, whatever names its job gives to files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spotsurfer_agent.linux import ptrace, userfaultfd
from spotsurfer_agent.restore import compatibility
from spotsurfer_agent.save import blockers, precopy
from spotsurfer_wire.linux import procfs
from spotsurfer_wire.linux.procfs import mount_lines

# No UTF-8, and all that Python but not the kernel takes for the end of a line.
NAMES = [b"Gr\xf6\xdfe.dat", *(f"one{c}two three.dat".encode() for c in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")]


@contextmanager
def mapped(folder: Path, name: bytes) -> Iterator[str]:
    """A file of this name, mapped by this process."""
    path = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
    with path.open("w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            yield str(path)


@pytest.mark.parametrize(
    "read",
    [
        lambda pid: list(procfs.mappings(procfs.text(pid, "maps"))),
        lambda pid: list(userfaultfd._areas(pid)),
        userfaultfd._refuse_devices,
        ptrace._instruction,
        lambda pid: blockers.findings(blockers.Job([pid], "/nowhere")),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_mapped_file_may_have_any_name(tmp_path: Path, name: bytes, read: Callable[[int], object]) -> None:
    """Such jobs had no live saves."""
    with mapped(tmp_path, name):
        read(os.getpid())


@pytest.mark.parametrize("name", NAMES)
def test_a_mapped_file_is_known_by_its_whole_name(tmp_path: Path, name: bytes) -> None:
    with mapped(tmp_path, name) as path:
        assert path in {m.name for m in procfs.mappings(procfs.text(os.getpid(), "maps"))}
        assert path in compatibility._mapped(os.getpid())


def test_a_file_that_is_called_like_memory_of_the_kernel_is_a_file(tmp_path: Path) -> None:
    with mapped(tmp_path, b"[vdso]") as path:
        vdso = next(m for m in procfs.mappings(procfs.text(os.getpid(), "maps")) if m.name == "[vdso]")
        assert vdso.start <= ptrace._instruction(os.getpid()) < vdso.end, path


def test_a_mount_point_may_have_any_name() -> None:
    text = "".join(f"{n} 1 0:1 / /mnt/{name} rw - ext4 /dev/x rw\n" for n, name in enumerate(("a\u2028b", "c\rd", "e\x1ef")))
    assert [line.point for line in mount_lines(text)] == ["/mnt/a\u2028b", "/mnt/c\rd", "/mnt/e\x1ef"]


@pytest.mark.parametrize("at", ["watch", "areas", "second"])
def test_whatever_is_raised_no_descriptor_stays_open(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A try that failed in an odd way left a userfaultfd and a pidfd behind, each time."""
    monkeypatch.setattr(precopy, "can_watch_writes", lambda: True)
    monkeypatch.setattr(userfaultfd, "_descriptor_in", lambda *_: os.memfd_create("stands for a userfaultfd"))
    monkeypatch.setattr(userfaultfd, "_introduced", lambda _fd: True)
    monkeypatch.setattr(userfaultfd, "_registered", lambda _fd, _start, _end: True)
    monkeypatch.setattr(procfs, "resident_bytes", lambda pid: precopy.WORTH_BYTES if pid else int("this goes wrong"))

    def bad(*_: object) -> None:
        raise ValueError(f"wrong at {at}")

    monkeypatch.setattr(userfaultfd, "_areas", bad if at == "watch" else lambda _pid: [(0, 1 << 20)])
    if at == "areas":
        monkeypatch.setattr(precopy, "Area", bad)
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(ValueError, match="wrong"):
        precopy.Aheads([os.getpid(), 0], None)  # type: ignore[arg-type] -- it comes to no pages
    assert set(Path("/proc/self/fd").iterdir()) == before
