"""Inputs of a job on this machine: fetched into the cache, in place before each start and restore, with their mounts.

The store pins what the first start found before the job starts. Later, a cached file with the pinned digest is as good as
the original. Any other file is compared with its server's facts before the fetch, and by its digest after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from spotsurfer_wire import clock, input_addresses, json_codec, object_keys
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.messages import AgentConfig, Fetch, Pinned, Pins, Spec
from spotsurfer_wire.store.port import FileStore, Rights, StoreUnreachable

from spotsurfer_agent.files import staging
from spotsurfer_agent.host import root_fs
from spotsurfer_agent.host.root_fs import Mount
from spotsurfer_agent.prepare.inputs import shared_file_systems
from spotsurfer_agent.prepare.inputs.cache import Cache
from spotsurfer_agent.prepare.inputs.download import PATIENCE_SECONDS, THREADS, Fetching, Want, changed
from spotsurfer_agent.prepare.inputs.shared_file_systems import Shares
from spotsurfer_agent.prepare.inputs.sources import InputTrouble, Kind, Seen, Sources
from spotsurfer_agent.store.layers import Retry

log = logging.getLogger(__name__)
NAME = "inputs"  # of the mount, of its mount point in the job's scratch, and of the link to the view
LOOKS = 8  # at places, at once


@dataclass
class Delivery:
    """For one job and one agent's folder. Safe to call from several threads, which take turns."""

    base: Path
    cache: Cache
    sources: Sources
    patience: Retry = field(default_factory=lambda: Retry(PATIENCE_SECONDS))
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
        """Bring every fetched input into the cache and the job's view, verified and pinned. The job does not run yet.

        `tell` gets the progress. Raises InputTrouble; StoreError if store or source do not answer for a while; what `halt`
        raises.
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
        """Check that every input is available, without a fetch. Raises InputTrouble; StoreError if a source does not answer."""
        _apart(self._look(spec.fetches))

    def place(self, spec: Spec, scratch: str) -> None:
        """Make links to the files in the job's folder, for a start from the beginning. Raises InputTrouble."""
        if not spec.fetches:
            return
        assert self._ready is not None, "inputs are placed when they are ready"
        folder = staging.job_folder(scratch, spec)
        try:
            Path(scratch, NAME).mkdir(exist_ok=True)
            for pin in self._ready.files:
                self._place(pin, folder / staging.safe(pin.path, "input"))
        except OSError as e:
            raise InputTrouble(Kind.DISK, why=e.strerror or str(e)) from e

    def _place(self, pin: Pinned, link: Path) -> None:
        try:
            root_fs.make_folder(link.parent)
            link.symlink_to(self.base / NAME / pin.path)
        except (FileExistsError, NotADirectoryError) as e:
            raise InputTrouble(Kind.TWICE, source=pin.source, other="a file that was sent along", path=pin.path) from e

    def drop(self) -> None:
        """The job does not run here any more: its files may be removed."""
        with self._lock:
            self._ready = None
            self.cache.drop_view(self._owner)

    def _first(self, spec: Spec, store: FileStore, halt: Callable[[], None]) -> Pins:
        seen = self._look(spec.fetches)
        _apart(seen)
        found = self._fetch([Want(s) for s in seen], halt)
        pins = Pins(sorted(found, key=lambda p: p.path), clock.utc_text())
        if store.create(object_keys.inputs_key(spec.job), json_codec.encode(pins)):
            return pins
        then = self._read(store, spec.job)  # our own from before a crash, or another attempt's: that one counts
        assert then is not None
        self._same(then, found)
        return then

    def _again(self, spec: Spec, pins: Pins, halt: Callable[[], None]) -> Pins:
        missing = [p for p in pins.files if not self.cache.held(p.sha256)]
        now = self._now(spec, missing) if missing else {}
        self._fetch([Want(now.get(pin.path) or _as_pinned(pin, spec.fetches), pin) for pin in pins.files], halt)
        return pins

    def _now(self, spec: Spec, missing: list[Pinned]) -> dict[str, Seen]:
        """The files to fetch as they are now. Raises InputTrouble if one is gone or has another size."""
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
            found = [pool.submit(self.patience.ask, partial(self.sources.look, f)) for f in fetches]
            return [seen for future in found for seen in future.result()]

    def _fetch(self, wants: list[Want], halt: Callable[[], None]) -> list[Pinned]:
        self.done_bytes, self.all_bytes = 0, sum(w.seen.size for w in wants)
        try:
            for w in wants:
                staging.safe(w.seen.path, "input")
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
        """Make a link to the view: the same path for every job, on whatever disk the cache lies."""
        path = self.base / "job" / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(view)

    @staticmethod
    def _read(store: FileStore, job: str) -> Pins | None:
        data = store.get(object_keys.inputs_key(job))
        return json_codec.decode(Pins, data) if data is not None else None


