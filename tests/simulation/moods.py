"""Policies that change their minds, say nonsense and break: what they say may cost money, and nothing else."""

from __future__ import annotations

import math
import random
from typing import Any

from spotsurfer.ports.policies import Buy, Choice, SaveView, SizeChoice, SizeMoment, SizeTerms, View


class MoodyInterval:
    """Often, seldom, never, nonsense, or it raises."""

    def __init__(self, seed: int) -> None:
        self._rand = random.Random(seed)

    def save_after(self, view: SaveView) -> float | None:
        answers: list[Any] = [30.0, 45.0, 80.0, 300.0, None, -1.0, math.nan, "often"]
        answer = self._rand.choice([*answers, ValueError("a mood")])
        if isinstance(answer, ValueError):
            raise answer
        return answer  # type: ignore[no-any-return]


class MoodyPurchase:
    """The same about what is bought."""

    def __init__(self, seed: int) -> None:
        self._rand = random.Random(seed)

    def choose(self, view: View) -> Choice:
        answers: list[Any] = [Buy.WAIT, Buy.SPOT, Buy.SPOT, Buy.ON_DEMAND, "spot"]
        answer = self._rand.choice([*answers, ZeroDivisionError("a mood")])
        if isinstance(answer, ZeroDivisionError):
            raise answer
        return Choice(answer, "a mood")


class Always:
    """One answer, whatever it costs, until it is given another."""

    def __init__(self, buy: Buy) -> None:
        self.buy = buy

    def choose(self, view: View) -> Choice:
        return Choice(self.buy, "as always")


class MoodySize:
    """Wants to be anywhere, nowhere, where there is nothing, or it raises."""

    def __init__(self, seed: int) -> None:
        self._rand = random.Random(seed)

    def begin(self, terms: SizeTerms) -> tuple[Any, int]:
        return self._rand.choice([(0, terms.start), (0, terms.start), (None, 99), "nowhere"])  # type: ignore[return-value]

    def look(self, memory: Any, moment: SizeMoment) -> tuple[Any, SizeChoice]:
        stay = [SizeChoice()] * 12
        told = [SizeChoice(to, "a mood") for to in (0, 1, 2, -1, 99, math.nan, "small", None)]  # type: ignore[arg-type]
        answer: Any = self._rand.choice([*stay, *told, "nonsense", MemoryError("a mood")])
        if isinstance(answer, MemoryError):
            raise answer
        return memory, answer
