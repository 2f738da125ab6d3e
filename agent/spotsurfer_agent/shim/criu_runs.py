"""Runs of CRIU as the shim keeps them, and CRIU's action script.

The script is plain sh: it reports to the shim which stage CRIU reached and, with the tree frozen, waits for the verdict. If the
shim dies meanwhile, the script of a live dump lets the job run on; that of a final one waits for ever: the job must not run
while nobody knows whether its final entry exists.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_agent.host import launch
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.shim_protocol import HOOK, HOOK_ANSWERS, HOOK_ASKS, HOOK_FINAL
from spotsurfer_agent.linux import sockets

# ---- The action script and the shim's side of it

HOOK_SCRIPT = """#!/bin/sh
case $CRTOOLS_SCRIPT_ACTION in pre-dump|post-dump|pre-resume) ;; *) exit 0 ;; esac
cd {folder} || exit 1
echo "$CRTOOLS_SCRIPT_ACTION" > {asks} || exit 1
[ "$CRTOOLS_SCRIPT_ACTION" = pre-dump ] && exit 0
[ "$CRTOOLS_SCRIPT_ACTION" = pre-resume ] && {{ read verdict < {answers}; exit 0; }}
while ! read verdict < {answers}; do [ -e {final} ] || exit 1; done
[ "$verdict" = go ]
"""


class FreezeHook:
    """Two fifos: the script asks on one, the shim answers on the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in (HOOK_ASKS, HOOK_ANSWERS):
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name, 0o600)
        self.asks = os.open(folder / HOOK_ASKS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._answers = os.open(folder / HOOK_ANSWERS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        script = folder / HOOK
        script.write_text(
            HOOK_SCRIPT.format(folder=shlex.quote(str(folder)), asks=HOOK_ASKS, answers=HOOK_ANSWERS, final=HOOK_FINAL)
        )
        script.chmod(0o755)

    def open_to(self, uid: int, gid: int) -> None:
        """Let the script work as the job's user: a shell gives up a root that is only effective."""
        for name in (HOOK_ASKS, HOOK_ANSWERS):
            os.chown(self._folder / name, uid, -1)
        os.chown(self._folder, -1, gid)
        self._folder.chmod(0o710)  # the way to the fifos; what else lies there stays the agent's own

    def begin(self, *, final: bool) -> None:
        """A run of CRIU follows; nothing that an earlier one left over may reach it."""
        for fd in (self.asks, self._answers):
            with contextlib.suppress(BlockingIOError):
                while os.read(fd, 4096):
                    pass
        (self._folder / HOOK_FINAL).unlink(missing_ok=True)
        if final:
            (self._folder / HOOK_FINAL).touch()

    def asked(self) -> list[str]:
        """Stages that CRIU reached since the last call."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self.asks, 4096).decode().split()
        return []

    def answer(self, good: bool) -> None:
        """The verdict."""
        os.write(self._answers, b"go\n" if good else b"no\n")


# ---- Runs of CRIU

CRIU_END_SECONDS = 10.0  # after its verdict CRIU has only to let go
HOLD_LOOK_SECONDS = 0.01  # between looks whether all memory of a restored job is there
DYING_SECONDS = 2.0  # what is killed is gone by then, unless CRIU is in its way
SIGKILL_PENDING = 1 << (signal.SIGKILL - 1)

Owner = Any  # the requester; answers go back there


class Refused(Exception):
    """The request can't be met now; the sentence goes back to the requester."""


def end(pid: int) -> None:
    """Kill a run of CRIU, if it still runs; 0 = there is none."""
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def killed(pid: int) -> bool:
    """It was told to die and is still there."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text(errors="surrogateescape")
        return any(line.startswith("ShdPnd:") and int(line.split()[1], 16) & SIGKILL_PENDING for line in text.splitlines())
    return False


@dataclass(slots=True)
class Dump:
    """A running `criu dump`."""

    checkpoint: str
    final: bool
    pid: int
    owner: Owner
    group: JobCgroup | None  # the job's
    verdict_seconds: float
    seized_at: float  # monotonic; from before the first process is stopped
    frozen_at: float | None = None
    heard_at: float = 0.0  # last sign of life of the owner since then
    verdict: bool | None = None
    answered_at: float | None = None
    hushed: bool = False  # the network is held still by us, not by CRIU

    def heard(self) -> dict[str, Any]:
        """The owner works on what the frozen tree wrote: its verdict may take longer."""
        self.heard_at = time.monotonic()
        return {}

    @property
    def waits(self) -> bool:
        """The tree is frozen and nobody has said what to do with it."""
        return self.frozen_at is not None and self.verdict is None

    def forsaken(self, now: float) -> bool:
        """Its owner has been silent for too long; a final one waits for ever, for its image may be the job by now."""
        return self.waits and not self.final and now > self.heard_at + self.verdict_seconds

    def end_if_stuck(self, now: float) -> None:
        """CRIU was told what to do, and did not come to its end."""
        if self.answered_at is not None and now > self.answered_at + CRIU_END_SECONDS:
            self.end()

    def end(self) -> None:
        """Kill CRIU. The job stands still until `came_to` has seen to what that leaves."""
        if self.group is not None:
            with contextlib.suppress(OSError):
                self.group.ask_to_freeze()
        end(self.pid)

    def came_to(self, code: int) -> None:
        """It ended with this code; a killed CRIU leaves the job's connections in its own hands."""
        if code < 0 and self.group is not None:
            sockets.leave_repair(self.group.pids())

    def result(self, code: int) -> dict[str, Any]:
        """The reply to its owner once CRIU has ended with this code."""
        if self.verdict is None or (self.verdict and not self.final and code != 0):
            return {"ok": False, "error": f"criu dump ended with {code}"}
        frozen = {"frozen_seconds": time.monotonic() - self.seized_at}
        return frozen if self.verdict else {**frozen, "void": True}


@dataclass(slots=True)
class Restore:
    """A running `criu restore`."""

    pid: int
    owner: Owner
    pidfile: Path
    whole: bool  # the job may only run once all its memory is there
    stays: tuple[str, ...] = ()  # and not even then, because others take it over as it stands: the group of tools
    holds: bool = False  # CRIU stands before the job's first instruction and waits for that
    ended: dict[int, int] = field(default_factory=dict)  # orphans that ended meanwhile: the job may be among them
    dying_since: float | None = None  # monotonic
    look_at: float = 0.0  # monotonic: when to look next whether it is stuck

    def root_pid(self, code: int) -> int:
        """The job's first process once CRIU has ended with this code; 0 = there is none."""
        return self.first() if code == 0 else 0

    def account(self) -> tuple[int, int]:
        """User and group of the job, before its first instruction."""
        try:
            return launch.owner_of(self.first())
        except OSError:  # it is gone: nothing will be anybody's
            return 0, 0

    def first(self) -> int:
        """The job's first process; 0 = there is none."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.pidfile.read_text())
        return 0

    @property
    def pause_seconds(self) -> float:
        """How long nobody need look at it."""
        return HOLD_LOOK_SECONDS if self.holds else DYING_SECONDS / 2

    def end_if_stuck(self, now: float) -> None:
        """End CRIU if it waits for ever: somebody killed a process of the job that it traces.

        It kills the job's first process then and waits for that, which waits for its children, which wait for their tracer.
        """
        if now < self.look_at:
            return
        self.look_at = now + DYING_SECONDS / 2
        if not (pid := self.first()) or not killed(pid):
            self.dying_since = None
        elif self.dying_since is None:
            self.dying_since = now
        elif now > self.dying_since + DYING_SECONDS:
            end(self.pid)


def step_out_and_freeze(group: JobCgroup, entries: Sequence[str]) -> None:
    """CRIU and its hook leave the job's control group, which is then frozen. If that fails, the job runs, as it does else."""
    ours = Path("/proc/self/ns/pid").readlink()
    with contextlib.suppress(OSError):
        for pid in group.pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/ns/pid").readlink() == ours:
                    for entry in entries:
                        Path(entry).write_text(str(pid))
        group.freeze()


def without_lock(request: dict[str, Any]) -> dict[str, Any]:
    """The same call of CRIU, leaving the network alone."""
    return {**request, "argv": ["skip" if x == "nftables" else x for x in request["argv"]]}


def filled(argv: list[str], fill: dict[str, int]) -> list[str]:
    """The arguments with what only the shim knows: `{name}` is a number."""
    for name, value in fill.items():
        argv = [str(x).replace("{" + name + "}", str(value)) for x in argv]
    return [str(x) for x in argv]


def spawn(argv: list[str], err_path: Path, enter: Callable[[], None]) -> int:
    """Start CRIU after `enter` was called in the new process; returns its pid. Its output goes into `err_path`."""
    err = os.open(err_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    pid = os.fork()
    if pid == 0:
        launch.guard(err, lambda: _become(argv, err, enter))
    os.close(err)
    return pid


def _become(argv: list[str], err: int, enter: Callable[[], None]) -> None:
    os.setsid()
    enter()
    null = os.open("/dev/null", os.O_RDONLY)
    for target, fd in enumerate((null, err, err)):
        os.dup2(fd, target)
    signal.set_wakeup_fd(-1)
    launch.plain_signals()
    os.execvp(argv[0], argv)  # noqa: S606 -- the agent's own CRIU
