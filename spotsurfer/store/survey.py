"""One job's checkpoints as the store shows them: manifests, marks, saves under way, the head log.

The order of looking matters. Manifests first, intents second, the head last: a manifest that is seen had its intent before, so
when the intent is not there any more, its save has ended, and the head that is read afterwards says whether it counts. In any
other order a checkpoint could be taken for a leftover just before it is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotsurfer_agent import bounded, coding, objectkeys
from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.headlog import HeadLog
from spotsurfer_agent.protocol import Head, HeadKind, Intent
from spotsurfer_agent.storeport import ObjectStore

from spotsurfer.core.retention import Known
from spotsurfer.store.heads import ENTRIES_AT_ONCE, summary

MANIFEST, PROVEN, PROTECTED = "MANIFEST", "PROVEN", "PROTECTED"
INTENT_BYTES_MAX = 1 << 20  # an honest one has some hundred bytes


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found."""

    job: str
    marks: Mapping[str, frozenset[str]]  # checkpoint -> names of the objects in its folder
    sizes: Mapping[str, int]  # checkpoint -> bytes of its manifest
    intents: Mapping[str, Intent]
    entries: tuple[Head, ...]

    @property
    def newest(self) -> Head | None:
        """The newest head entry."""
        return self.entries[-1] if self.entries else None

    @property
    def manifests(self) -> list[str]:
        """Checkpoints that have one, by name."""
        return sorted(c for c, names in self.marks.items() if MANIFEST in names)

    @property
    def leftovers(self) -> list[str]:
        """Keys of marks whose manifest is gone."""
        return [
            f"{objectkeys.checkpoints_prefix(self.job)}{c}/{name}"
            for c, names in sorted(self.marks.items())
            if MANIFEST not in names
            for name in sorted(names)
        ]

    def under_way(self) -> dict[str, Intent]:
        """Saves that may still be committed: their attempt owns the job and nothing of their sequence or later counts."""
        return {c: i for c, i in self.intents.items() if self._may_land(c)}

    def _may_land(self, checkpoint: str) -> bool:
        head, (epoch, sequence) = self.newest, parse(checkpoint)
        if head is None:
            return True
        over = head.done is not None or head.final
        return epoch > head.epoch or (epoch == head.epoch and sequence > head.sequence and not over)

    def committed(self) -> list[str]:
        """Every checkpoint that the head log ever named, oldest commit first."""
        return list(dict.fromkeys(e.checkpoint for e in self.entries if e.kind is HeadKind.COMMIT and e.checkpoint))

    def known(self, wanted: Mapping[str, str]) -> list[Known]:
        """What retention looks at, oldest commit first; `wanted`: checkpoint -> why somebody else needs it."""
        there, line = set(self.manifests), set(summary(self.entries).checkpoints)
        order = [c for c in self.committed() if c in there]
        needed = self._needed() | dict(wanted)
        return [
            Known(
                id=c,
                committed=c in order,
                counted=c in line,
                proven=PROVEN in self.marks[c],
                protected=PROTECTED in self.marks[c],
                needed=needed.get(c, ""),
            )
            for c in [*order, *sorted(there - set(order))]
        ]

    def _needed(self) -> dict[str, str]:
        under_way = self.under_way()
        bases = {i.base: "a save under way builds on it" for i in under_way.values() if i.base is not None}
        return bases | dict.fromkeys(under_way, "its save is under way")


def survey(store: ObjectStore, job: str, log: HeadLog | None = None) -> Survey:
    """Look at one job; `log` is read on, a new one without it. Raises StoreError, ProtocolError."""
    prefix = objectkeys.checkpoints_prefix(job)
    marks: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for found in store.list(prefix):
        checkpoint, _, name = found.key.removeprefix(prefix).partition("/")
        marks.setdefault(checkpoint, set()).add(name)
        if name == MANIFEST:
            sizes[checkpoint] = found.size
    intents = _intents(store, job)
    if log is None:
        log = HeadLog(store, job)
        log.refresh()
    else:
        log.refresh(ENTRIES_AT_ONCE)
    return Survey(job, {c: frozenset(n) for c, n in marks.items()}, sizes, intents, tuple(log.entries))


def _intents(store: ObjectStore, job: str) -> dict[str, Intent]:
    found: dict[str, Intent] = {}
    for listed in store.list(objectkeys.intents_prefix(job)):
        data = bounded.read(store, listed.key, INTENT_BYTES_MAX)
        if data is not None:
            found[listed.key.rpartition("/")[2]] = coding.decode(Intent, data)
    return found


def parse(checkpoint: str) -> tuple[int, int]:
    """Epoch and sequence of a checkpoint's name. Raises ProtocolError."""
    epoch, _, sequence = checkpoint.partition("-")
    if not (epoch.isdecimal() and sequence.isdecimal()):
        raise ProtocolError(f"{checkpoint!r} is no checkpoint's name")
    return int(epoch), int(sequence)
