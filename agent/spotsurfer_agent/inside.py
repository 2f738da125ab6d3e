"""`python -m spotsurfer_agent.inside PID CGROUPS WORD…`: run a command beside a job, in its namespaces, as its user.

It may no more than the job may. It gets the environment and the folder that the job's first process was started with. Its exit
code is handed on; told to end, it takes the command along.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from spotsurfer_agent import launch, linux, procfs
from spotsurfer_agent.privileges import Privileges

ALL = launch.OWN | linux.CLONE_NEWNS | linux.CLONE_NEWNET


def main(argv: list[str]) -> int:
    """Run it; the command's exit code, 128 + signal where one killed it."""
    root, groups, words = int(argv[1]), argv[2].split(":"), argv[3:]
    pairs = Path(f"/proc/{root}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    environment = dict(p.split("=", 1) for p in pairs if "=" in p)
    who = (*launch.owner_of(root), [int(x) for x in procfs.status(root)["Groups"].split()])
    privileges = Privileges.of_process(root)
    folder = os.open(f"/proc/{root}/cwd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    launch.enter_cgroups(groups)
    linux.setns(os.pidfd_open(root), ALL)
    child = os.fork()
    if child == 0:
        launch.guard(2, lambda: _become(words, environment, folder, who, privileges))
    signal.signal(signal.SIGTERM, lambda *_: _kill(child))
    return _code(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _become(
    words: list[str], environment: dict[str, str], folder: int, who: tuple[int, int, list[int]], privileges: Privileges
) -> None:
    os.setsid()
    os.fchdir(folder)
    launch.plain_signals()
    privileges.take()
    linux.refuse_io_uring()
    uid, gid, others = who
    os.setgroups(others)
    os.setgid(gid)
    os.setuid(uid)
    os.execvpe(words[0], words, environment)  # noqa: S606 -- the user's own command


def _kill(child: int) -> None:
    os.killpg(child, signal.SIGKILL)


def _code(code: int) -> int:
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
