"""One save of a running job, step by step: what may be done when. The steps themselves are in the other modules.

Live: freeze, read the image into memory, keep the scratch as it is, let the job run on; then send, manifest, commit. Final:
freeze, send the image while it is read, keep the scratch, manifest, commit, and only then let CRIU kill. A final save that
keeps the job ends before that: CRIU waits on for its verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from spotsurfer_wire import clock, manifest, object_keys
from spotsurfer_wire.chunks import budget
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux import memory
from spotsurfer_wire.linux.memory import first_to_go, lacking
from spotsurfer_wire.manifest import KNOWN, Entry, Manifest
from spotsurfer_wire.messages import SaveFacts
from spotsurfer_wire.store.port import ObjectStore, StoreError

from spotsurfer_agent.chunks.chunker import Sender
from spotsurfer_agent.chunks.fingerprints import Bases, kept_as
from spotsurfer_agent.chunks.writer import Cancelled, Writer
from spotsurfer_agent.criu import command, datagrams, interrupted_calls, terminals, thread_attributes
from spotsurfer_agent.criu.images import BadImage
from spotsurfer_agent.files import identity, tree
from spotsurfer_agent.files.identity import Listing
from spotsurfer_agent.files.scratch import LATE, Capture, Scratch
from spotsurfer_agent.host import root_fs, shim_protocol, tools
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.root_fs import Mount
from spotsurfer_agent.host.tools import Tools, beside
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, plainly
from spotsurfer_agent.prepare.inputs import shared_file_systems
from spotsurfer_agent.restore import compatibility
from spotsurfer_agent.save import memory_reserve
from spotsurfer_agent.save.image_intake import Intake
from spotsurfer_agent.save.memory_reserve import Reserve
from spotsurfer_agent.save.precopy import Copied

# ---- Device memory: what a save does about memory of GPUs, which is not the machine's


class Device(Protocol):
    """Device memory of one job during one save."""

    @property
    def there(self) -> bool:
        """Whether the job has any."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes that will come into the job's own memory on top of what it has."""
        ...

    @property
    def stays(self) -> bool:
        """Since `out` the whole job stands still, and stays so until `back`."""
        ...

    def out(self, progress: Callable[[str], None]) -> None:
        """Before the freeze. Raises EngineError("save"); the job runs on then."""
        ...

    def back(self) -> None:
        """Bring it back: the job's processes run again after a live save. Never raises; a failure is in `lost`."""
        ...

    def facts(self) -> dict[str, str]:
        """What a machine must have of it to restore the image."""
        ...

    @property
    def out_seconds(self) -> float:
        """From when its work was stopped until all was out."""
        ...

    @property
    def back_seconds(self) -> float:
        """To bring it back."""
        ...

    @property
    def lost(self) -> str:
        """Why it could not be brought back; empty = it is."""
        ...


class NoDevice:
    """The job has none."""

    there = stays = False
    bytes, out_seconds, back_seconds, lost = 0, 0.0, 0.0, ""

    def out(self, progress: Callable[[str], None]) -> None:
        """Nothing to do."""

    def back(self) -> None:
        """Nothing to do."""

    def facts(self) -> dict[str, str]:
        """None."""
        return {}


NO_DEVICE = NoDevice()


@dataclass(frozen=True, slots=True)
class SavePlace:
    """The job of one base folder, and all that a save of it needs."""

    folder: Path  # <base>/job
    base: Path
    job: str
    engine: str
    tools: Tools
    store: ObjectStore
    scratch: Scratch
    mounts: list[Mount]
    root: str  # digest of the container image that is its root; "" = there is none
    place: Callable[[str], str]  # where on this machine lies what the job sees under a path
    cgroup: JobCgroup
    criu_version: str
    tool_entries: list[str]
    keys: Keys
    bases: Bases
    limits: Limits
    memory_bytes: int  # that a save may hold; 0 = half of what is free
    device: Device = NO_DEVICE


# ---- Values in the shim's replies, as the types that they have: JSON knows none.


def as_number(value: object) -> float:
    """A number."""
    assert isinstance(value, int | float)
    return float(value)


