"""A standby machine: prefetches the newest checkpoint, and judges whether it could take the job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Head, Spec, Warm
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.control.tasks import Work
from spotsurfer_agent.files.staging import FilesError
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.store.layers import CachedStore, FenceClosed

log = logging.getLogger(__name__)

PAUSES_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)  # between tries while somebody does not answer; the last one repeats
UNFIT = ("refused", "image", "input")  # kinds of errors that speak against this machine, or against any
THREADS = 8  # fetches at once: one at a time waits more for answers than for bytes
COLD = Warm(None, 0, 0)


@dataclass(frozen=True, slots=True)
class Standing:
    """The judgement at one instant. With neither reason the job may come."""

    waits: str = ""  # why the job should not come yet, in a sentence's second half
    unfit: str = ""  # why it can't go on here
    kind: str = ""  # of that; "" = facts speak against it


NOT_YET = Standing("it is compared with what the job needs")
READY = Standing()


class _Unanswered(Exception):
    """A server that the job needs does not answer. `kind`: the kind of error if it never does."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass
class Readiness:
    """Could this machine take the job now? The controller drains no machine for one that could not.

    In this order: the facts about the machine are compared with what the newest checkpoint needs, which takes one small
    object; then root, shared file systems and inputs are brought; then the files that could be looked at only now are compared.
    A server that does not answer is asked again, ever more seldom, while the job runs on where it is: another machine would get
    no answer either. `look` may take long: it belongs into a thread of its own. Durations in seconds.
    """

    work: Work
    halt: Callable[[], None]  # raises FenceClosed if the job does not come any more
    limit_seconds: float  # after so long without an answer the machine gives up
    standing: Standing = field(default=NOT_YET, init=False)
    _for: str | None = field(default=None, init=False)  # checkpoint of which all is known; "" = there is none yet
    _tries: int = field(default=0, init=False)
    _again_at: float = field(default=float("-inf"), init=False)
    _unanswered_since: float | None = field(default=None, init=False)

    def look(self) -> None:
        """Compare and bring, unless all is known of the newest checkpoint. The result is in `standing`."""
        spec, target = self.work.mailbox.mail.spec, self._newest()
        if spec is None or target is None or target == self._for or self.work.now() < self._again_at:
            return
        try:
            self._told(self._looked(spec, target), target)
        except FenceClosed:
            return
        except _Unanswered as e:
            now = self.work.now()
            since = self._unanswered_since = now if self._unanswered_since is None else self._unanswered_since
            over = now - since >= self.limit_seconds
            self._later(Standing(unfit=str(e), kind=e.kind) if over else Standing(f"{e}; it is asked again"))
        except (EngineError, FilesError) as e:
            known = e.kind in UNFIT
            self._told(Standing(unfit=str(e), kind=e.kind) if known else READY, None if known else target)
        except StoreError as e:
            self._later(Standing(f"the store does not answer: {e}"))

    @property
    def told(self) -> Standing:
        """What is known now; READY at once if there is nothing to find out."""
        spec = self.work.mailbox.mail.spec
        simple = spec is not None and self._newest() == "" and not _brings(spec)
        return READY if simple else self.standing

    def _newest(self) -> str | None:
        """The newest checkpoint; "" = there is none to compare with, None = that is not known yet."""
        head = self.work.heads.newest
        if head is None:  # the log is empty until somebody is granted the job
            return "" if self.work.mailbox.mail.head_at > float("-inf") else None
        # A job that was over and gets a machine goes back to a checkpoint which only the grant names.
        return "" if head.done is not None else head.checkpoint or ""

    def check(self) -> None:
        """Raises EngineError if nothing should be fetched for the job yet."""
        told = self.standing
        if told.waits or told.unfit:
            raise EngineError(told.kind or "refused", told.unfit or told.waits)

    # ------------------------------------------------------------ one look

    def _looked(self, spec: Spec, target: str) -> Standing:
        image = self._image(target) if target else None
        brings = _brings(spec)
        if image is not None and (why := self.work.engine.unfit(image, whole=not brings)):
            return Standing(unfit=why)
        self.halt()  # reading it may have taken long: what is started for a job that is here already would be in its way
        if image is not None or self._runs_elsewhere():
            self.work.engine.expect(image)
        else:
            self.work.engine.expect_start()
        if not brings:
            return READY
        self._bring(spec)
        return Standing(unfit=self.work.engine.unfit(image) if image is not None else "")

    def _runs_elsewhere(self) -> bool:
        """Whether the job, which has no checkpoint yet, may come with its first one."""
        head = self.work.heads.newest
        return head is not None and head.done is None

    def _image(self, target: str) -> Manifest | None:
        try:
            return self.work.manifest(target)
        except ProtocolError as e:
            log.warning("checkpoint %s can't be read, so nothing is compared: %s", target, e)
            return None  # the restore says so, and an older one is taken

    def _bring(self, spec: Spec) -> None:
        try:
            self.work.engine.prepare(spec, self._progress)
        except EngineError as e:
            raise _Unanswered("image", str(e)) if e.kind == "store" else e from e
        try:
            self.work.bring_ahead(spec, self.halt)
        except FenceClosed:
            raise
        except StoreError as e:
            raise _Unanswered("input", str(e)) from e

    def _progress(self, stage: str) -> None:
        if self._unanswered_since is None and not self.standing.unfit:
            self.standing = Standing(f"it is {stage}")

    # ------------------------------------------------------------ what comes of it

    def _told(self, standing: Standing, target: str | None) -> None:
        """`target`: there is nothing left to find out about it."""
        self.standing, self._for, self._unanswered_since = standing, target, None
        if target is None:
            self._pause()
        else:
            self._tries = 0

    def _later(self, standing: Standing) -> None:
        log.warning("the job can't come: %s", standing.unfit or standing.waits)
        self.standing, self._for = standing, None
        self._pause()

    def _pause(self) -> None:
        self._again_at = self.work.now() + PAUSES_SECONDS[min(self._tries, len(PAUSES_SECONDS) - 1)]
        self._tries += 1


