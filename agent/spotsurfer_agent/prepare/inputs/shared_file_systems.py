"""Shared file systems that a job declares: the agent mounts them before its start and before each restore."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.linux.procfs import MountLine
from spotsurfer_wire.messages import Share, Spec

from spotsurfer_agent.files import staging
from spotsurfer_agent.host import root_fs
from spotsurfer_agent.host.root_fs import Mount

FOLDER = "shares"  # in the agent's folder
SEEN, OWN = "shares-seen", "shares-own"  # of a rehearsal: the real ones, for reading, and what it writes over them
PREFIX = "share-"  # of the names of their mounts
BIND = "bind"  # a folder of the machine, for file systems that its image mounts itself
MOUNT_SECONDS = 60.0
LOOK_SECONDS = 10.0  # if the server is gone, every access to its files hangs
REFUSED, PASSING, LASTING = "refused", "store", "input"  # another machine may do; asking again may help; neither
# A program missing in the machine's image is LASTING: all machines boot one image, and each try would cost money.
_SILENT = (PASSING, "its server does not answer: check the address, and that the machine may reach it")
_TURNED_AWAY = (LASTING, "its server refuses this machine: let it in there")
# Text of mount(8) -> kind of trouble, and the second half of the sentence; the first match counts.
SENTENCES: dict[str, tuple[str, str]] = {
    "bad option; for several": (LASTING, "this machine has no program that mounts {type}: use a machine image that has it"),
    "unknown filesystem type": (
        LASTING,
        "this machine's kernel does not know {type}: use a machine image with a kernel that does",
    ),
    "access denied by server": _TURNED_AWAY,
    "ermission denied": _TURNED_AWAY,
    "timed out": _SILENT,
    "onnection refused": _SILENT,
    "o route to host": _SILENT,
    "etwork is unreachable": _SILENT,
    "resolve": (LASTING, "its server's name is unknown: check the address"),
    "No such file or directory": (LASTING, "its server has no such folder: check the source"),
    "does not exist": (LASTING, "it is not there: check the source"),
}


class ShareTrouble(staging.FilesError):
    """A declared file system can't be used. One sentence for the user."""

    def __init__(self, share: Share, why: str, kind: str = LASTING) -> None:
        super().__init__(kind, f"mount {share.name} ({share.type} {share.source}) can't be used: {why}")