def as_counts(value: object) -> dict[str, int]:
    """Numbers by name."""
    assert isinstance(value, dict)
    return {str(k): int(v) for k, v in value.items()}


def as_texts(value: object) -> dict[str, str]:
    """Texts by name."""
    assert isinstance(value, dict)
    return {str(k): str(v) for k, v in value.items()}


# ---- The job's files: what its processes know of them besides name and content
#
# That is inode numbers, and positions in folders that they list.

RUNS_ON = "the save failed, the job runs on: "
REMEDY = "try again when it has read the whole folder, or use machines whose disk is btrfs or ext4"


@dataclass(frozen=True, slots=True)
class Known:
    """By inode number: what processes hold (see `Entry.held`), and folders whose entries must have their positions."""

    held: dict[int, int]
    listed: frozenset[int]
    facts: dict[str, str]


def look_at_files(pids: list[int], scratch: Path) -> Known:
    """What processes that stand still know of files. Raises EngineError("save") for what no machine could give them again."""
    device, facts = scratch.stat().st_dev, dict[str, str]()
    held, listings = identity.held(pids, device), identity.under_way(pids, device)
    for number, how in held.items():
        if how == KNOWN and (why := identity.why_not(scratch, number)):
            what = f"it has an SQLite database open whose inode number {number} {why}: {identity.REMEDY}"
            raise EngineError("save", RUNS_ON + what)
    if lost := _lost(listings, scratch):
        raise EngineError("save", f"{RUNS_ON}{lost[0]}, and would get wrong names elsewhere: {REMEDY}")
    if KNOWN in held.values():
        facts[compatibility.NUMBERS] = identity.inode_fact(scratch)
    if listings:
        facts[compatibility.ORDER] = identity.listing_fact(scratch)
    counted = identity.means(scratch) == "btrfs"
    return Known(held, frozenset(x.inode for x in listings if counted), facts)


def _lost(listings: list[Listing], scratch: Path) -> list[Listing]:
    """The listings that could not go on elsewhere. In the scratch's top folder files are made before they are put in order."""
    top = scratch.stat().st_ino
    return [x for x in listings if not identity.keeps(scratch) or x.inode == top == identity.SUBVOLUME_INODE]


def await_listings(pids: Callable[[], Iterable[int]], scratch: Path) -> None:
    """Wait a moment for the end of listings that could not go on elsewhere."""
    device = scratch.stat().st_dev
    identity.await_end(lambda: _lost(identity.under_way(pids(), device), scratch))


def listing_positions(capture: Capture, known: Known) -> dict[str, int]:
    """The positions of entries of listed folders, by path. Raises EngineError("save")."""
    found: dict[str, int] = {}
    for folder in (e for e in capture.entries if e.inode in known.listed):
        there = identity.positions(capture.where(folder))
        if max(there.values(), default=0) > len(there) + identity.SKIPS_MAX:
            what = f"a process is listing {folder.path}, from which too many files were removed"
            raise EngineError("save", f"{RUNS_ON}{what}: {REMEDY}")
        found |= {f"{folder.path}/{name}": at for name, at in there.items()}
    return found


def marked(entries: list[Entry], known: Known, positions: dict[str, int]) -> list[Entry]:
    """The entries with what is known of them."""
    return [_marked(e, known.held.get(e.inode, 0), positions.get(e.path, 0)) for e in entries]


def _marked(e: Entry, held: int, position: int) -> Entry:
    return dataclasses.replace(e, held=held, position=position) if held or position else e


# ---- The save

VERDICT_SECONDS = 10.0  # the shim lets a live dump go if its agent stays silent for so long
KEEP_SECONDS, ALIVE_SECONDS = 60.0, 1.0  # the longest freeze while files are kept; between signs that the agent works on it
DOUBT_SHARE, DOUBT_BYTES = 0.5, 16 << 20  # of the expected image; what the kernel's own counts may differ by
HANGS = (
    "the save failed, the job runs on: CRIU waited for something that does not answer and was ended; a file system that a "
    "process of the job serves itself, or a network file system, may be the reason"
)
UNKEPT = (
    "the save failed, the job runs on: its output can't be kept, or something of it does not stop; a full disk of the machine "
    "may be the reason"
)
CRIU_BYTES = 64 << 20  # with less memory left, a save fails for want of it
NOT_PART = ("stats-",)  # CRIU writes these after the hook
FAILURES = (
    EngineError, StoreError, Cancelled, memory_reserve.Closed, BadImage, OSError, tree.Unsavable, subprocess.SubprocessError,
)  # fmt: skip


