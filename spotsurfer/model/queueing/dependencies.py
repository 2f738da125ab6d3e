"""What must come before a job, in Slurm's words: "afterok:JOB" and its like. Texts and their meaning, no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class After(StrEnum):
    """When a dependency is fulfilled. Of an array: when it is for all its tasks."""

    BEGUN = "after"  # it began, or ended before it did
    OK = "afterok"  # it succeeded
    ANY = "afterany"  # it ended
    NOT_OK = "afternotok"  # it ended without success
    CORRESPONDING = "aftercorr"  # the task of the same number succeeded
    SINGLETON = "singleton"  # jobs of the same name and owner that were submitted before have ended


WORDS = tuple(str(x) for x in After)
EXAMPLES = '"afterok:JOB", "afterany:JOB", "afternotok:JOB", "after:JOB", "aftercorr:ARRAY" or "singleton"'


NEVER = "what it waits for can't come any more"  # why a job never begins, unless its user lets it


@dataclass(frozen=True, slots=True)
class Dependency:
    """One condition. `on`: the id, name or number of a job or array; "" for a singleton."""

    kind: After
    on: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.on}" if self.on else str(self.kind)


def read_after(texts: Sequence[str]) -> tuple[Dependency, ...]:
    """The conditions, each once; "afterok:A:B" and "afterok:A,afterany:B" name several. Raises ValueError."""
    found: dict[Dependency, None] = {}
    for text in (part.strip() for one in texts for part in one.split(",")):
        word, *names = text.split(":")
        if word not in WORDS or (word == After.SINGLETON) is bool(names) or not all(names):
            raise ValueError(f"has {text!r}, expected {EXAMPLES}")
        found |= dict.fromkeys(Dependency(After(word), name) for name in names or [""])
    return tuple(found)
