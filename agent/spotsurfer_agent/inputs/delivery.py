"""The fetched inputs of a job on this machine: in place before its start and before each restore, the same ones each time.

What was seen at the first start is pinned in the store before the job starts. Later a file of the cache that has the pinned
digest is as good as the original; anything else is looked at and compared before it is fetched, and once more by its digest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from spotsurfer_agent import clock, coding, files, jobroot, objectkeys
from spotsurfer_agent.inputs import naming
from spotsurfer_agent.inputs.cache import Cache
from spotsurfer_agent.inputs.fetch import PATIENCE_SECONDS, THREADS, Fetching, Want, changed
from spotsurfer_agent.inputs.sources import Seen, Sources
from spotsurfer_agent.inputs.trouble import InputTrouble, Kind
from spotsurfer_agent.inputs.wire import Fetch, Pinned, Pins
from spotsurfer_agent.jobroot import Mount
from spotsurfer_agent.patience import Patience
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.storeport import FileStore

log = logging.getLogger(__name__)
NAME = "inputs"  # of the mount, of its mount point in the job's scratch, and of what leads to the view
LOOKS = 8  # at places, at once

T = TypeVar("T")


def mounts(spec: Spec, base: str) -> list[Mount]:
    """What the job sees of its fetched inputs: nothing where it has none, else one folder, the same for every machine."""
    return [Mount(NAME, f"{base}/job/{NAME}", f"{base}/{NAME}", True)] if spec.fetches else []


@dataclass
class Delivery:
    """For one job and one agent's folder. Safe to call from several threads: they do one thing after the other."""

    base: Path
    cache: Cache
    sources: Sources
    patience: Patience = field(default_factory=lambda: Patience(PATIENCE_SECONDS))
    done_bytes: int = field(default=0, init=False)
    all_bytes: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _ready: Pins | None = field(default=None, init=False)  # the view holds these, all of them
    _tell: Callable[[str], None] = field(default=lambda _: None, init=False)

    def ready(
        self,
        spec: Spec,
        store: FileStore,
        halt: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Every fetched input in this machine's cache and in the job's view, verified and pinned. Nothing of the job runs.

        `tell` hears how far it is. Raises InputTrouble; StoreError where store or source do not answer for a while; what
        `halt` raises.
        """
        if not spec.fetches:
            return
        with self._lock:
            pins = self._read(store, spec.job)
            if pins is not None and pins == self._ready:
                return
            self._ready, self._tell = None, tell
            self._ready = self._again(spec, pins, halt) if pins is not None else self._first(spec, store, halt)

    def look(self, spec: Spec) -> None:
        """Whether every input can be had; none is fetched. Raises InputTrouble; StoreError where a source does not answer."""
        _apart(self._look(spec.fetches))

    def place(self, spec: Spec, scratch: str) -> None:
        """Links in the job's folder that lead to the files, for a start from the beginning. Raises InputTrouble."""
        if not spec.fetches:
            return
        assert self._ready is not None, "inputs are placed when they are ready"
        folder = files.job_folder(scratch, spec)
        try:
            Path(scratch, NAME).mkdir(exist_ok=True)
            for pin in self._ready.files:
                self._place(pin, folder / files.safe(pin.path, "input"))
        except OSError as e:
            raise InputTrouble(Kind.DISK, why=e.strerror or str(e)) from e

    def _place(self, pin: Pinned, link: Path) -> None:
        try:
            jobroot.make_folder(link.parent)
            link.symlink_to(self.base / NAME / pin.path)
        except (FileExistsError, NotADirectoryError) as e:
            raise InputTrouble(Kind.TWICE, source=pin.source, other="a file that was sent along", path=pin.path) from e

    def drop(self) -> None:
        """Nothing of the job runs here any more: its files may make room for others."""
        with self._lock:
            self._ready = None
            self.cache.drop_view(self._owner)

    # ------------------------------------------------------------ the first start, and later ones

    def _first(self, spec: Spec, store: FileStore, halt: Callable[[], None]) -> Pins:
        seen = self._look(spec.fetches)
        _apart(seen)
        found = self._fetch([Want(s) for s in seen], halt)
        pins = Pins(sorted(found, key=lambda p: p.path), clock.utc_text())
        if store.create(objectkeys.inputs_key(spec.job), coding.encode(pins)):
            return pins
        then = self._read(store, spec.job)  # our own of before a crash, or another attempt's: that one counts
        assert then is not None
        self._same(then, found)
        return then

    def _again(self, spec: Spec, pins: Pins, halt: Callable[[], None]) -> Pins:
        missing = [p for p in pins.files if not self.cache.held(p.sha256)]
        now = self._now(spec, missing) if missing else {}
        wants = []
        for pin in pins.files:
            seen = now.get(pin.path) or _as_pinned(pin, spec.fetches)
            wants.append(Want(seen, pin))
        self._fetch(wants, halt)
        return pins

    def _now(self, spec: Spec, missing: list[Pinned]) -> dict[str, Seen]:
        """What is there now of what has to be fetched. Raises InputTrouble where it is gone or has another size."""
        now = {s.path: s for s in self._look(spec.fetches)}
        for pin in missing:
            seen = now.get(pin.path)
            if seen is None or seen.source != pin.source:
                raise InputTrouble(Kind.ABSENT, source=pin.source)
            if seen.size != pin.size:
                raise changed(pin, Pinned(pin.path, pin.source, seen.size, seen.version, pin.sha256))
        return now

    def _same(self, then: Pins, found: list[Pinned]) -> None:
        now = {p.path: p for p in found}
        for pin in then.files:
            if pin.path not in now:
                raise InputTrouble(Kind.ABSENT, source=pin.source)
            if now[pin.path].sha256 != pin.sha256:
                raise changed(pin, now[pin.path])

    def _look(self, fetches: list[Fetch]) -> list[Seen]:
        with ThreadPoolExecutor(LOOKS, "look") as pool:
            found = [pool.submit(self.patience.ask, _bound(self.sources.look, f)) for f in fetches]
            return [seen for future in found for seen in future.result()]

    def _fetch(self, wants: list[Want], halt: Callable[[], None]) -> list[Pinned]:
        self.done_bytes, self.all_bytes = 0, sum(w.seen.size for w in wants)
        try:
            for w in wants:
                files.safe(w.seen.path, "input")
            view = self.cache.fresh_view(self._owner)
            self._lead_to(view)
            fetching = Fetching(self.cache, self.sources, view, self.patience, halt, self._moved, min(THREADS, len(wants)))
            began, found = clock.monotonic(), fetching.all(wants)
        except OSError as e:
            raise InputTrouble(Kind.DISK, why=e.strerror or str(e)) from e
        log.info("%d inputs are here: %d bytes came in %.1f s", len(found), self.done_bytes, clock.monotonic() - began)
        return found

    def _moved(self, count: int) -> None:
        self.done_bytes += count
        self._tell(f"inputs {100 * self.done_bytes // max(1, self.all_bytes)} %")

    @property
    def _owner(self) -> str:
        st = self.base.stat()
        return f"{st.st_dev:x}-{st.st_ino:x}"  # one job at a time runs from an agent's folder

    def _lead_to(self, view: Path) -> None:
        """The same path for every job, whatever disk the cache lies on."""
        path = self.base / "job" / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(view)

    @staticmethod
    def _read(store: FileStore, job: str) -> Pins | None:
        data = store.get(objectkeys.inputs_key(job))
        return coding.decode(Pins, data) if data is not None else None


def _bound(look: Callable[[Fetch], T], fetch: Fetch) -> Callable[[], T]:
    return lambda: look(fetch)


def _apart(seen: Iterable[Seen]) -> None:
    """No two arrive at one place, and none where another needs a folder. Raises InputTrouble."""
    there: dict[str, Seen] = {}
    for s in seen:
        other = there.setdefault(s.path, s)
        if other is not s:
            raise InputTrouble(Kind.TWICE, source=s.source, other=other.source, path=s.path)
    for s in there.values():
        for above in Path(s.path).parents:
            if str(above) in there:
                raise InputTrouble(Kind.TWICE, source=s.source, other=there[str(above)].source, path=str(above))


def _as_pinned(pin: Pinned, fetches: list[Fetch]) -> Seen:
    """A file that this machine holds already: nobody is asked for it, unless it goes in the last moment."""
    at = naming.address(pin.source)
    mine = [f for f in fetches if f.source == pin.source or naming.address(f.source).place == at.place]
    exact = [f for f in mine if f.source == pin.source]
    return Seen((exact or mine or fetches)[0], pin.source, at.key, pin.path, pin.size, pin.version)
