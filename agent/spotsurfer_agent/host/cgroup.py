"""The job's control group: made, frozen, thawed, killed and measured as one; and the systemd scope that outlives the agent.

The group is made below the agent's own, on v1, v2 or their mix. CRIU is told to ignore control groups; every process in this
one belongs to the job. For want of memory the kernel kills one process of it and not the group (`memory.oom.group` stays 0): a
program may do without a child.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux import cgroups, procfs
from spotsurfer_wire.linux.cgroups import UNIFIED, V1_MEMORY, V2_MEMORY, MemoryFiles, places

# ---- The scope, for processes that have to outlive the agent on machines where systemd runs everything.
#
# systemd kills what a unit started along with the unit; a job must live on. So its shim is started by `systemd-run --scope`,
# which makes a scope beside the agent's unit and becomes the shim. The job's control groups lie below the shim's own, and so
# does whatever joins them. Elsewhere (a box, a container, another init) a child of the agent outlives it anyway.

SLICE = "spotsurfer.slice"


def scope_prefix(what: str, process_1: Path = Path("/proc/1/comm")) -> list[str]:
    """Words to put before a command so that it outlives the agent's unit; none if nothing is needed.

    Process 1 is asked, not a folder of systemd's: a box or a container may see that of its host.
    """
    program = shutil.which("systemd-run")
    if program is None or process_1.read_text().strip() != "systemd":
        return []
    name = f"spotsurfer-{what}-{os.urandom(4).hex()}.scope"
    own = ["--property=Delegate=yes", "--property=TasksMax=infinity", f"--slice={SLICE}", f"--unit={name}"]
    return [program, "--scope", "--quiet", "--collect", *own, "--"]


# ---- The control group

CONTROLLERS = ("freezer", "cpuacct", "memory")
SETTLE_SECONDS = 10.0
REMOVE_SECONDS = 2.0


class CgroupError(OSError):
    """A control group can't be made or does not do what it is told; the sentence says which."""


