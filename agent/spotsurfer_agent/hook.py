"""CRIU's action script and the shim's side of it.

The script is plain sh: it tells the shim which stage CRIU reached and, with the tree frozen, waits for the verdict. If the shim
dies meanwhile, the script of a live dump lets the job run on; that of a final one waits for ever: the job must not run while
nobody knows whether its final entry exists.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from spotsurfer_agent.shimwire import HOOK, HOOK_ANSWERS, HOOK_ASKS, HOOK_FINAL

TEXT = """#!/bin/sh
case $CRTOOLS_SCRIPT_ACTION in pre-dump|post-dump|pre-resume) ;; *) exit 0 ;; esac
cd {folder} || exit 1
echo "$CRTOOLS_SCRIPT_ACTION" > {asks} || exit 1
[ "$CRTOOLS_SCRIPT_ACTION" = pre-dump ] && exit 0
[ "$CRTOOLS_SCRIPT_ACTION" = pre-resume ] && {{ read verdict < {answers}; exit 0; }}
while ! read verdict < {answers}; do [ -e {final} ] || exit 1; done
[ "$verdict" = go ]
"""


class Gate:
    """Two fifos: the script asks on one, the shim answers on the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in (HOOK_ASKS, HOOK_ANSWERS):
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name, 0o600)
        self.asks = os.open(folder / HOOK_ASKS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._answers = os.open(folder / HOOK_ANSWERS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        script = folder / HOOK
        script.write_text(TEXT.format(folder=shlex.quote(str(folder)), asks=HOOK_ASKS, answers=HOOK_ANSWERS, final=HOOK_FINAL))
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
