"""docs/vms.md: one line a trial. A run of some trials replaces only their lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vm.trial import Group, Trial

HEAD = """\
# On booted machines

Machines that boot under QEMU, with a kernel, systemd and cgroup v2 as a release of Debian brings them: what boxes on a host
with cgroup v1 can't show. The processor is emulated, so a trial takes ten to thirty times as long as elsewhere, and waits
ten times as long: the seconds compare with nothing else. No guest reaches a network; those of `machines` are the test EC2's,
start as EC2's do (cloud-init and user-data), and reach it and their metadata service.

`make test-vm` makes this page; `VM=lab` runs one group. What each trial runs: `tests/vm/trial.py`.
"""
COLUMNS = "| what was tried | result | seconds |\n|---|---|---|\n"


@dataclass(frozen=True)
class Row:
    """What came of a trial."""

    trial: Trial
    good: bool
    seconds: float

    @property
    def line(self) -> str:
        """As Markdown."""
        return f"| {_cell(self.trial)} | {'as it should be' if self.good else '**failed**'} | {self.seconds:.0f} |"


@dataclass(frozen=True)
class Run:
    """A group that was run, or a part of it; `guest` says on which machine."""

    group: Group
    guest: str
    rows: list[Row]


def write(path: Path, run: Run, known: Iterable[Group]) -> None:
    """Put this run in; lines of other known trials stay, lines of trials that are no more go."""
    old = path.read_text() if path.exists() else ""
    text = HEAD
    for group in known:
        lines, guest = _lines(old, group), _guest(old, group)
        if group is run.group:
            lines, guest = {**lines, **{_cell(r.trial): r.line for r in run.rows}}, run.guest
        kept = [lines[cell] for t in group.trials if (cell := _cell(t)) in lines]
        if kept:
            text += f"\n{_title(group)}\n\n{guest}\n\n{COLUMNS}" + "\n".join(kept) + "\n"
    path.write_text(text)


def _title(group: Group) -> str:
    return f"## {group.name}"


def _cell(trial: Trial) -> str:
    return trial.what.replace("|", "\\|")


def _part(page: str, group: Group) -> list[str]:
    _, _, rest = page.partition(f"\n{_title(group)}\n")
    return rest.partition("\n## ")[0].strip().splitlines()


def _guest(page: str, group: Group) -> str:
    return next(iter(_part(page, group)), "")


def _lines(page: str, group: Group) -> Mapping[str, str]:
    return {line[2:].rsplit(" | ", 2)[0]: line for line in _part(page, group) if line.startswith("| ")}
