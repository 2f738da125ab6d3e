"""One save, step by step. What may be done when is the whole point; the steps themselves are elsewhere.

Live: freeze, keep the scratch as it is, let the job run on; then send, manifest, commit. Final: freeze, keep, send, manifest,
commit, and only then let CRIU kill.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent import clock, manifest, protocol, shimwire, trees
from spotsurfer_agent.cgroup import JobCgroup
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.sender import Sender
from spotsurfer_agent.engines import criu_call, needs
from spotsurfer_agent.engines.port import EngineError, SaveRequest
from spotsurfer_agent.jobroot import Mount
from spotsurfer_agent.manifest import Entry, Manifest, Stored
from spotsurfer_agent.protocol import SaveFacts
from spotsurfer_agent.scratch import Capture, Scratch
from spotsurfer_agent.store import ObjectStore, StoreError
from spotsurfer_agent.tools import Tools

VERDICT_SECONDS = 10.0  # a live dump whose agent stays silent for so long is let go by the shim
# CRIU writes these after the hook, or they only concern the dump itself.
NOT_PART = ("stats-", "dump.log")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a save happens."""

    folder: Path  # <base>/job
    base: Path
    job: str
    engine: str
    tools: Tools
    store: ObjectStore
    scratch: Scratch
    mounts: list[Mount]
    cgroup: JobCgroup
    criu_version: str
    tool_entries: list[str]
    keys: Keys


@dataclass(slots=True)
class Instant:
    """What was true while the tree stood still."""

    log: dict[str, int]
    cpu_seconds: float
    facts: dict[str, str]
    capture: Callable[[], Capture]
    pipes: dict[str, str]
    at_ns: int


