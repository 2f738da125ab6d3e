"""One save of a running job, step by step: `Saving.run` says what is done when. The other modules do the larger steps.

Live: freeze, read the image into memory, keep the scratch as it is, let the job run on; then send, manifest, commit. Final:
freeze, send the image while it is read, keep the scratch, manifest, commit, and only then let CRIU kill. A final save that
keeps the job ends before that: CRIU waits on for its verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from spotsurfer_wire import clock, manifest, object_keys
from spotsurfer_wire.chunks import budget
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.memory import first_to_go, lacking, reuse_memory
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts
from spotsurfer_wire.store.port import ObjectStore, StoreError

from spotsurfer_agent.chunks import print_workers
from spotsurfer_agent.chunks.chunker import Sender
from spotsurfer_agent.chunks.fingerprints import Bases, kept_as
from spotsurfer_agent.chunks.print_workers import Printing
from spotsurfer_agent.chunks.writer import Cancelled, Writer
from spotsurfer_agent.criu import command, datagrams, interrupted_calls, process_numbers, terminals, thread_attributes
from spotsurfer_agent.criu.images import BadImage
from spotsurfer_agent.files import tree
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
from spotsurfer_agent.save.known_files import KnownFiles, await_listings
from spotsurfer_agent.save.memory_reserve import Reserve
from spotsurfer_agent.save.pages import Pages
from spotsurfer_agent.save.precopy import Copied
from spotsurfer_agent.save.shared_writes import Caught, SharedWrites


class Device:
    """Memory of GPUs, which is not the machine's, of one job during one save. This one is of a job that has none."""

    there = False  # the job has some
    lost = ""  # why it could not be brought back; empty = it is

    @property
    def bytes(self) -> int:
        """Bytes that will come into the job's own memory on top of what it has."""
        return 0

    @property
    def stays(self) -> bool:
        """Since `out` the whole job stands still, and stays so until `back`."""
        return False

    def out(self, progress: Callable[[str], None]) -> None:
        """Before the freeze. Raises EngineError("save"); the job runs on then."""

    def back(self) -> None:
        """Bring it back: the job's processes run again after a live save. Never raises; a failure is in `lost`."""

    def facts(self) -> dict[str, str]:
        """What a machine must have of it to restore the image."""
        return {}

    @property
    def out_seconds(self) -> float:
        """From when its work was stopped until all was out."""
        return 0.0

    @property
    def back_seconds(self) -> float:
        """To bring it back."""
        return 0.0


NO_DEVICE = Device()


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
    shared: SharedWrites
    device: Device = NO_DEVICE


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
    """The job runs on without a whole image; a second dump may do.

    Memory is missing in it for an unknown reason, or an earlier CRIU was killed before it could tidy up.
    """


# What an image gets besides CRIU's own files while the job stands still: made in this folder, of these processes, and of what
# the shim said of the frozen tree.
ENRICHMENT: dict[str, Callable[[Path, list[int], dict[str, Any]], None]] = {
    "calls that the freeze broke off": lambda to, _, frozen: interrupted_calls.mend(
        to, interrupted_calls.told(frozen.get("waits"))
    ),
    "attributes of threads": lambda to, pids, _: thread_attributes.note(to, pids),
    "unread datagrams": lambda to, pids, _: datagrams.note(to, pids),
    "number of the next process": lambda to, _, frozen: process_numbers.note(to, frozen.get("following")),
}


@dataclass(slots=True)
class Instant:
    """Facts of the moment at which the tree stood still."""

    log: dict[str, int]
    cpu_seconds: float
    facts: dict[str, str]
    capture: Callable[[], Capture]
    pipes: dict[str, str]
    at_ns: int
    known: KnownFiles
    shared: Caught


