"""Lines of /proc/*/mountinfo."""

from __future__ import annotations

from dataclasses import dataclass

from spotsurfer_agent import procfs


@dataclass(frozen=True, slots=True)
class MountLine:
    """One line of a mountinfo."""

    root: str
    point: str
    kind: str
    options: str


def mount_lines(text: str) -> list[MountLine]:
    """The lines of a mountinfo."""
    found = []
    for line in procfs.lines(text):
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        found.append(MountLine(_unescape(fields[3]), _unescape(fields[4]), rest[0], rest[-1]))
    return found


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
