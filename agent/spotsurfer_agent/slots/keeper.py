"""Keeps a machine for one job after the other: each has a slot of its own, and nothing of it is left when it is over.

A slot is a small machine: a pid namespace, a network of its own, a mount namespace in which the slot's folder lies over the
agent's, and control groups. Process 1 in it is the respawner of the slot's agent. When that ends, the kernel kills what is left
in the slot, and its mounts go with the namespace. The keeper removes the rest. If it can't, the machine is ended.

The first slot's configuration comes with user-data. For each later one an agent waits that has started already, and fetches it
from the store (`slots.orders`). The keeper lives as long as the machine and imports next to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotsurfer_wire import json_codec
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.linux import cgroups, memory, procfs, syscalls
from spotsurfer_wire.messages import AgentConfig
from spotsurfer_wire.oom_freeze_levels import shares

log = logging.getLogger(__name__)

CONFIG, MACHINE, REPORTED = "agent.json", "machine.json", "reported"  # in a slot's folder
SLOTS, RUNTIME = "slots", "runtime"  # in the machine's
CONTROLLERS = ("freezer", "cpuacct", "memory", cgroups.UNIFIED)  # of which a slot has groups of its own
LOOK_SECONDS = 0.2
FAILURES_MAX = 5  # of an agent that only waits, in a row
REMOVE_SECONDS = 5.0
SUBVOLUME_INODE, SET_FLAGS = 256, 0x4008941A  # BTRFS_IOC_SUBVOL_SETFLAGS


def of_machine(config: AgentConfig) -> AgentConfig:
    """What is left of a configuration when everything of its job is taken out."""
    blank = {"job": "", "attempt": 0, "key": "", "lineage": "", "access_secret": "", "voucher": "", "input_options": {}}
    return replace(config, store_options=config.machine_options, **blank)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that was begun: its process outside, and its folder."""

    number: int
    pid: int
    folder: Path

    @property
    def taken(self) -> bool:
        """Whether an order came for it."""
        return (self.folder / CONFIG).exists()

    @property
    def memory_bytes(self) -> int:
        """What its job asked for; 0 if its order can't be read, of which its agent tells."""
        try:
            return json_codec.decode(AgentConfig, (self.folder / CONFIG).read_bytes()).memory_bytes
        except (OSError, ProtocolError):
            return 0


@dataclass(frozen=True, slots=True)
class MachineWays:
    """What differs between machines: how one is ended, and how a process moves into the network of a slot."""

    power_off: Callable[[], None]
    enter_network: Callable[[int], None]


class Keeper:
    """One slot after the other; as soon as one is taken, the next one waits."""

    def __init__(self, base: Path, config: AgentConfig, command: Sequence[str], machine: MachineWays) -> None:
        """`command`: what runs as process 1 of a slot, with its number behind it."""
        self._base, self._config, self._command, self._machine = base, config, list(command), machine
        self._slots: dict[int, Slot] = {}
        self._next, self._failures, self._leaving = 0, 0, False
        self._memory, self._divided = memory.whole_bytes(), list[Slot]()

    def leave(self) -> None:
        """The machine shuts down: end the slots' agents as for a replacement, and begin no other slot."""
        self._leaving = True
        for slot in self._slots.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(slot.pid, signal.SIGTERM)

    def run(self) -> int:
        """Until the machine is ended; returns an exit code."""
        self._first()
        while self._slots or not self._leaving:
            try:
                self._look()
            except OSError as e:
                log.error("what a job left can't be removed, or no slot can be made: the machine is powered off: %s", e)
                self._machine.power_off()
                return 1
            time.sleep(LOOK_SECONDS)
        return 0

    def _first(self) -> None:
        """The first slot has the configuration of user-data; what stays of that outside is nothing of a job."""
        (self._base / SLOTS).mkdir(exist_ok=True)
        (self._base / SLOTS).chmod(0o755)
        if self._config.job:
            self._begin(0, self._config)
            (self._base / CONFIG).with_suffix(".new").write_bytes(json_codec.encode(of_machine(self._config)))
            (self._base / CONFIG).with_suffix(".new").replace(self._base / CONFIG)
        else:
            known = [int(p.name) for p in (self._base / SLOTS).iterdir() if p.name.isdigit()]
            self._begin(max(known, default=-1) + 1)
        self._next = max(self._slots) + 1

    def _look(self) -> None:
        for slot in list(self._slots.values()):
            ended, status = os.waitpid(slot.pid, os.WNOHANG)
            if ended:
                self._end(slot, void=status == 0)
        if any((s.folder / REPORTED).exists() for s in self._slots.values()):
            (self._base / REPORTED).touch()
        self._divide_memory()
        if not self._leaving and all(s.taken for s in self._slots.values()):
            self._begin(self._next)
            self._next += 1

    def _divide_memory(self) -> None:
        """Those that are there divide all of the memory: tell each agent its job's part. Raises OSError."""
        there = [slot for slot in self._slots.values() if slot.taken]
        if there == self._divided:
            return
        self._divided = there
        for slot, part in zip(there, shares(self._memory, [slot.memory_bytes for slot in there]), strict=True) if there else ():
            new = (slot.folder / memory.PART).with_suffix(".new")
            new.write_text(str(part))
            new.replace(slot.folder / memory.PART)

    def _end(self, slot: Slot, *, void: bool) -> None:
        """Its processes are dead; `void`: nothing more comes for it. Raises OSError if something of it stays."""
        del self._slots[slot.number]
        done = slot.taken or void
        clear(slot.folder)
        remove_groups(groups_of(slot.number))
        self._failures = 0 if done else self._failures + 1
        if self._failures > FAILURES_MAX:
            raise OSError(0, "no agent can be kept waiting")
        if not done:
            self._next = slot.number
            time.sleep(LOOK_SECONDS * 2**self._failures)

    def _begin(self, number: int, config: AgentConfig | None = None) -> None:
        folder = self._base / SLOTS / str(number)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        (folder / RUNTIME).mkdir(exist_ok=True)
        for name, one in ((MACHINE, of_machine(self._config)), (CONFIG, config)):
            if one is not None and not (folder / name).exists():
                (folder / name).touch(0o600)
                (folder / name).write_bytes(json_codec.encode(one))
        groups = make_groups(groups_of(number))
        pid = os.fork()
        if pid == 0:
            words = [*self._command, str(number)]
            os._exit(_outside(words, self._base, folder, groups, lambda: self._machine.enter_network(number)))
        self._slots[number] = Slot(number, pid, folder)