class Incomplete(EngineError):
    """Memory is missing in the image, for an unknown reason; the job runs on."""


@dataclass(slots=True)
class Instant:
    """Facts of the moment at which the tree stood still."""

    log: dict[str, int]
    cpu_seconds: float
    facts: dict[str, str]
    capture: Callable[[], Capture]
    pipes: dict[str, str]
    at_ns: int
    known: Known


class Saving:
    """One save under way."""

    def __init__(self, place: SavePlace, request: SaveRequest) -> None:
        self._at, self._request = place, request
        self._images = place.folder / "images" / request.checkpoint
        self._work = place.folder / "images" / f"{request.checkpoint}.work"
        self._base = place.bases.of(request.base)
        limits = dataclasses.replace(place.limits, memory_bytes=min(place.limits.memory_bytes, budget.SENT_BYTES))
        self._writer = Writer(place.store, place.job, place.keys, limits, self._base.known, request.condemned)
        self._memory: Reserve | None = None
        self._prints: list[tuple[str, bytes]] = []
        self._new_share: float | None = None
        self._began = 0.0
        self._frozen_seconds = self._sync_seconds = 0.0
        self._expected_bytes = self._wanted_bytes = 0
        self._copied = Copied()

    def run(self) -> SaveFacts:
        """Do it all. Raises EngineError("save"); what `commit` raises passes through, and a final dump then stays frozen."""
        try:
            with shim_protocol.Conversation(self._at.folder) as talk:
                image = self._make(talk)
                return self._commit(talk, image)
        except shim_protocol.ShimRefused as e:
            raise EngineError("save", self._why(str(e))) from e
        except shim_protocol.ShimGone as e:
            raise EngineError("save", f"the job's keeper is gone: {e}") from e

    def _make(self, talk: shim_protocol.Conversation) -> Manifest:
        """Everything before the head entry. Whatever fails, the job runs on."""
        self._request.progress("reserve")
        try:
            for folder in (self._images, self._work / "plugins"):
                folder.mkdir(parents=True)
            with first_to_go(), self._reserved() as memory, self._writer:
                self._request.progress("sync")
                began = time.monotonic()
                self._at.scratch.sync()
                self._sync_seconds = time.monotonic() - began
                if not self._request.final:
                    self._request.progress("files")
                    if self._at.scratch.copy_ahead(self._request.checkpoint, self._base.known, self._at.cgroup.pids):
                        self._at.scratch.sync()
                await_listings(self._at.cgroup.pids, self._at.scratch.path)
                with self._frozen(talk, memory) as (intake, frozen, status):
                    image = self._carry(talk, intake, frozen, status)
            self._manifest(image)
        except FAILURES as e:
            self._let_go(talk)
            why = f"the save failed, the job runs on: {plainly(e)}"
            raise e if isinstance(e, EngineError) else EngineError("save", why) from e
        return image

    def _carry(
        self, talk: shim_protocol.Conversation, intake: Intake, frozen: dict[str, object], status: dict[str, object]
    ) -> Manifest:
        """From a frozen tree to chunks in the store; a job that runs on does so on the way."""
        try:
            with beside(self._lives, "alive"):
                instant = self._keep(frozen, status)
            intake.drained(lambda: self._alive(talk))
            interrupted_calls.mend(self._images, interrupted_calls.told(frozen.get("waits")))
            for each in (thread_attributes, datagrams):
                each.note(self._images, self._at.cgroup.pids())
        finally:  # also of use if the save fails: a final dump puts nothing back
            terminals.mend(self._images, self._at.cgroup.pids, written=not self._request.final)
        intake.settle()
        self._all_there(intake.pages.read_bytes)
        if not self._request.final:
            self._resume(talk, good=True)
        self._request.progress("upload")
        with beside(lambda _: intake.unwatch(), "writes"):  # page by page: a tenth of a second for 4 GB of small ones
            image = self._send(intake, instant)
        if not self._request.final and not self._at.device.lost:
            self._still_there(talk)
        return image

    # ------------------------------------------------------------ memory and freeze

    @contextlib.contextmanager
    def _reserved(self) -> Iterator[Reserve]:
        """Memory for the image, allocated before the freeze."""
        at, index = self._at, self._base.index
        share = None if index is None else (memory_reserve.FIRST_GUESS if at.bases.new_share is None else at.bases.new_share)
        on_devices = at.device.bytes
        size, allowed = (
            memory_reserve.guessed_bytes(at.cgroup.pids()) + on_devices,
            budget.image_bytes_max(at.memory_bytes, on_devices),
        )
        self._expected_bytes = size
        want = memory_reserve.wanted(size, share, allowed, final=self._request.final)
        self._wanted_bytes = want.touched_bytes
        self._memory = Reserve(want.touched_bytes if self._request.final else 0, want.limit_bytes)
        memory.reuse_memory()
        if index is not None:
            index.prepare()
        try:
            yield self._memory
        finally:
            self._memory.close()
            if index is not None:
                index.rest()

    @contextlib.contextmanager
    def _frozen(
        self, talk: shim_protocol.Conversation, memory: Reserve
    ) -> Iterator[tuple[Intake, dict[str, object], dict[str, object]]]:
        """The intake, what the shim says of the frozen tree, and what it said before."""
        intake = Intake(self._images, memory, self._writer, self._base.index)
        try:
            self._before_freeze(intake, memory)
            self._request.progress("freeze")
            status = talk.ask("status")
            try:
                frozen = self._freeze(talk, intake)
            except shim_protocol.ShimRefused:
                if not command.is_leftover(self._work / "dump.log"):
                    raise
                intake = self._again(intake, memory)
                frozen = self._freeze(talk, intake)
            yield intake, frozen, status
        finally:
            intake.close()

    def _before_freeze(self, intake: Intake, memory: Reserve) -> None:
        """Memory of devices is most of a job that has some, so there is little to copy ahead then."""
        device = self._at.device
        if device.there:
            memory.touch(self._wanted_bytes)
            device.out(self._request.progress)
        elif not self._request.final:
            self._request.progress("ahead")
            self._copy_ahead(intake, memory)

    def _copy_ahead(self, intake: Intake, memory: Reserve) -> None:
        """Copy what can be copied before the freeze; memory for the rest is there when it begins."""
        pids = self._at.cgroup.pids()
        self._copied = intake.ahead(pids, partial(shim_protocol.leading, self._at.folder), sends=self._base.index is None)
        memory.touch(max(self._wanted_bytes - self._copied.bytes, memory_reserve.SLACK_BYTES))
        memory.waited_seconds = 0.0  # it is to count the waiting of the freeze only

    def _again(self, failed: Intake, memory: Reserve) -> Intake:
        """An earlier CRIU was killed before it could tidy up: once more, without what it left."""
        failed.close(keeps_memory=True)
        self._at.scratch.drop_link_remaps()
        shutil.rmtree(self._images)
        self._images.mkdir()
        return Intake(self._images, memory, self._writer, self._base.index)

    def _freeze(self, talk: shim_protocol.Conversation, intake: Intake) -> dict[str, object]:
        r, at = self._request, self._at
        where, frozen = (self._images, self._work, at.folder), at.cgroup.freezer if at.device.stays else ""
        argv = command.dump(at.tools.criu, where, at.mounts, final=r.final, frozen=frozen)
        if r.final:
            intake.pages.release()
        self._began = time.monotonic()
        give_up = tools.ending_criu(at.folder, "give_up", checkpoint=r.checkpoint)
        with tools.watched(lambda: self._signs(intake), give_up, tools.STALL_SECONDS) as hung:
            try:
                frozen_tree = talk.ask(
                    "dump",
                    None,
                    argv=argv,
                    checkpoint=r.checkpoint,
                    final=r.final,
                    verdict_seconds=VERDICT_SECONDS,
                    cgroups=at.tool_entries,
                )
            except shim_protocol.ShimRefused:
                if intake.failure is not None:  # CRIU only saw a broken pipe
                    raise intake.failure from None
                if hung():
                    self._keep_log()
                    raise EngineError("save", HANGS) from None
                raise
        if frozen_tree.get("void"):
            raise EngineError("save", UNKEPT)
        return frozen_tree

    def _signs(self, intake: Intake) -> object:
        """Values that change as long as CRIU works."""
        log = self._work / "dump.log"
        return intake.received_bytes, log.stat().st_size if log.exists() else 0

    def _all_there(self, got: int) -> None:
        """Compare the image with what the kernel says of the processes, which stand still: CRIU must not have missed memory.

        Raises Incomplete. Asking the kernel takes a while for large processes, so that is done only in doubt.
        """
        if got < DOUBT_SHARE * self._expected_bytes:
            there = memory_reserve.image_bytes(self._at.cgroup.pids())
            if got < there - max(DOUBT_BYTES, there // 10):
                self._keep_log()
                raise Incomplete("save", f"CRIU's image has {got >> 20} MiB of the {there >> 20} MiB of the job's memory")

    def _lives(self, over: threading.Event) -> None:
        """Tell the shim, while files are copied, that somebody works on it; on a connection that nobody else uses."""
        end = time.monotonic() + KEEP_SECONDS
        while not over.wait(ALIVE_SECONDS) and time.monotonic() < end:
            with contextlib.suppress(shim_protocol.ShimRefused, shim_protocol.ShimGone):
                shim_protocol.ask(self._at.folder, "alive", checkpoint=self._request.checkpoint)

    def _alive(self, talk: shim_protocol.Conversation) -> None:
        with contextlib.suppress(shim_protocol.ShimRefused):  # an older shim does not know of it
            talk.ask("alive", checkpoint=self._request.checkpoint)

    def _keep(self, frozen: dict[str, object], status: dict[str, object]) -> Instant:
        """Everything that must be of the same instant as the image."""
        self._request.progress("snapshot")
        at = self._at
        capture = at.scratch.capture(self._request.checkpoint, self._base.known, stays_frozen=self._request.final)
        facts = compatibility.machine_facts(at.criu_version, str(at.base), root_fs.compared(at.mounts), at.root)
        facts |= at.device.facts() | compatibility.host(at.cgroup.pids())
        known = look_at_files(at.cgroup.pids(), at.scratch.path)
        facts |= known.facts | compatibility.files(
            at.cgroup.pids(), str(at.base), at.place, shared_file_systems.written(at.mounts)
        )
        cpu = at.cgroup.used_since(as_number(status["cpu_baseline"])) + self._request.cpu_seconds_before
        pipes = as_texts(status["pipes"])
        return Instant(as_counts(frozen["log"]), cpu, facts, capture, pipes, at.scratch.now_ns(), known)

    def _resume(self, talk: shim_protocol.Conversation, *, good: bool) -> None:
        self._request.progress("resume")
        reply = talk.ask("verdict", None, checkpoint=self._request.checkpoint, good=good)
        self._at.device.back()
        self._frozen_seconds = self._stood_still(reply)
        if good and reply.get("void"):
            raise EngineError("save", LATE)

    def _stood_still(self, reply: dict[str, object]) -> float:
        device = self._at.device
        return device.out_seconds + as_number(reply["frozen_seconds"]) + device.back_seconds

    def _send(self, intake: Intake, instant: Instant) -> Manifest:
        intake.pages.release()
        sender = Sender(self._writer)
        files = [e for e in tree.walk(self._images).entries if e.kind == "file" and not e.path.startswith(NOT_PART)]
        small = sender.begin(files, lambda e: self._images / e.path)
        capture = instant.capture()
        try:
            positions = listing_positions(capture, instant.known)
            kept = sender.begin(capture.entries, capture.where, capture.known)
        finally:
            capture.drop()
        intake.pages.finish()
        self._prints = intake.pages.prints()
        prints = [sender.begin_bytes(kept_as(name), data) for name, data in self._prints]
        self._writer.flush()
        scratch = marked(kept(), instant.known, positions)
        self._new_share = intake.pages.new_share if self._base.index is not None else None
        self._at.scratch.remember(capture, scratch, self._writer.table, instant.at_ns)
        images = sorted([*small(), *intake.pages.entries(), *(entry() for entry in prints)], key=lambda e: e.path)
        return self._described(instant, images, scratch)

    def _described(self, instant: Instant, images: list[Entry], scratch: list[Entry]) -> Manifest:
        r = self._request
        return Manifest(
            id=r.checkpoint,
            job=self._at.job,
            epoch=r.epoch,
            sequence=r.sequence,
            kind="final" if r.final else "live",
            engine=self._at.engine,
            facts={**instant.facts, **compatibility.step(r.steps)},
            image=images,
            scratch=scratch,
            log=instant.log,
            init_pipes=instant.pipes,
            cpu_seconds=instant.cpu_seconds,
            frozen_seconds=self._frozen_seconds,
            image_bytes=sum(e.extents.bytes for e in (*images, *scratch)),
            at=clock.utc_text(),
            base=r.base,
            chunks=self._writer.table.rows,
            lineage=self._at.keys.lineage,
            steps=list(r.steps),
        )

    def _still_there(self, talk: shim_protocol.Conversation) -> None:
        if talk.ask("status")["phase"] != "running":
            raise EngineError("save", "the job ended by itself during the save")

    def _manifest(self, image: Manifest) -> None:
        self._request.progress("manifest")
        key, data = object_keys.manifest_key(image.job, image.id), manifest.encode(image, self._at.keys)
        if not self._at.store.create(key, data) and self._at.store.get(key) != data:
            raise EngineError("save", f"another manifest of checkpoint {image.id} is in the store already")

    def _commit(self, talk: shim_protocol.Conversation, image: Manifest) -> SaveFacts:
        """From here on the entry may exist, so a final dump is released only by a clear answer."""
        r = self._request
        r.progress("commit")
        if not r.commit(image):
            self._let_go(talk)
            raise EngineError("save", f"checkpoint {image.id} was not accepted: this attempt does not own the job")
        device = self._at.device
        durable = device.out_seconds + time.monotonic() - self._began
        if r.keep:
            self._frozen_seconds = durable
        elif r.final:
            r.progress("kill")
            self._frozen_seconds = self._stood_still(talk.ask("verdict", 60.0, checkpoint=r.checkpoint, good=True))
        kind = "final" if r.final else "live"
        if not r.final:
            self._at.bases.is_now(image, self._prints)
        if self._new_share is not None:
            self._at.bases.new_share = self._new_share
        waited = self._memory.waited_seconds if self._memory is not None else 0.0
        return SaveFacts(
            r.checkpoint, r.sequence, kind, image.image_bytes, self._writer.sent_bytes, self._frozen_seconds, durable, waited,
            ahead_seconds=self._copied.seconds, read_seconds=self._copied.read_seconds,
            device_out_seconds=device.out_seconds, device_back_seconds=device.back_seconds,
            start_seconds=self._sync_seconds, memory_bytes=image.memory_bytes,
        )  # fmt: skip

    def _let_go(self, talk: shim_protocol.Conversation) -> None:
        """Make the job run on, whatever went wrong; harmless when it does already."""
        try:
            talk.ask("verdict", None, checkpoint=self._request.checkpoint, good=False)
        except (shim_protocol.ShimRefused, shim_protocol.ShimGone):
            return

    def _why(self, told: str) -> str:
        log = self._keep_log()
        return told if log is None else command.sentence(log, told, lacking(CRIU_BYTES))

    def _keep_log(self) -> Path | None:
        """Keep CRIU's log of the failure for people; None if there is none."""
        log, kept = self._work / "dump.log", self._at.folder / "failed-dump.log"
        return log.replace(kept) if log.exists() else None
