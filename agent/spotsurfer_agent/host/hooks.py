"""The user's commands that run beside a job; `python -m` runs one inside the job's namespaces, as its user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from spotsurfer_wire import clock
from spotsurfer_wire.linux import procfs, syscalls

from spotsurfer_agent.host import launch
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.launch import Privileges
from spotsurfer_agent.host.tools import Tools

# ---- The agent's side: commands before a save, after a restore, and to tell a program to save itself
#
# They learn why they run: WHY is one of
#   save      a live checkpoint: the job goes on here at once
#   move      it goes on elsewhere; suspend: it does not for now; notice: the cloud takes the machine
#   restore   it goes on from a checkpoint; return: it goes on where it stood, because it could not go on elsewhere
#   failed    it was to leave, and could not be saved
# JUMP is how far the wall clock is ahead of the job's last instant, in seconds, negative if it went back.

WHY, JUMP = "SPOTSURFER_WHY", "SPOTSURFER_CLOCK_JUMP_SECONDS"
END_SECONDS = 5.0
TOLD_BYTES = 500


class HookFailed(Exception):
    """The command failed, took too long or could not be run; a sentence with the end of its output."""


def jump_since(at: str) -> float:
    """Seconds by which the wall clock is ahead of that time, an ISO 8601 text; negative if it went back; 0 if it is none."""
    try:
        return (clock.utc() - datetime.fromisoformat(at)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def run(
    tools: Tools,
    root: int,
    group: JobCgroup,
    words: Sequence[str],
    limit_seconds: float,
    told: Mapping[str, str] | None = None,
) -> None:
    """Run `words` inside the job; `root` is its first process, `told` more variables. Raises HookFailed.

    The command is in `group`: another one than the job's if that stands still.
    """
    own = [str(root), ":".join(group.entries()), json.dumps(told or {})]
    argv = [*tools.python, "-m", "spotsurfer_agent.host.hooks", *own, *words]
    name = " ".join(words)
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/") as p:
        try:
            said, _ = p.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGTERM)
            try:
                p.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                p.kill()
            raise HookFailed(f"`{name}` took longer than {limit_seconds:g} s: make it faster or raise its limit") from None
    if p.returncode:
        rest = said[-TOLD_BYTES:].decode(errors="replace").strip().replace("\n", "; ")
        raise HookFailed(f"`{name}` ended with exit code {p.returncode}" + (f": {rest}" if rest else ""))


# ---- `python -m spotsurfer_agent.host.hooks PID CGROUPS VARIABLES WORD…`: runs a command in the job's namespaces, as its user.
#
# The command may do no more than the job may. It gets the environment and the folder that the job's first process was started
# with. This process hands on its exit code; told to end, it takes the command along.

ALL = launch.OWN | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET


def main(argv: list[str]) -> int:
    """Run it; returns the command's exit code, 128 + signal if one killed it."""
    root, groups, told, words = int(argv[1]), argv[2].split(":"), json.loads(argv[3]), argv[4:]
    pairs = Path(f"/proc/{root}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    environment = dict(p.split("=", 1) for p in pairs if "=" in p) | told
    who = (*launch.owner_of(root), [int(x) for x in procfs.status(root)["Groups"].split()])
    privileges = Privileges.of_process(root)
    folder = os.open(f"/proc/{root}/cwd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    launch.enter_cgroups(groups)
    syscalls.setns(os.pidfd_open(root), ALL)
    child = os.fork()
    if child == 0:
        launch.guard(2, lambda: _become(words, environment, folder, who, privileges))
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(child, signal.SIGKILL))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _become(
    words: list[str], environment: dict[str, str], folder: int, who: tuple[int, int, list[int]], privileges: Privileges
) -> None:
    os.setsid()
    os.fchdir(folder)
    launch.plain_signals()
    privileges.take()
    syscalls.refuse_io_uring()
    uid, gid, others = who
    os.setgroups(others)
    os.setgid(gid)
    os.setuid(uid)
    os.execvpe(words[0], words, environment)  # noqa: S606 -- the user's own command


if __name__ == "__main__":
    sys.exit(main(sys.argv))