@dataclass(frozen=True, slots=True)
class JobCgroup:
    """`folders`: controller -> the job's folder in the v1 hierarchy; the one named "" is v2."""

    folders: dict[str, str]

    @staticmethod
    def below_own(name: str, process: str = "self") -> JobCgroup:
        """The job's group under the control groups of the calling process, or of another one by its number.

        Nothing is made yet. Raises CgroupError, and FileNotFoundError if there is no such process.
        """
        found = places(Path(f"/proc/{process}/cgroup").read_text(), procfs.text("self", "mountinfo"))
        folders = {c: str(where / name) for c, (where, _) in found.items() if c in CONTROLLERS}
        if UNIFIED in found:
            folders[UNIFIED] = str(cgroups.home(found[UNIFIED][0]) / name)
        if "freezer" in folders and UNIFIED in folders:
            del folders[UNIFIED]  # the mix: the old freezer and meters are the ones that work
        if not folders:
            raise CgroupError(0, "no control group with a freezer is mounted: mount cgroup2 on /sys/fs/cgroup")
        return JobCgroup(folders)

    def create(self) -> None:
        """Make the folders. On v2 the processes of the group above move into its leaf. Idempotent. Raises CgroupError.

        Every user may look into them, whatever the umask: CRIU looks for the freezer with `access`, which asks for the real
        user, and that may be the job's (`launch.lend_identity`).
        """
        for name, folder in self.folders.items():
            try:
                if name == UNIFIED:
                    cgroups.delegate(Path(folder).parent)
                Path(folder).mkdir(exist_ok=True)
                Path(folder).chmod(0o755)
            except OSError as e:
                raise CgroupError(e.errno, f"can't make the control group {folder}: {e.strerror}") from e

    def exists(self) -> bool:
        """Whether it was made and not removed."""
        return Path(self.freezer).is_dir()

    def entries(self) -> list[str]:
        """The files into which a process writes itself to join."""
        return sorted({f"{folder}/cgroup.procs" for folder in self.folders.values()})

    def pids(self) -> list[int]:
        """Processes in it, as numbered in the caller's pid namespace."""
        try:
            return [int(x) for x in Path(self.freezer, "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def ask_to_freeze(self) -> None:
        """Tell everything to stop where it is, and don't wait for it. Raises OSError."""
        if UNIFIED in self.folders:
            self._write("cgroup.freeze", "1")
        else:
            self._write("freezer.state", "FROZEN")

    def freeze(self) -> None:
        """Stop everything where it is. Raises CgroupError when something does not stop within seconds."""
        self.ask_to_freeze()
        if UNIFIED in self.folders:
            self._until(lambda: "frozen 1" in self._read("cgroup.events"))
        else:
            self._until(lambda: self._read("freezer.state").strip() == "FROZEN")

    def thaw(self) -> None:
        """Let everything go on. Idempotent; nothing happens if the group is gone."""
        with contextlib.suppress(FileNotFoundError):
            if UNIFIED in self.folders:
                self._write("cgroup.freeze", "0")
            else:
                self._write("freezer.state", "THAWED")

    def kill(self, timeout_seconds: float = 30.0) -> bool:
        """Kill everything in it, whatever state it is in, without one more instruction of the job. True when it is empty."""
        end = time.monotonic() + timeout_seconds
        while self.pids() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                self.freeze()
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.thaw()
            time.sleep(0.01)
        return not self.pids()

    def remove(self) -> None:
        """Remove the empty group. Idempotent; a group that is not empty stays."""
        end = time.monotonic() + REMOVE_SECONDS
        left = set(self.folders.values())
        while left:
            for folder in sorted(left):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
            left = {folder for folder in left if Path(folder).is_dir()}
            if left and (self.pids() or time.monotonic() > end):
                return
            time.sleep(0.01 if left else 0)  # the dead count until they are reaped

    def cpu_seconds(self, otherwise: float = 0.0) -> float:
        """CPU time used in it since it was made, by processes alive and dead; `otherwise` if it is not there (any more)."""
        with contextlib.suppress(OSError, ValueError, StopIteration):
            if UNIFIED in self.folders:
                return next(int(x.split()[1]) for x in self._read("cpu.stat").splitlines() if x.startswith("usage_usec")) / 1e6
            return int(Path(self.folders["cpuacct"], "cpuacct.usage").read_text()) / 1e9
        return otherwise

    def used_since(self, baseline: float, otherwise: float = 0.0) -> float:
        """CPU time used in it since `cpu_seconds` was `baseline`; `otherwise` if it is not there (any more)."""
        return max(0.0, self.cpu_seconds(baseline + otherwise) - baseline)

    def memory_bytes(self) -> int:
        """Memory of it; without a memory controller, the resident pages of its processes, shared ones split."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            files, folder = self._memory
            return int((folder / files.used).read_text())
        return sum(_resident_bytes(pid) for pid in self.pids())

    def memory_ended(self) -> int | None:
        """The most that it ever held, if the kernel killed a process of it for want of memory; None = it did not."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            files, folder = self._memory
            if files.killed(folder):
                most = folder / files.most  # kernels before 5.19 don't tell it on v2
                return int(most.read_text()) if most.exists() else self.memory_bytes()
        return None

    @property
    def freezer(self) -> str:
        """The folder with the files that freeze and thaw it. Raises CgroupError if there is none."""
        if UNIFIED in self.folders:
            return self.folders[UNIFIED]
        if "freezer" not in self.folders:
            raise CgroupError(0, "no freezer control group is mounted: mount cgroup2 on /sys/fs/cgroup")
        return self.folders["freezer"]

    @property
    def _memory(self) -> tuple[MemoryFiles, Path]:
        """Names of its memory controller's files, and where they are. Raises KeyError if none is at hand."""
        files, controller = (V2_MEMORY, UNIFIED) if UNIFIED in self.folders else (V1_MEMORY, "memory")
        return files, Path(self.folders[controller])

    def _read(self, name: str) -> str:
        return Path(self.freezer, name).read_text()

    def _write(self, name: str, value: str) -> None:
        Path(self.freezer, name).write_text(value)

    def _until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + SETTLE_SECONDS
        while not done():
            if time.monotonic() > end:
                raise CgroupError(0, f"processes in {self.freezer} did not stop within {SETTLE_SECONDS:.0f} s")
            time.sleep(0.002)


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