@dataclass
class Shares:
    """The shared file systems of one agent's folder. `mount` is the mount program."""

    base: Path
    mount: str = "mount"

    def ready(self, spec: Spec, scratch: str) -> None:
        """Mount all of them as declared, and check that each answers. Raises ShareTrouble. Idempotent."""
        for share in spec.shares:
            at = self.base / FOLDER / share.name
            if spec.rehearses and not share.read_only:
                self._apart(share, at)
            elif not self._is_there(share, at):
                self._fresh(share, at)
            self._answers(share, at)
            self._point(share, spec, scratch)

    def _apart(self, share: Share, at: Path) -> None:
        """For a rehearsal: mounted for reading, and what the copy of the job writes stays on this machine."""
        seen, own = self.base / SEEN / share.name, self.base / OWN / share.name
        if str(at) in _lines():
            return
        self._fresh(replace(share, read_only=True), seen)
        try:
            if share.type == BIND:
                syscalls.mount("", str(seen), flags=syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY)
            for folder in (own / "upper", own / "work", at):
                folder.mkdir(parents=True, exist_ok=True)
            # The numbers of files stay those of the real ones: by these they are known again.
            data = f"lowerdir={seen},upperdir={own / 'upper'},workdir={own / 'work'},xino=off"
            syscalls.mount("overlay", str(at), "overlay", data=data)
        except OSError as e:
            raise ShareTrouble(share, f"this machine can't rehearse with it without writing there ({e})", REFUSED) from e

    def drop(self) -> None:
        """Unmount all of them, also those of an earlier agent. The job does not run."""
        for folder in (FOLDER, SEEN):
            for at in sorted((self.base / folder).glob("*")):
                with contextlib.suppress(OSError):  # what can't be unmounted now goes with the machine
                    self._leave(at)
                    at.rmdir()
        shutil.rmtree(self.base / OWN, ignore_errors=True)

    def _is_there(self, share: Share, at: Path) -> bool:
        line = _lines().get(str(at))
        return line is not None and (share.type == BIND or line.kind.rstrip("4") == share.type.rstrip("4"))

    def _fresh(self, share: Share, at: Path) -> None:
        try:
            self._leave(at)
            at.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ShareTrouble(share, f"{at} can't be used ({e.strerror})", REFUSED) from e
        self._mount(share, at)

    def _mount(self, share: Share, at: Path) -> None:
        if share.type == BIND:
            if not Path(share.source).is_dir():
                raise ShareTrouble(share, "this machine has no such folder: use a machine image that mounts it")
            argv = [self.mount, "--bind", share.source, str(at)]
        else:
            options = ",".join(x for x in (share.options, "ro" if share.read_only else "rw") if x)
            argv = [self.mount, "-t", share.type, "-o", options, share.source, str(at)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=MOUNT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise ShareTrouble(share, _SILENT[1], PASSING) from None
        except OSError as e:
            raise ShareTrouble(share, f"{self.mount} does not run here ({e.strerror})") from e
        if done.returncode:
            raise _trouble(share, done.stderr)

    def _answers(self, share: Share, at: Path) -> None:
        """Check in a separate process that it answers: our own process must not hang in the kernel."""
        try:
            subprocess.run(["stat", "-f", str(at)], capture_output=True, timeout=LOOK_SECONDS, check=True)
        except subprocess.TimeoutExpired:
            raise ShareTrouble(share, "its server does not answer any more", PASSING) from None
        except (OSError, subprocess.CalledProcessError) as e:
            raise ShareTrouble(share, f"it can't be looked at ({e})") from e

    def _point(self, share: Share, spec: Spec, scratch: str) -> None:
        """The mount point in the job: made in the scratch; elsewhere the root must have it, or be writable."""
        path = Path(target(share, spec, str(self.base)))
        with contextlib.suppress(ValueError):
            path = Path(scratch) / path.relative_to(self.base)
        if spec.image and not path.is_relative_to(scratch):
            return  # made when the image was unpacked
        try:
            root_fs.make_folder(path)
        except OSError as e:
            raise ShareTrouble(
                share, f"the folder {path} can't be made on this machine ({e.strerror}): say a target below the job's folder"
            ) from e

    def _leave(self, at: Path) -> None:
        while str(at) in _lines():
            syscalls.umount(str(at))


def target(share: Share, spec: Spec, base: str) -> str:
    """The job's path of it: absolute, or below the job's folder."""
    if share.target.startswith("/"):
        return share.target
    folder = "" if spec.folder in ("", ".") else f"/{staging.safe(spec.folder, 'input')}"
    return f"{base}/{staging.WORK}{folder}/{staging.safe(share.target, 'input')}"


def mounts(spec: Spec, base: str) -> list[Mount]:
    """The mounts for the job's shared file systems."""
    return [Mount(f"{PREFIX}{s.name}", f"{base}/{FOLDER}/{s.name}", target(s, spec, base), s.read_only) for s in spec.shares]


def _lines() -> dict[str, MountLine]:
    """Mount lines by mount point; the last one is the visible one."""
    return {x.point: x for x in procfs.mount_lines(procfs.text("self", "mountinfo"))}


def _trouble(share: Share, said: str) -> ShareTrouble:
    line = " ".join(said.split())
    for words, (kind, sentence) in SENTENCES.items():
        if words in line:
            return ShareTrouble(share, sentence.format(type=share.type), kind)
    return ShareTrouble(share, line or "mount gave no reason")


def folders(spec: Spec, base: str) -> tuple[str, ...]:
    """The job's paths of its shared file systems, each with a final slash."""
    return tuple(target(s, spec, base).rstrip("/") + "/" for s in spec.shares)


def written(mounts: Iterable[Mount]) -> list[str]:
    """The mounts of a job's writable shared file systems."""
    return [m.target for m in mounts if m.name.startswith(PREFIX) and not m.read_only]


def name_of(mount: Mount) -> str:
    """The name of the shared file system that it shows."""
    return mount.name.removeprefix(PREFIX)