# ---- A slot's namespaces


def _outside(
    command: Sequence[str], base: Path, folder: Path, groups: Sequence[Path], enter_network: Callable[[], None]
) -> int:
    """The process outside of a slot: makes its namespaces and waits for its process 1; returns that one's exit code."""
    try:
        for group in groups:
            (group / "cgroup.procs").write_text("0")
        enter_network()
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID)
        inside = os.fork()
        if inside == 0:
            _inside(command, base, folder)
    except BaseException:
        log.exception("no slot can be made in %s", folder)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: os.kill(inside, n))
    return os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])


def _inside(command: Sequence[str], base: Path, folder: Path) -> None:
    """Process 1 of a slot, up to its program. Never returns."""
    try:
        syscalls.die_with_parent()
        syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        everything = syscalls.MS_BIND | syscalls.MS_REC
        syscalls.mount(str(base / RUNTIME), str(folder / RUNTIME), flags=everything)
        syscalls.mount(str(folder), str(base), flags=everything)
        os.chdir("/")
        os.execv(command[0], list(command))  # noqa: S606 - the program is the agent's own
    except BaseException:
        log.exception("no slot can be made in %s", folder)
    finally:
        os._exit(1)


# ---- Nothing is left of a slot


def clear(folder: Path) -> None:
    """Remove a slot's folder with everything in it, snapshots too. Raises OSError."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            _unlock(Path(path, name))
    shutil.rmtree(folder)


def _unlock(folder: Path) -> None:
    """A snapshot of btrfs can't be written to, and so not be emptied, until it is told otherwise."""
    if folder.is_symlink() or folder.stat().st_ino != SUBVOLUME_INODE:
        return
    fd = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # it is no snapshot
            fcntl.ioctl(fd, SET_FLAGS, struct.pack("Q", 0))
    finally:
        os.close(fd)


def groups_of(number: int) -> list[Path]:
    """The control groups of a slot, one for each hierarchy; they need not exist."""
    found = cgroups.places(procfs.text("self", "cgroup"), procfs.text("self", "mountinfo"))
    own = {cgroups.home(where) if c == cgroups.UNIFIED else where for c, (where, _) in found.items() if c in CONTROLLERS}
    return sorted(where / f"spotsurfer-slot-{number}" for where in own)


def make_groups(groups: Sequence[Path]) -> Sequence[Path]:
    """Make these control groups. Raises OSError."""
    for group in groups:
        if (group.parent / "cgroup.controllers").exists():
            cgroups.delegate(group.parent)
        group.mkdir(exist_ok=True)
        group.chmod(0o755)
    return groups


def remove_groups(groups: Sequence[Path]) -> None:
    """Remove these control groups and those below them. Raises OSError if one stays."""
    end = time.monotonic() + REMOVE_SECONDS
    for top in groups:
        while True:
            try:
                for path, _, _ in os.walk(top, topdown=False):
                    Path(path).rmdir()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)  # the dead count until they are reaped
