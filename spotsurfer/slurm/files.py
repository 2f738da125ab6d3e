"""Names of output files: `%j` and its likes, filled in as far as they are known at the submission. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER, TASK = "{number}", "{task}"  # the controller's own places: filled in when a file is written
NOWHERE = ("/dev/null", "none")
PLACE = re.compile(r"%(\d*)([A-Za-z%])")


@dataclass(frozen=True, slots=True)
class Names:
    """What the letters stand for. `array`: the job has tasks."""

    user: str
    job: str
    array: bool


def file_name(pattern: str, names: Names, folder: str) -> str:
    """The absolute path of a pattern, in which the number and the task are still places. "" for /dev/null."""
    if pattern in NOWHERE:
        return ""
    plain = "\\" in pattern  # a backslash turns places off
    text = pattern.replace("\\", "") if plain else PLACE.sub(lambda found: _place(found[1], found[2], names), pattern)
    return text if text.startswith("/") else f"{folder.rstrip('/')}/{text}"


def _place(width: str, letter: str, names: Names) -> str:
    number = f"{{number:{width}}}" if width and int(width) else NUMBER
    task = f"{{task:{width}}}" if width and int(width) else TASK
    known = {
        "%": "%",
        "A": number,
        "a": task if names.array else "4294967294",
        "J": number,
        "j": number,
        "N": "node",
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": names.user,
        "x": names.job,
    }
    return known.get(letter, f"%{width}{letter}")


def usual(array: bool) -> str:
    """The pattern if none is given."""
    return "slurm-%A_%a.out" if array else "slurm-%j.out"
