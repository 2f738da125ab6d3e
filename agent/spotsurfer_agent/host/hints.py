"""Hints that a program gives of its own accord: its stage, a wish for a checkpoint, and a call that it wants before a save.

Hints are files of one folder of the job's scratch, not a connection: so they are part of checkpoints, go along to other
machines, and hold up neither. The agent reads only the newest state of each, a bounded piece of it, and never by way of a link:
whatever a job writes there costs the agent no more. The job's side is `spotsurfer_job.py` (of `spotsurfer_wire`) and, for shell
scripts, `COMMAND`; both are laid into the scratch, so they are there in every container image, in the agent's own version, and
nobody installs anything.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire import clock
from spotsurfer_wire.helper import spotsurfer_job
from spotsurfer_wire.helper.spotsurfer_job import CHECKPOINT, FOLDER, FREEZE, READY, STAGE

INSIDE = "hints"  # of the scratch
OWN = ".spotsurfer"  # of the scratch: what the agent lays there; the job may only read it
STAGE_LETTERS_MAX, READ_BYTES_MAX = 80, 4096
NEED = re.compile(r"(?:(?P<key>memory|cores)=(?P<number>\d{1,18}(?:\.\d{1,9})?)\s?(?P<unit>[KMGTkmgt]?)(?:i?B)?)")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MEMORY_MAX, CORES_MAX = float(1 << 50), 4096.0  # more is a slip
LISTENERS_MAX, ENTRIES_MAX = 64, 1024
FREEZE_SECONDS, URGENT_SECONDS = 10.0, 3.0  # that callbacks get before a save goes on without them
LOOK_SECONDS = 0.02
STALE_SECONDS = 60.0
NOFOLLOW = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
COMMAND = """#!/bin/sh
# Hints of a shell script to spotsurfer. Outside of its jobs it does nothing.
usage() { echo 'usage: spotsurfer hint stage NAME [--memory 40G] [--cores 8] | spotsurfer hint checkpoint' >&2; exit 2; }
[ "$1" = hint ] || usage
case $2 in
stage) [ $# -ge 3 ] && [ -n "$3" ] || usage; name=stage text=$3; shift 3
  while [ $# -gt 0 ]; do
    case $1 in --memory | --cores) ;; *) usage ;; esac
    [ $# -ge 2 ] || usage
    text="$text
${1#--}=$2"; shift 2
  done ;;
checkpoint) [ $# = 2 ] || usage; name=checkpoint text=please ;;
*) usage ;;
esac
[ -d "${SPOTSURFER_HINTS:-}" ] || exit 0
half=$SPOTSURFER_HINTS/.$name.$$
{ printf '%s\\n' "$text" > "$half" && mv -f "$half" "$SPOTSURFER_HINTS/$name"; } 2> /dev/null
exit 0
"""


def lay(scratch: Path) -> None:
    """Put the job's side of it where the job finds it. Raises OSError."""
    source = Path(spotsurfer_job.__file__)
    for inside, text, mode in (("python/spotsurfer_job.py", source.read_text(), 0o644), ("bin/spotsurfer", COMMAND, 0o755)):
        path = scratch / OWN / inside
        for old in (path.parent, path):  # of a step that ran before
            if old.is_symlink():
                old.unlink()
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
        path.write_text(text)
        path.chmod(mode)


def environment(own: Mapping[str, str], base: str) -> dict[str, str]:
    """The job's environment with the way to its side of the hints, behind all that it has itself."""
    python, command = f"{base}/{OWN}/python", f"{base}/{OWN}/bin"
    behind = {"PYTHONPATH": python, "PATH": command}
    return {**own, FOLDER: f"{base}/{INSIDE}", **{k: f"{own[k]}:{v}" if own.get(k) else v for k, v in behind.items()}}


@dataclass(frozen=True, slots=True)
class Told:
    """What the job reports of itself; 0 = nothing. `memory_bytes`, `cores`: its needs in this stage."""

    stage: str = ""
    memory_bytes: int = 0
    cores: float = 0.0


class Hints:
    """Of the job with this scratch."""

    def __init__(self, scratch: Path) -> None:
        self._folder = scratch / INSIDE

    def told(self) -> Told:
        """The stage with what it needs; a need that is no number is ignored."""
        text = self._read(STAGE).decode(errors="replace")
        stage = "".join(c if c.isprintable() else " " for c in text.partition("\n")[0]).strip()[:STAGE_LETTERS_MAX]
        needs: dict[str, float] = {}
        for line in text.splitlines()[1:]:
            found = NEED.fullmatch(line.strip())
            if found is not None:
                needs[found["key"]] = float(found["number"]) * UNITS[found["unit"].upper()]
        return Told(stage, int(min(needs.get("memory", 0.0), MEMORY_MAX)), min(needs.get("cores", 0.0), CORES_MAX))

    def wants_checkpoint(self) -> bool:
        """It asked for one since the last was begun."""
        with contextlib.suppress(OSError):
            (self._folder / CHECKPOINT).lstat()
            return True
        return False

    def heard(self) -> None:
        """A save begins: what was asked for before is answered."""
        with contextlib.suppress(OSError):
            (self._folder / CHECKPOINT).unlink()

    def call_before_freeze(self, hook_seconds: float, *, urgent: bool = False) -> str:
        """Run the callbacks, as far as they end in time; returns a sentence about those that did not.

        They get as long as the user's own command, within bounds.
        """
        seconds = URGENT_SECONDS if urgent else min(FREEZE_SECONDS, hook_seconds)
        token, end = os.urandom(8).hex(), clock.monotonic() + seconds
        waiting = [pid for pid in self._listeners() if self._call(f"{FREEZE}{pid}", token)]
        while waiting := [pid for pid in waiting if self._read(f"{READY}{pid}").strip() != token.encode()]:
            if clock.monotonic() >= end:
                who = ", ".join(waiting[:3])
                return f"before_freeze of process {who} did not end within {seconds:g} s and was not waited for"
            time.sleep(LOOK_SECONDS)
        return ""

    def _listeners(self) -> list[str]:
        """Processes that may listen, by their numbers inside."""
        names = list[str]()
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for count, entry in enumerate(entries):
                if count >= ENTRIES_MAX or len(names) >= LISTENERS_MAX:
                    break
                pid = entry.name.removeprefix(FREEZE)
                if pid != entry.name and pid.isascii() and pid.isdecimal() and len(pid) < 12:
                    names.append(pid)
        return names

    def _call(self, name: str, token: str) -> bool:
        """Whether a process listens there and was told."""
        path = self._folder / name
        try:
            if not stat.S_ISFIFO(path.lstat().st_mode):
                return False
            fd = os.open(path, os.O_WRONLY | NOFOLLOW)
        except OSError:
            self._drop_stale(path)
            return False
        try:
            return stat.S_ISFIFO(os.fstat(fd).st_mode) and os.write(fd, f"{token}\n".encode()) > 0
        except OSError:  # a pipe that is full: nobody reads
            return False
        finally:
            os.close(fd)

    def _drop_stale(self, path: Path) -> None:
        """Nobody listens: its process has ended."""
        with contextlib.suppress(OSError):
            if clock.utc().timestamp() - path.lstat().st_mtime > STALE_SECONDS:
                path.unlink()

    def _read(self, name: str) -> bytes:
        try:
            fd = os.open(self._folder / name, os.O_RDONLY | NOFOLLOW)
        except OSError:
            return b""
        try:
            return os.read(fd, READ_BYTES_MAX) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        except OSError:
            return b""
        finally:
            os.close(fd)