def _brings(spec: Spec) -> bool:
    """Something has to be on the machine before the job comes."""
    return bool(spec.image or spec.fetches or spec.shares)


@dataclass
class Standby:
    """Fetches the newest checkpoint of one job ahead, and follows each new one.

    So when the job comes, its memory and files are on the disk already, and only what the final save found new is still in the
    store. Nothing depends on it: the restore fetches what was not fetched in time. `look` is one go and may take long: it
    belongs into a thread of its own.
    """

    store: CachedStore
    job: str
    keys: Keys
    newest: Callable[[], Head | None]
    threads: int = THREADS
    prepare: Callable[[], None] = field(default=lambda: None)  # brings what the job needs besides its checkpoint; may take long
    warm: Warm = field(default=COLD, init=False)  # as far as it is now
    _active: bool = field(default=False, init=False)
    _used: bool = field(default=False, init=False)  # something may lie in the cache
    _done: str | None = field(default=None, init=False)  # the checkpoint for which nothing is left to do

    def resume(self) -> None:
        """The machine waits: looks do something."""
        self._active = self._used = True

    def stop(self) -> None:
        """The job comes, or never will: what is being fetched is the last."""
        self._active = False

    def clear(self) -> None:
        """The job has all it needs: give the disk back."""
        if self._used:
            self._active, self._used, self.warm, self._done = False, False, COLD, None
            self.store.cache.clear()

    def look(self) -> None:
        """Fetch what the newest checkpoint needs and is not here. Failures of the store end the look; the next goes on."""
        target = self._target()
        if not self._active or target is None or target == self._done:
            return
        try:
            self.prepare()
            self._fetch(target)
        except (StoreError, ProtocolError, EngineError) as e:
            log.warning("checkpoint %s can't be fetched ahead: %s", target, e)

    def _target(self) -> str | None:
        head = self.newest()
        return None if head is None or head.done is not None else head.checkpoint

    def _fetch(self, target: str) -> None:
        key = object_keys.manifest_key(self.job, target)
        data = self.store.get(key)
        if data is None:
            raise StoreError(f"{key} is missing")
        image = manifest.decode(data, self.keys, self.job, target)
        needed, cache = objects(image, self.job), self.store.cache
        cache.spared_bytes = sum(e.extents.bytes for e in image.scratch)  # they come beside it
        missing, whole = [k for k in needed if not cache.has(k)], sum(needed.values())
        lacks = sum(needed[k] for k in missing)
        if cache.held_bytes + lacks > cache.bytes_max:  # what only older checkpoints needed is in the way
            cache.keep_only({key, *needed})
        cache.put(key, data)
        self.warm = Warm(None, whole - lacks, whole)
        if self._fetch_all(target, missing, needed):
            self._done = target
            self.warm = Warm(target, self.warm.held_bytes, whole)

    def _fetch_all(self, target: str, missing: Sequence[str], needed: dict[str, int]) -> bool:
        """Whether there is nothing left to do: all is here, or as much as there is room for."""
        pool = ThreadPoolExecutor(self.threads, "warm")
        try:
            for key, going_on in zip(missing, pool.map(lambda k: self._fetch_one(target, k), missing), strict=True):
                if not going_on:
                    break
                self.warm = Warm(None, self.warm.held_bytes + needed[key], self.warm.needed_bytes)
        finally:
            pool.shutdown(cancel_futures=True)
        return self._goes_on(target)

    def _goes_on(self, target: str) -> bool:
        return self._active and self._target() == target

    def _fetch_one(self, target: str, key: str) -> bool:
        """Whether fetching goes on."""
        if not self._goes_on(target):
            return False
        data = self.store.behind.get(key)
        if data is None:
            raise StoreError(f"{key} is missing")
        return self.store.cache.put(key, data)


def objects(image: Manifest, job: str) -> dict[str, int]:
    """Keys of what a checkpoint consists of, in the order of its manifest, with the plain bytes that it needs of each."""
    found: dict[str, int] = {}
    for chunk in image.chunks:
        key = object_keys.pack_key(job, chunk.pack) if chunk.pack else object_keys.chunk_key(job, chunk.digest)
        found[key] = found.get(key, 0) + chunk.size
    return found
