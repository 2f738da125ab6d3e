"""Which checkpoints of a job stay, and why. Pure.

A checkpoint is untested until a restore from it worked. So an older one goes only after a newer one is *proven*: a job or a
rehearsal went on from it. Until then all checkpoints stay, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, slots=True)
class _Line:
    """The facts for all rules. `known` is in the order of commits, oldest first."""

    newest: frozenset[str]
    head: str | None
    proven_at: int  # position of the newest counted proven one; -1 = none
    proven: str
    ended: bool


Rule = Callable[[Known, int, _Line], Verdict | None]


def judge(known: Sequence[Known], rules: RetentionRules, head: str | None) -> list[Verdict]:
    """A verdict for each of `known` (oldest commit first). `head`: the checkpoint to go on from. The first rule wins."""
    counted = [k for k in known if k.counted and k.committed]
    proven_at = max((i for i, k in enumerate(known) if k.proven and k.counted and k.committed), default=-1)
    line = _Line(
        newest=frozenset(k.id for k in counted[-max(rules.newest, 1) :]),
        head=head,
        proven_at=proven_at,
        proven=known[proven_at].id if proven_at >= 0 else "",
        ended=rules.ended,
    )
    return [next(v for rule in RULES if (v := rule(k, i, line)) is not None) for i, k in enumerate(known)]


def _protected(k: Known, _: int, __: _Line) -> Verdict | None:
    return Verdict(k.id, True, "protected by its user") if k.protected else None


def _needed(k: Known, _: int, __: _Line) -> Verdict | None:
    return Verdict(k.id, True, k.needed) if k.needed else None


def _never_committed(k: Known, _: int, __: _Line) -> Verdict | None:
    return None if k.committed else Verdict(k.id, False, "it was never committed")


def _ended(k: Known, _: int, line: _Line) -> Verdict | None:
    return Verdict(k.id, False, "the job has ended") if line.ended else None


def _head(k: Known, _: int, line: _Line) -> Verdict | None:
    return Verdict(k.id, True, "the job goes on from it") if k.id == line.head else None


def _newest(k: Known, _: int, line: _Line) -> Verdict | None:
    return Verdict(k.id, True, "one of the newest") if k.id in line.newest else None


def _unproven(k: Known, at: int, line: _Line) -> Verdict | None:
    if line.proven_at > at:
        return None
    why = "the newest proven one" if at == line.proven_at and k.counted else "no newer one is proven"
    return Verdict(k.id, True, why)


def _over(k: Known, _: int, line: _Line) -> Verdict | None:
    return Verdict(k.id, False, f"{line.proven} is newer and proven")


RULES: tuple[Rule, ...] = (_protected, _needed, _never_committed, _ended, _head, _newest, _unproven, _over)
