"""One program of the compatibility table: what it is, how its input is made, what must be the same afterwards."""

from __future__ import annotations

import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = HERE / "sources"


@dataclass(frozen=True)
class Entry:
    """A file of the folder `entries`. `prepare` is shell text that fills the current folder with the job's inputs."""

    name: str
    title: str
    what: str  # what it does and which property of a process it stands for
    command: list[str]
    seconds: float  # how long it runs at least on an idle machine; the moments are drawn within
    packages: list[str] = field(default_factory=list)  # Debian packages; the first one's version is the program's
    prepare: str = ""
    outputs: list[str] = field(default_factory=list)  # compared byte by byte, beside the standard output and the exit code
    why: str = ""  # the reason for options that make it deterministic
    refused: bool = False  # it holds something that can't be saved: a save is refused with a sentence and it runs on
    only_checked: bool = False  # … and its output differs from run to run, so only its exit code counts
    service: bool = False  # its first machine has a service for it, at port 7000 of the address by which jobs know machines
    cpus: int = 1
    disks: list[str] = field(default_factory=lambda: ["btrfs"])  # kinds that the machines' disks have, run for run
    job: dict[str, Any] = field(default_factory=dict)  # further keys of the job's specification

    @staticmethod
    def load(name: str) -> Entry:
        """The entry of this name; raises FileNotFoundError, and TypeError for a key that is not known."""
        return Entry(name=name, **tomllib.loads((HERE / "entries" / f"{name}.toml").read_text()))

    def missing(self) -> list[str]:
        """Its packages that this host lacks."""
        return [p for p in self.packages if not version(p)]

    @property
    def version(self) -> str:
        """The program's own version, as Debian counts it."""
        return version(self.packages[0]) if self.packages else ""


def names() -> list[str]:
    """All entries, sorted."""
    return sorted(p.stem for p in (HERE / "entries").glob("*.toml"))


def version(package: str) -> str:
    """Version of an installed Debian package; empty where it is not installed."""
    ask = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package]
    state, _, found = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.partition(" ")
    return found if state == "installed" else ""
