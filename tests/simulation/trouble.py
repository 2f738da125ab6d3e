"""Trouble of a store that hits single calls: before their effect, or after it, so that only the answer is lost."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass

from simulation.objects import Objects, nothing
from spotsurfer_wire.store.port import StoreError, StoreUnreachable

Hits = Callable[[str, str, str], bool]  # who calls ("controller" or "agent"), the verb, the key


@dataclass(frozen=True)
class Trouble:
    """Which calls fail, and how. A `lost` one is carried out, and its answer is not heard."""

    hits: Hits
    error: type[StoreError] = StoreUnreachable
    lost: bool = False

    def strike(self, store: Objects) -> None:
        """From now on, until somebody `mend`s it."""
        if self.lost:
            store.after = self._raise
        else:
            store.before = self._raise

    def _raise(self, who: str, verb: str, key: str) -> None:
        if self.hits(who, verb, key):
            raise self.error(f"503 Slow Down: {verb} {key}")


def mend(store: Objects) -> None:
    """All is well again."""
    store.before = store.after = nothing


def first(trouble: Trouble) -> Trouble:
    """Only the first call that it would hit."""
    left = [trouble]

    def hits(who: str, verb: str, key: str) -> bool:
        return bool(left) and trouble.hits(who, verb, key) and bool(left.pop())

    return dataclasses.replace(trouble, hits=hits)


def every(n: float, seed: float = 0) -> Trouble:
    """One call of n, whoever makes it: by chance, or it would always be the same one."""
    rand = random.Random(seed)
    return Trouble(lambda who, verb, key: rand.random() < 1 / n)
