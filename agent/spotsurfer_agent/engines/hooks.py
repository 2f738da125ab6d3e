"""The user's commands that run beside a job: before a save, after a restore, and to tell a program to save itself."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Sequence

from spotsurfer_agent.cgroup import JobCgroup
from spotsurfer_agent.tools import Tools

END_SECONDS = 5.0
TOLD_BYTES = 500


class HookFailed(Exception):
    """The command failed, took too long or could not be run; a sentence with the end of what it said."""


def run(tools: Tools, root: int, group: JobCgroup, words: Sequence[str], limit_seconds: float) -> None:
    """Run `words` inside the job whose first process is `root`. Raises HookFailed."""
    argv = [*tools.python, "-m", "spotsurfer_agent.inside", str(root), ":".join(group.entries()), *words]
    name = " ".join(words)
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/") as p:
        try:
            said, _ = p.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            _end(p)
            raise HookFailed(f"`{name}` took longer than {limit_seconds:g} s: make it faster or raise its limit") from None
    if p.returncode:
        rest = said[-TOLD_BYTES:].decode(errors="replace").strip().replace("\n", "; ")
        raise HookFailed(f"`{name}` ended with exit code {p.returncode}" + (f": {rest}" if rest else ""))


def _end(p: subprocess.Popen[bytes]) -> None:
    p.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        p.communicate(timeout=END_SECONDS)
        return
    p.kill()