class Saving:
    """One save under way: `run` tells its steps, the other methods say how some of them are done."""

    def __init__(self, place: SavePlace, request: SaveRequest) -> None:
        self._at, self._request = place, request
        self._images = place.folder / "images" / request.checkpoint
        self._work = place.folder / "images" / f"{request.checkpoint}.work"
        self._base = place.bases.of(request.base)
        limits = dataclasses.replace(place.limits, memory_bytes=min(place.limits.memory_bytes, budget.SENT_BYTES))
        self._writer = Writer(place.store, place.job, place.keys, limits, self._base.known, request.condemned)
        self._prints: list[tuple[str, bytes]] = []
        self._began = self._sync_seconds = self._frozen_seconds = 0.0
        self._expected_bytes = self._wanted_bytes = 0
        self._compares = True
        self._copied = Copied()

    def run(self) -> SaveFacts:
        """All steps in the order of time. Raises EngineError("save"); what `commit` raises passes through.

        If `commit` raises, the head entry may exist, so a final dump stays frozen: only a clear answer releases it.
        """
        at, r = self._at, self._request
        with self._conversation() as talk:
            with self._runs_on_after_failure(talk):
                r.progress("reserve")
                for folder in (self._images, self._work / "plugins"):
                    folder.mkdir(parents=True)
                with first_to_go(), self._reserved() as memory, self._writer, self._intake(memory) as intake:
                    self._sync()
                    await_listings(at.cgroup.pids, at.scratch.path)
                    self._copy_ahead(intake, memory)
                    before = talk.ask("status")
                    frozen = self._freeze(talk, intake)
                    try:
                        with beside(self._lives, "alive"):
                            instant = self._snapshot(before, frozen)
                        intake.drained(self._alive)
                        for enrich in ENRICHMENT.values():
                            enrich(self._images, at.cgroup.pids(), frozen)
                    finally:  # also of use if the save fails: a final dump puts nothing back
                        terminals.mend(self._images, at.cgroup.pids, written=not r.final)
                    intake.settle(at.cgroup.pids())
                    self._all_there(intake.pages.read_bytes)
                    if not r.final:
                        self._resume(talk)
                    with beside(lambda _: intake.unwatch(), "writes"):  # a tenth of a second for 4 GB of small pages
                        image = self._send(intake, instant)
                    if not (r.final or at.device.lost) and talk.ask("status")["phase"] != "running":
                        raise EngineError("save", "the job ended by itself during the save")
                self._create_manifest(image)
            durable_seconds = self._commit(talk, image)
            if r.keep:
                self._frozen_seconds = durable_seconds
            elif r.final:
                r.progress("kill")
                self._frozen_seconds = self._stood_still(talk.ask("verdict", 60.0, checkpoint=r.checkpoint, good=True))
        self._is_base_now(image, intake.pages)
        return self._told(image, durable_seconds, memory.waited_seconds)

    # ------------------------------------------------------------ how it fails

    @contextlib.contextmanager
    def _conversation(self) -> Iterator[shim_protocol.Conversation]:
        """The shim's errors become sentences for the user."""
        try:
            with shim_protocol.Conversation(self._at.folder) as talk:
                yield talk
        except shim_protocol.ShimRefused as e:
            raise EngineError("save", self._why(e)) from e
        except shim_protocol.ShimGone as e:
            raise EngineError("save", f"the job's keeper is gone: {e}") from e

    @contextlib.contextmanager
    def _runs_on_after_failure(self, talk: shim_protocol.Conversation) -> Iterator[None]:
        try:
            yield
        except FAILURES as e:
            self._let_go(talk)
            why = f"the save failed, the job runs on: {plainly(e)}"
            raise e if isinstance(e, EngineError) else EngineError("save", why) from e

    def _let_go(self, talk: shim_protocol.Conversation) -> None:
        """Make the job run on, whatever went wrong; harmless when it does already."""
        with contextlib.suppress(shim_protocol.ShimRefused, shim_protocol.ShimGone):
            talk.ask("verdict", None, checkpoint=self._request.checkpoint, good=False)

    def _why(self, e: shim_protocol.ShimRefused) -> str:
        log = self._keep_log()
        return str(e) if log is None else command.sentence(log, str(e), lacking(CRIU_BYTES))

    def _keep_log(self) -> Path | None:
        """Keep CRIU's log of the failure for people; None if there is none."""
        log, kept = self._work / "dump.log", self._at.folder / "failed-dump.log"
        return log.replace(kept) if log.exists() else None

    # ------------------------------------------------------------ before the freeze

    @contextlib.contextmanager
    def _reserved(self) -> Iterator[Reserve]:
        """Memory for the image; a final save allocates it here."""
        at, index, on_devices = self._at, self._base.index, self._at.device.bytes
        share = None if index is None else (memory_reserve.FIRST_GUESS if at.bases.new_share is None else at.bases.new_share)
        self._expected_bytes = memory_reserve.guessed_bytes(at.cgroup.pids()) + on_devices
        allowed, final = budget.image_bytes_max(at.memory_bytes, on_devices), self._request.final
        # Of a job with GPU memory little is copied ahead. To compare all of it takes three times as long as to read it, so the
        # job is let run on first, if there is room for all pages.
        if at.device.there and not final and self._expected_bytes + memory_reserve.SLACK_BYTES <= allowed:
            self._compares, share = False, None
        self._wanted_bytes, limit = memory_reserve.wanted(self._expected_bytes, share, allowed, final=final)
        reserve = Reserve(self._wanted_bytes if final else 0, limit)
        reuse_memory()
        if index is not None:
            index.prepare()
        try:
            yield reserve
        finally:
            reserve.close()
            if index is not None:
                index.rest()

    @contextlib.contextmanager
    def _intake(self, memory: Reserve) -> Iterator[Intake]:
        printing = Printing(self._writer.keys.prints, print_workers.useful(self._expected_bytes))
        pages = Pages(memory, self._writer, self._base.index, printing, compares=self._compares)
        with contextlib.closing(Intake(self._images, pages)) as intake:
            yield intake

    def _sync(self) -> None:
        """Bring files to the disk, and copy those ahead that can't be snapshotted."""
        self._request.progress("sync")
        scratch, began = self._at.scratch, time.monotonic()
        self._at.shared.ahead(self._at.cgroup.pids, self._at.mounts, copies=not self._request.final)
        scratch.sync()  # with these copies: they would be written back in the freeze
        self._sync_seconds = time.monotonic() - began
        if not self._request.final:
            self._request.progress("files")
            if scratch.copy_ahead(self._request.checkpoint, self._base.known, self._at.cgroup.pids):
                scratch.sync()

    def _copy_ahead(self, intake: Intake, memory: Reserve) -> None:
        """Copy what can be copied before the freeze; memory for the rest is there when it begins.

        Memory of devices is most of a job that has some, so there is little to copy ahead then.
        """
        at = self._at
        if at.device.there:
            memory.touch(self._wanted_bytes)
            at.device.out(self._request.progress)
        elif not self._request.final:
            self._request.progress("ahead")
            leading = partial(shim_protocol.leading, at.folder)
            self._copied = intake.ahead(at.cgroup.pids(), leading, sends=self._base.index is None)
            memory.touch(max(self._wanted_bytes - self._copied.bytes, memory_reserve.SLACK_BYTES))
            memory.waited_seconds = 0.0  # it is to count the waiting of the freeze only

    # ------------------------------------------------------------ while the job stands still

    def _freeze(self, talk: shim_protocol.Conversation, intake: Intake) -> dict[str, Any]:
        """Let CRIU dump the job up to its hook; what the shim says of the frozen tree."""
        r, at = self._request, self._at
        r.progress("freeze")
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
            except shim_protocol.ShimRefused as e:
                if intake.failure is not None:  # CRIU only saw a broken pipe
                    raise intake.failure from None
                if hung():
                    self._keep_log()
                    raise EngineError("save", HANGS) from None
                if command.is_leftover(self._work / "dump.log"):
                    at.scratch.drop_link_remaps()
                    raise Incomplete("save", self._why(e)) from e
                raise
        if frozen_tree.get("void"):
            raise EngineError("save", UNKEPT)
        return frozen_tree

    def _signs(self, intake: Intake) -> object:
        """Values that change as long as CRIU works."""
        log = self._work / "dump.log"
        return intake.received_bytes, log.stat().st_size if log.exists() else 0

    def _lives(self, over: threading.Event) -> None:
        """Say now and then that somebody works on it, while files are copied."""
        end = time.monotonic() + KEEP_SECONDS
        while not over.wait(ALIVE_SECONDS) and time.monotonic() < end:
            self._alive()

    def _alive(self) -> None:
        """Tell the shim that somebody works on the save; on a connection that nobody else uses."""
        with contextlib.suppress(shim_protocol.ShimRefused, shim_protocol.ShimGone):  # an older shim does not know of it
            shim_protocol.ask(self._at.folder, "alive", checkpoint=self._request.checkpoint)

    def _snapshot(self, before: dict[str, Any], frozen: dict[str, Any]) -> Instant:
        """Everything that must be of the same instant as the image; the shim's status from before, and of the frozen tree."""
        self._request.progress("snapshot")
        at, pids = self._at, self._at.cgroup.pids()
        capture = at.scratch.capture(self._request.checkpoint, self._base.known, stays_frozen=self._request.final)
        known = KnownFiles.of(pids, at.scratch.path)
        facts = compatibility.machine_facts(at.criu_version, str(at.base), root_fs.compared(at.mounts), at.root)
        facts |= at.device.facts() | compatibility.host(pids) | known.facts
        facts |= compatibility.files(pids, str(at.base), at.place, shared_file_systems.written(at.mounts))
        cpu = at.cgroup.used_since(before["cpu_baseline"]) + self._request.cpu_seconds_before
        shared = at.shared.catch(pids, at.mounts, self._base.known, stays=self._request.final)
        return Instant(frozen["log"], cpu, facts, capture, before["pipes"], at.scratch.now_ns(), known, shared)

    def _all_there(self, got: int) -> None:
        """Compare the image with what the kernel says of the processes, which stand still: CRIU must not have missed memory.

        Raises Incomplete. Asking the kernel takes a while for large processes, so that is done only in doubt.
        """
        if got < DOUBT_SHARE * self._expected_bytes:
            there = memory_reserve.image_bytes(self._at.cgroup.pids())
            if got < there - max(DOUBT_BYTES, there // 10):
                self._keep_log()
                raise Incomplete("save", f"CRIU's image has {got >> 20} MiB of the {there >> 20} MiB of the job's memory")

    def _resume(self, talk: shim_protocol.Conversation) -> None:
        self._request.progress("resume")
        reply = talk.ask("verdict", None, checkpoint=self._request.checkpoint, good=True)
        self._at.device.back()
        self._frozen_seconds = self._stood_still(reply)
        if reply.get("void"):
            raise EngineError("save", LATE)

    def _stood_still(self, reply: dict[str, Any]) -> float:
        device = self._at.device
        return float(device.out_seconds + reply["frozen_seconds"] + device.back_seconds)

    # ------------------------------------------------------------ to the store

    def _send(self, intake: Intake, instant: Instant) -> Manifest:
        """Chunks of memory and files to the store, and the manifest that names them."""
        at, r = self._at, self._request
        r.progress("upload")
        intake.pages.release()
        sender = Sender(self._writer)
        files = [e for e in tree.walk(self._images).entries if e.kind == "file" and not e.path.startswith(NOT_PART)]
        small = sender.begin(files, lambda e: self._images / e.path)
        capture = instant.capture()
        try:
            positions = instant.known.positions(capture)
            kept = sender.begin(capture.entries, capture.where, capture.known)
        finally:
            capture.drop()
        caught = instant.shared
        elsewhere = sender.begin(caught.kept(), lambda e: caught.places[e.path], caught.known)
        at.shared.settle(at.mounts)
        intake.pages.finish()
        self._prints = intake.pages.prints()
        prints = [sender.begin_bytes(kept_as(name), data) for name, data in self._prints]
        self._writer.flush()
        scratch = instant.known.marked(kept(), positions)
        at.scratch.remember(capture, scratch, self._writer.table, instant.at_ns)
        shared = caught.filled(elsewhere())
        at.shared.remember(caught, shared, self._writer.table)
        images = sorted([*small(), *intake.pages.entries(), *(entry() for entry in prints)], key=lambda e: e.path)
        return Manifest(
            id=r.checkpoint,
            job=at.job,
            epoch=r.epoch,
            sequence=r.sequence,
            kind="final" if r.final else "live",
            engine=at.engine,
            facts={**instant.facts, **compatibility.step(r.steps)},
            image=images,
            scratch=scratch,
            log=instant.log,
            init_pipes=instant.pipes,
            cpu_seconds=instant.cpu_seconds,
            frozen_seconds=self._frozen_seconds,
            image_bytes=sum(e.extents.bytes for e in (*images, *scratch, *(x.entry for x in shared))),
            at=clock.utc_text(),
            base=r.base,
            chunks=self._writer.table.rows,
            lineage=at.keys.lineage,
            steps=list(r.steps),
            shared=shared,
        )

    def _create_manifest(self, image: Manifest) -> None:
        self._request.progress("manifest")
        key, data = object_keys.manifest_key(image.job, image.id), manifest.encode(image, self._at.keys)
        if not self._at.store.create(key, data) and self._at.store.get(key) != data:
            raise EngineError("save", f"another manifest of checkpoint {image.id} is in the store already")

    def _commit(self, talk: shim_protocol.Conversation, image: Manifest) -> float:
        """Make the head entry; seconds since the freeze began."""
        self._request.progress("commit")
        if not self._request.commit(image):
            self._let_go(talk)
            raise EngineError("save", f"checkpoint {image.id} was not accepted: this attempt does not own the job")
        return self._at.device.out_seconds + time.monotonic() - self._began

    def _is_base_now(self, image: Manifest, pages: Pages) -> None:
        """The next save builds on it."""
        if not self._request.final:
            self._at.bases.is_now(image, self._prints)
        if self._base.index is not None:
            self._at.bases.new_share = pages.new_share

    def _told(self, image: Manifest, durable_seconds: float, waited_seconds: float) -> SaveFacts:
        device = self._at.device
        return SaveFacts(
            image.id, image.sequence, image.kind, image.image_bytes, self._writer.sent_bytes, self._frozen_seconds,
            durable_seconds, waited_seconds, ahead_seconds=self._copied.seconds, read_seconds=self._copied.read_seconds,
            device_out_seconds=device.out_seconds, device_back_seconds=device.back_seconds,
            start_seconds=self._sync_seconds, memory_bytes=image.memory_bytes,
        )  # fmt: skip
