"""Removes unneeded objects: first checkpoints by the retention rules, then chunks that no remaining checkpoint names.

Chunks go in two steps with a wait between, and the progress lies in the store, not here: first a list of condemned chunks;
later a second look at all manifests, and only chunks that are still unnamed go. A controller that dies between any two writes
leaves a state that the next step can continue. `spotsurfer_agent.control.tasks` explains why no writer can lose a chunk.

The order of reading matters: chunks before intents (if no save is under way after a chunk was listed, the chunk belongs to a
manifest that is read later, or to none), intents before the head (see `survey`), the list before the second look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from spotsurfer_wire import clock, json_codec, manifest, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Condemned
from spotsurfer_wire.store.port import ObjectStore

from spotsurfer.core.checkpoints.retention import RetentionRules, Verdict, judge
from spotsurfer.store.checkpoint_inventory import MANIFEST, Survey, stored_sizes, survey

# A check of our leadership is valid for so long, and for half of the wait at most. A successor takes the list over and empties
# it after its own wait. From then on saves rely on the chunks that were on it, so no other controller may go on removing them.
LEAD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The instructions for one step. `keys` are those of the job's lineage."""

    job: str
    rules: RetentionRules
    keys: Keys
    wanted: Mapping[str, str] = field(default_factory=dict)  # checkpoint -> why it is needed
    sweep: bool = True  # look for chunks, too: one listing of all of them
    log: HeadLog | None = None  # one that was read before; only its new entries are read


@dataclass(slots=True)
class Step:
    """The results of one step, or of a dry run."""

    job: str
    verdicts: list[Verdict] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)  # checkpoints
    condemned: int = 0  # chunks and packs newly on the list
    condemned_bytes: int = 0
    deleted: int = 0  # chunks and packs
    waits: str = ""  # why chunks were not looked for or not removed yet
    clean: bool = False  # chunks were checked and all are needed
    stored_bytes: int | None = None  # of chunks, packs and manifests before this step; None = it did not look


class Collector:
    """One step of one job at a time; call it again until `clean`. `lead` raises when another controller leads."""

    def __init__(
        self, store: ObjectStore, wait_seconds: float, lead: Callable[[], None], now: Callable[[], float] = clock.monotonic
    ) -> None:
        self._store, self._wait_seconds, self._lead, self._now = store, wait_seconds, lead, now
        self._seen: dict[str, tuple[str, float]] = {}  # job -> when its list was made, when this process first saw it

    def step(self, asked: Asked) -> Step:
        """Do all that is possible now. Raises StoreError, ProtocolError (unreadable manifest: no chunk is removed)."""
        step = Step(asked.job)
        condemned = self._condemned(asked.job)
        sizes = stored_sizes(self._store, asked.job) if asked.sweep and not condemned.names else {}
        found = survey(self._store, asked.job, asked.log)
        if asked.sweep and not condemned.names:
            step.stored_bytes = sum(sizes.values()) + sum(found.sizes.values())
        self._retain(found, asked, step)
        if condemned.names:
            self._finish(condemned, asked, step)
        elif asked.sweep:
            self._begin(sizes, found, asked, step)
        return step

    def plan(self, asked: Asked) -> Step:
        """A dry run of all steps: it counts garbage as if all dropped checkpoints were gone."""
        step = Step(asked.job)
        sizes = stored_sizes(self._store, asked.job)
        found = survey(self._store, asked.job, asked.log)
        _judge(found, asked, step)
        live = self._live(found.job, [v.id for v in step.verdicts if v.keep], asked.keys)
        garbage = sorted(set(sizes) - live)
        step.condemned, step.condemned_bytes = len(garbage), sum(sizes[n] for n in garbage)
        step.waits = _busy(found)
        return step

    def _retain(self, found: Survey, asked: Asked, step: Step) -> None:
        _judge(found, asked, step)
        stale = [object_keys.intent_key(found.job, c) for c in found.intents if c not in found.under_way()]
        gone = [*stale, *found.leftovers]
        if not step.dropped and not gone:
            return
        self._lead()
        for checkpoint in step.dropped:  # the manifest first: a mark without one is a leftover, one without marks a lie
            names = sorted(found.marks[checkpoint], key=lambda n: n != MANIFEST)
            self._store.delete(f"{object_keys.checkpoints_prefix(found.job)}{checkpoint}/{n}" for n in names)
        self._store.delete(gone)

    def _begin(self, sizes: Mapping[str, int], found: Survey, asked: Asked, step: Step) -> None:
        step.waits = _busy(found)
        if step.waits:
            return
        kept = [v.id for v in step.verdicts if v.keep]
        garbage = sorted(set(sizes) - self._live(found.job, kept, asked.keys))
        if not garbage:
            step.clean = True
            return
        self._lead()
        self._write(found.job, Condemned(garbage, clock.utc_text()))
        step.condemned, step.condemned_bytes = len(garbage), sum(sizes[n] for n in garbage)
        step.waits = "the condemned chunks get their time"

    def _finish(self, condemned: Condemned, asked: Asked, step: Step) -> None:
        if not self._waited(asked.job, condemned):
            step.waits = "the condemned chunks get their time"
            return
        found = survey(self._store, asked.job, asked.log)
        doomed = sorted(set(condemned.names) - self._live(asked.job, found.manifests, asked.keys))
        led_at = float("-inf")
        for name in doomed:
            if (now := self._now()) - led_at >= min(LEAD_SECONDS, self._wait_seconds / 2):
                self._lead()
                led_at = now
            self._store.delete([object_keys.chunk_key(asked.job, name), object_keys.pack_key(asked.job, name)])
        step.deleted = len(doomed)
        # The list stays while a save is under way: the save may have found one of these chunks before its removal.
        step.waits = _busy(survey(self._store, asked.job, asked.log))
        if not step.waits:
            self._write(asked.job, Condemned())
            self._seen.pop(asked.job, None)

    def _waited(self, job: str, condemned: Condemned) -> bool:
        made, since = self._seen.get(job, ("", 0.0))
        if made != condemned.at:
            made, since = self._seen[job] = (condemned.at, self._now())
        return self._now() - since >= self._wait_seconds

    def _condemned(self, job: str) -> Condemned:
        data = json_codec.read_bounded(self._store, object_keys.condemned_key(job), manifest.MANIFEST_BYTES_MAX)
        return json_codec.decode(Condemned, data) if data is not None else Condemned()

    def _write(self, job: str, condemned: Condemned) -> None:
        self._store.put(object_keys.condemned_key(job), json_codec.encode(condemned))

    def _live(self, job: str, checkpoints: Iterable[str], keys: Keys) -> set[str]:
        live: set[str] = set()
        for checkpoint in checkpoints:
            data = manifest.stored(self._store, job, checkpoint)
            if data is None:
                raise ProtocolError(f"the manifest of {job} {checkpoint} vanished: nothing is removed")
            live |= objects_of(manifest.decode(data, keys, job, checkpoint))
        return live


def objects_of(image: manifest.Manifest) -> set[str]:
    """Names of the chunks and packs that a checkpoint needs."""
    return {c.pack or c.digest for c in image.chunks}


def _judge(found: Survey, asked: Asked, step: Step) -> None:
    newest = found.newest
    step.verdicts = judge(found.known(asked.wanted), asked.rules, newest.checkpoint if newest else None)
    step.dropped = [v.id for v in step.verdicts if not v.keep]


def _busy(found: Survey) -> str:
    saves = sorted(found.under_way())
    return f"the save {saves[0]} is under way" if saves else ""