class Saving:
    """One save under way."""

    def __init__(self, place: Place, request: SaveRequest, known: Mapping[str, Stored]) -> None:
        self._at, self._request, self._known = place, request, known
        self._images = place.folder / "images" / request.checkpoint
        self._work = place.folder / "images" / f"{request.checkpoint}.work"
        self._began = 0.0
        self._frozen_seconds = 0.0
        self._sender = Sender(place.store, place.job, place.keys, known)

    def run(self) -> SaveFacts:
        """Do it all. Raises EngineError("save"); what `commit` raises passes through, and a final dump then stays frozen."""
        try:
            with shimwire.Conversation(self._at.folder) as talk:
                return self._run(talk)
        except shimwire.ShimRefused as e:
            raise EngineError("save", self._why(str(e))) from e
        except shimwire.ShimGone as e:
            raise EngineError("save", f"the job's keeper is gone: {e}") from e

    def _run(self, talk: shimwire.Conversation) -> SaveFacts:
        self._request.progress("sync")
        for folder in (self._images, self._work / "plugins"):
            folder.mkdir(parents=True)
        self._at.scratch.sync()
        self._request.progress("freeze")
        status = talk.ask("status")
        try:
            frozen = self._freeze(talk)
        except shimwire.ShimRefused:
            if not criu_call.is_leftover(self._work / "dump.log"):
                raise
            self._at.scratch.drop_link_remaps()  # an earlier CRIU was killed before it could tidy up
            shutil.rmtree(self._images)
            self._images.mkdir()
            frozen = self._freeze(talk)
        try:
            instant = self._keep(frozen, status)
            if not self._request.final:
                self._resume(talk, good=True)
            image = self._send(instant)
            if not self._request.final:
                self._still_there(talk)
            self._manifest(image)
        except (EngineError, StoreError, OSError, trees.Unsavable, subprocess.SubprocessError) as e:
            self._let_go(talk)
            raise e if isinstance(e, EngineError) else EngineError("save", f"the save failed, the job runs on: {e}") from e
        return self._commit(talk, image)

    def _freeze(self, talk: shimwire.Conversation) -> dict[str, object]:
        r, at = self._request, self._at
        argv = criu_call.dump(at.tools.criu, self._images, self._work, at.folder, at.mounts, final=r.final)
        self._began = time.monotonic()
        return talk.ask(
            "dump",
            None,
            argv=argv,
            checkpoint=r.checkpoint,
            final=r.final,
            verdict_seconds=VERDICT_SECONDS,
            cgroups=at.tool_entries,
        )

    def _keep(self, frozen: dict[str, object], status: dict[str, object]) -> Instant:
        """Everything that must be of the same instant as the image."""
        self._request.progress("snapshot")
        at = self._at
        capture = at.scratch.capture(self._request.checkpoint, self._known, stays_frozen=self._request.final)
        facts = needs.machine(at.criu_version, str(at.base), [m.target for m in at.mounts])
        facts |= needs.files(at.cgroup.pids(), str(at.base))
        cpu = max(0.0, at.cgroup.cpu_seconds() - _number(status["cpu_baseline"])) + self._request.cpu_seconds_before
        return Instant(_counts(frozen["log"]), cpu, facts, capture, _texts(status["pipes"]), at.scratch.now_ns())

    def _resume(self, talk: shimwire.Conversation, *, good: bool) -> None:
        self._request.progress("resume")
        reply = talk.ask("verdict", None, checkpoint=self._request.checkpoint, good=good)
        self._frozen_seconds = _number(reply["frozen_seconds"])
        if good and reply.get("void"):
            raise EngineError("save", "the job was let go before its files were kept: the machine is too slow or overloaded")

    def _send(self, instant: Instant) -> Manifest:
        self._request.progress("upload")
        capture = instant.capture()
        try:
            images = [e for e in trees.walk(self._images).entries if not e.path.startswith(NOT_PART)]
            sent = self._sender.send(images, lambda e: self._images / e.path)
            scratch = self._sender.send(capture.entries, capture.where, capture.known)
        finally:
            capture.drop()
        self._at.scratch.remember(capture, scratch, self._sender.table, instant.at_ns)
        return self._described(instant, sent, scratch)

    def _described(self, instant: Instant, images: list[Entry], scratch: list[Entry]) -> Manifest:
        r = self._request
        return Manifest(
            id=r.checkpoint,
            job=self._at.job,
            epoch=r.epoch,
            sequence=r.sequence,
            kind="final" if r.final else "live",
            engine=self._at.engine,
            facts=instant.facts,
            image=images,
            scratch=scratch,
            log=instant.log,
            init_pipes=instant.pipes,
            cpu_seconds=instant.cpu_seconds,
            frozen_seconds=self._frozen_seconds,
            image_bytes=sum(e.extents.bytes for e in (*images, *scratch)),
            at=clock.utc_text(),
            base=r.base,
            chunks=self._sender.table.rows,
            lineage=self._at.keys.lineage,
        )

    def _still_there(self, talk: shimwire.Conversation) -> None:
        if talk.ask("status")["phase"] != "running":
            raise EngineError("save", "the job ended by itself during the save")

    def _manifest(self, image: Manifest) -> None:
        self._request.progress("manifest")
        key, data = protocol.manifest_key(image.job, image.id), manifest.encode(image, self._at.keys)
        if not self._at.store.create(key, data) and self._at.store.get(key) != data:
            raise EngineError("save", f"another manifest of checkpoint {image.id} is in the store already")

    def _commit(self, talk: shimwire.Conversation, image: Manifest) -> SaveFacts:
        """From here on the entry may exist, so a final dump is released only by a clear answer."""
        r = self._request
        r.progress("commit")
        if not r.commit(image):
            self._let_go(talk)
            raise EngineError("save", f"checkpoint {image.id} was not accepted: this attempt does not own the job")
        durable = time.monotonic() - self._began
        if r.final:
            r.progress("kill")
            self._frozen_seconds = _number(talk.ask("verdict", 60.0, checkpoint=r.checkpoint, good=True)["frozen_seconds"])
        kind = "final" if r.final else "live"
        new = self._sender.new_bytes
        return SaveFacts(r.checkpoint, r.sequence, kind, image.image_bytes, new, self._frozen_seconds, durable)

    def _let_go(self, talk: shimwire.Conversation) -> None:
        """Make the job run on, whatever went wrong; harmless when it does already."""
        try:
            talk.ask("verdict", None, checkpoint=self._request.checkpoint, good=False)
        except (shimwire.ShimRefused, shimwire.ShimGone):
            return

    def _why(self, told: str) -> str:
        log = self._work / "dump.log"
        if not log.exists():
            return told
        log.replace(self._at.folder / "failed-dump.log")  # for people: what CRIU said about the last failure
        return criu_call.sentence(self._at.folder / "failed-dump.log", told)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _counts(value: object) -> dict[str, int]:
    assert isinstance(value, dict)
    return {str(k): int(v) for k, v in value.items()}


def _texts(value: object) -> dict[str, str]:
    assert isinstance(value, dict)
    return {str(k): str(v) for k, v in value.items()}
