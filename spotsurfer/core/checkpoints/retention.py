"""Which checkpoints of a job stay, and why. Pure.

A checkpoint is untested until a restore from it worked. So an older one goes only after a newer one is *proven*: a job or a
rehearsal went on from it. Until then all checkpoints stay, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A checkpoint as the store and the head log show it."""

    id: str
    committed: bool = True  # the head log names it
    counted: bool = True  # in the line that the job goes on from; False if the job went back to before it
    proven: bool = False
    protected: bool = False
    needed: str = ""  # why a save, restore or fork relies on it just now


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The operator's settings."""

    newest: int = 3
    ended: bool = False  # the job ended long enough ago: all unprotected checkpoints go


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a checkpoint stays, and why in words."""

    id: str
    keep: bool
    why: str


def judge(known: Sequence[Known], rules: RetentionRules, head: str | None) -> list[Verdict]:
    """A verdict for each of `known` (oldest commit first). `head`: the checkpoint to go on from. The first rule wins."""
    counted = [k for k in known if k.counted and k.committed]
    newest = {k.id for k in counted[-max(rules.newest, 1) :]}
    proven_at = max((i for i, k in enumerate(known) if k.proven and k.counted and k.committed), default=-1)

    def verdict(at: int, k: Known) -> tuple[bool, str]:
        if k.protected:
            return True, "protected by its user"
        if k.needed:
            return True, k.needed
        if not k.committed:
            return False, "it was never committed"
        if rules.ended:
            return False, "the job has ended"
        if k.id == head:
            return True, "the job goes on from it"
        if k.id in newest:
            return True, "one of the newest"
        if proven_at > at:
            return False, f"{known[proven_at].id} is newer and proven"
        return True, "the newest proven one" if at == proven_at and k.counted else "no newer one is proven"

    return [Verdict(k.id, *verdict(at, k)) for at, k in enumerate(known)]
