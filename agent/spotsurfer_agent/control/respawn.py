"""Keeps an agent running: starts it again after a crash or a hang, and ends the machine if no agent can be kept running.

A job without an agent is a job without a lease: nobody would freeze it while its successor starts elsewhere. So the agent beats
through a pipe. An agent that stands still is killed and replaced, and after a whole lease without a beat the machine is powered
off. A machine that has no job yet may take its time: one that boots slowly must not end for that.
Restart and upgrade are the same thing: what `runtime/current` points to is started, and adopts the job that it finds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire import clock

log = logging.getLogger(__name__)

BEAT_VARIABLE = "SPOTSURFER_BEAT_FD"
OVER = 0  # the agent's exit code: the attempt is over and the power-off was ordered
REPLACE = 3  # it was told to go: another one takes over at once
UNFIT = 78  # its configuration can't be read: repeating does not help
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
LOOK_SECONDS = 0.5
START_SECONDS = 120.0  # a first beat takes one second on an idle machine; twenty were seen on a busy one


@dataclass(frozen=True, slots=True)
class Plan:
    """What to keep running. `stall_seconds` without a beat: replaced; `lease_seconds`: the machine ends.

    `job`: exists as soon as a job may be on this machine; until then an agent is replaced after START_SECONDS at the earliest.
    """

    command: Sequence[str]
    stall_seconds: float
    lease_seconds: float
    power_off: Callable[[], None]
    pid_file: Path
    job: Path


class Respawner:
    """One agent process after the other."""

    def __init__(self, plan: Plan, now: Callable[[], float] = clock.running) -> None:
        self._plan, self._now = plan, now
        self._beat_at = now()
        self._child: subprocess.Popen[bytes] | None = None
        self._leaving = False

    def leave(self) -> None:
        """End the agent as for a replacement, and start no other (shutdown of the machine)."""
        self._leaving = True
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def run(self) -> int:
        """Until the attempt is over or the machine is ended; returns an exit code."""
        crashes = 0
        while not self._leaving:
            beat_before = self._beat_at
            code = self._once()
            if code == OVER:
                return 0
            if code == UNFIT or self._now() - self._beat_at > self._plan.lease_seconds:
                log.error("no agent can be kept running: the machine is powered off")
                self._plan.power_off()
                return 1
            crashes = 0 if code == REPLACE or self._beat_at - beat_before > self._plan.stall_seconds else crashes + 1
            if crashes:
                log.warning("the agent ended with %s", code)
                self._pause(BACKOFF_SECONDS[min(crashes, len(BACKOFF_SECONDS)) - 1])
        return 0

    def _once(self) -> int:
        """One agent process from its start to its end."""
        read, write = os.pipe()
        environment = {**os.environ, BEAT_VARIABLE: str(write)}
        try:
            self._child = subprocess.Popen(
                list(self._plan.command), pass_fds=[write], env=environment, stdin=subprocess.DEVNULL
            )
        except OSError as e:
            log.error("the agent can't be started: %s", e)
            os.close(read)
            return UNFIT if self._now() - self._beat_at > self._plan.lease_seconds else 1
        finally:
            os.close(write)
        try:
            self._note_pid(self._child.pid)
            return self._watch(self._child, read)
        finally:
            os.close(read)

    def _watch(self, child: subprocess.Popen[bytes], read: int) -> int:
        started = self._now()
        while (code := child.poll()) is None:
            if select.select([read], [], [], LOOK_SECONDS)[0]:
                if os.read(read, 4096):
                    self._beat_at = self._now()
                else:
                    self._pause(0.05)  # its end of the pipe is closed: it ends in a moment
            reap_orphans(child.pid)
            if self._now() - max(self._beat_at, started) > self._patience():
                log.error("the agent stands still: it is killed and started again")
                child.kill()
                child.wait()
        return code

    def _patience(self) -> float:
        """Seconds without a beat until an agent is replaced."""
        stall = self._plan.stall_seconds
        return stall if self._plan.job.exists() else max(stall, START_SECONDS)

    def _note_pid(self, pid: int) -> None:
        try:
            new = self._plan.pid_file.with_suffix(".new")
            new.write_text(f"{pid}\n")
            new.replace(self._plan.pid_file)
        except OSError as e:
            log.warning("the agent's pid can't be noted: %s", e)

    def _pause(self, seconds: float) -> None:
        select.select([], [], [], seconds)


def reap_orphans(child: int) -> None:
    """Take note of the ends of processes that others left to us, as process 1 of a slot; `child`: not of this one's."""
    with contextlib.suppress(ChildProcessError):
        while os.getpid() == 1 and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)


def beater() -> Callable[[], None]:
    """The function by which the agent shows that it is alive; it does nothing if no respawner listens."""
    number = os.environ.pop(BEAT_VARIABLE, "")  # popped: programs that the agent starts must not beat for it
    if not number.isdigit():
        return lambda: None
    fd = int(number)
    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)

    def beat() -> None:
        try:
            os.write(fd, b".")
        except OSError:  # full: nobody reads just now; broken: nobody will
            return

    return beat


def switch(base: Path, runtime: Path) -> int | None:
    """Make `runtime` the current one and tell the running agent to go; returns the pid that was told, None if there is none.

    The new one adopts the job, which runs on meanwhile. Raises FileNotFoundError if `runtime` holds no agent.
    """
    program = runtime / "bin" / "spotsurfer-agent"
    if not program.is_file():
        raise FileNotFoundError(f"{program} does not exist: unpack the runtime there first")
    current = base / "runtime" / "current"
    new = current.with_name("current.new")
    new.unlink(missing_ok=True)
    new.symlink_to(runtime.resolve())
    new.replace(current)
    try:
        pid = int((base / "agent.pid").read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return None
    return pid
