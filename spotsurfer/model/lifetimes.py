"""Lifetimes by class of age: the one form of evidence about losses that is stored, learned from and shown."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

# Young machines die most often in every cloud: the classes are fine where the hazard falls fast. Seconds.
AGES = (0.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 57600.0)
NOTHING = (0.0,) * len(AGES)


def age_class(seconds: float) -> int:
    """Index of the class of this age."""
    return max(bisect_right(AGES, seconds) - 1, 0)


@dataclass(frozen=True, slots=True)
class Lives:
    """Lives of machines (or of spells of a pool's availability): ends and watched seconds in each class of age.

    A life without an observed end (its job was done first) adds to `watched` only: right-censored.
    """

    ended: tuple[float, ...] = NOTHING
    watched: tuple[float, ...] = NOTHING

    @property
    def losses(self) -> float:
        """The number of all ends."""
        return sum(self.ended)

    def plus(self, seconds: float, ended: bool) -> Lives:
        """With one more life, watched from its start."""
        watched = tuple(
            w + max(min(seconds, above) - below, 0.0)
            for w, below, above in zip(self.watched, AGES, (*AGES[1:], float("inf")), strict=True)
        )
        last = age_class(seconds)
        return Lives(tuple(n + (ended and k == last) for k, n in enumerate(self.ended)), watched)

    def __add__(self, other: Lives) -> Lives:
        """Both together."""
        return Lives(
            tuple(a + b for a, b in zip(self.ended, other.ended, strict=True)),
            tuple(a + b for a, b in zip(self.watched, other.watched, strict=True)),
        )

    @staticmethod
    def of(lives: Iterable[tuple[float, bool]]) -> Lives:
        """Of (seconds, ended) pairs."""
        total = Lives()
        for seconds, ended in lives:
            total = total.plus(seconds, ended)
        return total


UNSEEN = Lives()


@dataclass(frozen=True, slots=True)
class Fates:
    """Fates of machines of one kind: their lifetimes, and how many were lost with and without time for a save."""

    lives: Lives = UNSEEN
    noticed: int = 0  # the job's final checkpoint was made in time
    unnoticed: int = 0  # work was lost

    def __add__(self, other: Fates) -> Fates:
        """Both together."""
        return Fates(self.lives + other.lives, self.noticed + other.noticed, self.unnoticed + other.unnoticed)