def _apart(seen: Iterable[Seen]) -> None:
    """Check that no two files have one place, and that no file is where another needs a folder. Raises InputTrouble."""
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
    """A file that this machine holds already: no server is asked, unless the file is removed at the last moment."""
    at = input_addresses.address(pin.source)
    mine = [f for f in fetches if f.source == pin.source or input_addresses.address(f.source).place == at.place]
    exact = [f for f in mine if f.source == pin.source]
    return Seen((exact or mine or fetches)[0], pin.source, at.key, pin.path, pin.size, pin.version)


def input_mounts(spec: Spec, base: str) -> list[Mount]:
    """In the order of mounting, after the job's scratch. They depend only on the specification: every machine has the same."""
    fetched = [Mount(NAME, f"{base}/job/{NAME}", f"{base}/{NAME}", True)] if spec.fetches else []
    return [*fetched, *shared_file_systems.mounts(spec, base)]


FOLDER = "inputs-cache"  # in the agent's folder


@dataclass
class JobInputs:
    """The inputs of the job in one agent's folder."""

    delivery: Delivery
    shares: Shares

    @staticmethod
    def of(base: Path, config: AgentConfig, rights: Rights | None = None) -> JobInputs:
        """From the agent's configuration; `rights` are the attempt's credentials."""
        folder = Path(config.input_cache) if config.input_cache else base / FOLDER
        cache = Cache(folder, config.input_cache_bytes)
        own = OwnStore.of(config.store_url, config.store_options)
        return JobInputs(Delivery(base, cache, Sources(_usual(config) | config.input_options, rights, own)), Shares(base))

    def ready(self, spec: Spec, store: FileStore, scratch: str, halt: Callable[[], None], tell: Callable[[str], None]) -> None:
        """Bring everything as it was at the job's first start; the job does not run yet.

        Raises FilesError, StoreError if a server does not answer, and what `halt` raises.
        """
        self.shares.ready(spec, scratch)
        self.delivery.ready(spec, store, halt, tell)

    def ahead(self, spec: Spec, store: FileStore, scratch: str, halt: Callable[[], None]) -> None:
        """Bring a job's inputs before it comes; if it never ran, only check that they are available.

        Raises FilesError, StoreError if a server does not answer, and what `halt` raises.
        """
        pinned = bool(spec.fetches) and store.get(object_keys.inputs_key(spec.job)) is not None
        try:
            self.shares.ready(spec, scratch)
            if pinned or not spec.fetches:
                self.delivery.ready(spec, store, halt)
            else:
                self.delivery.look(spec)  # the first start decides what its inputs are
        except staging.FilesError as e:
            if e.kind == shared_file_systems.PASSING:
                raise StoreUnreachable(str(e)) from e
            raise

    def drop(self) -> None:
        """The job does not run here any more."""
        self.shares.drop()
        self.delivery.drop()


def _usual(config: AgentConfig) -> dict[str, dict[str, str]]:
    """Default options: S3 buckets are in the region of an S3 store."""
    region = config.store_options.get("region", "")
    own = "endpoint" in config.store_options  # a service of somebody's own: its region says nothing of others
    return {"s3:": {"region": region}} if region and not own and config.store_url.startswith("s3://") else {}
