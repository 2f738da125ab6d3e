"""From what was seen of a program to a verdict. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

PASS = "PASS"


class Verdict(enum.StrEnum):
    """What the page says of a program."""

    PASSED = "passed"
    REFUSED = "refused"  # no save said success, each said why, and the program was unharmed
    FAILED = "failed"
    NOT_COUNTED = "not counted"  # it is no program that a job could be, saved or not


@dataclass
class Seen:
    """All that happened: two live saves, a final one, restores from the second and the third.

    A save is "" where it said success, else its sentence; what became of the program is PASS or what it said instead;
    None: it did not come to that.
    """

    name: str
    user: str = ""
    unfit: str = ""  # why it was not even tried
    apart: bool = False  # live saves and the final one each had a start of their own
    undisturbed: str | None = None  # tried where anything else went wrong
    live: list[str] = field(default_factory=list)  # two saves
    unharmed: str | None = None  # on the first machine: after a final save that was refused, or live ones alone
    final: str | None = None  # the save
    from_live: str | None = None  # restored from the second live save
    from_final: str | None = None
    lazy: bool = False  # it ran before its memory was there
    broken: str = ""  # an error of the engine that no port allows, or a hang
    alone: str | None = None  # plain CRIU with the same program

    @property
    def saves(self) -> list[str]:
        """All saves that were tried."""
        return [*self.live, *([] if self.final is None else [self.final])]

    @property
    def refusal(self) -> str:
        """The sentence of the first save that was refused."""
        return next((s for s in self.saves if s), "")

    @property
    def trouble(self) -> list[str]:
        """What went wrong after a save that said success, or because of saves."""
        after = {
            "after saves": self.unharmed,
            "restored from the second live save": self.from_live,
            "restored from the final save": self.from_final,
        }
        found = [f"{where}: {what}" for where, what in after.items() if what not in (None, PASS)]
        return [*([self.broken] if self.broken else []), *found]


def verdict(seen: Seen) -> Verdict:
    """Of one program."""
    if seen.unfit or (seen.undisturbed not in (None, PASS) and seen.unharmed != PASS):
        return Verdict.NOT_COUNTED
    if seen.trouble:
        return Verdict.FAILED
    saves = seen.saves
    if saves and all(saves):
        return Verdict.REFUSED
    if seen.from_live == seen.from_final == PASS and not any(saves):
        return Verdict.PASSED
    return Verdict.FAILED


def reason(seen: Seen) -> str:
    """Why it is not passed; one line."""
    match verdict(seen):
        case Verdict.NOT_COUNTED:
            return seen.unfit or str(seen.undisturbed)
        case Verdict.REFUSED:
            return seen.refusal
        case Verdict.FAILED:
            return "; ".join(seen.trouble) or seen.refusal or "it was not tried to the end"
    return ""
