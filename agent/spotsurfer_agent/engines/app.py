"""Engine `app`: the program saves itself when it is told to, and its files are the checkpoint.

A save: tell the program, wait for the sign that it is done, freeze, keep the files as they are, let it go on (after a final
save only death follows), send, manifest, head entry. A restore: bring the files back, and start the command again, or the one
for going on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from spotsurfer_wire import clock, manifest, object_keys
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.linux import procfs
from spotsurfer_wire.manifest import Manifest, Stored
from spotsurfer_wire.messages import SaveFacts, SelfSave, Spec
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.chunks.chunker import Sender
from spotsurfer_agent.chunks.writer import Writer
from spotsurfer_agent.engines.base import Hosted
from spotsurfer_agent.files import staging, tree
from spotsurfer_agent.host import hooks, shim_protocol, steps
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, Status, WorkloadState, blame, plainly
from spotsurfer_agent.restore import compatibility

LOOK_SECONDS = 0.05
HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)  # no program dies of them: signal(7)
REST_SECONDS = 0.5  # a file that changed is whole when it rested for so long
FAILURES = (StoreError, OSError, tree.Unsavable, shim_protocol.ShimGone, shim_protocol.ShimRefused)


class AppEngine(Hosted):
    """The job of one base folder, which saves itself."""

    name = "app"

    def save(self, request: SaveRequest) -> SaveFacts:
        """Tell the program, keep its files. Raises EngineError("save"); the job then runs on."""
        raise EngineError("save", f"{request.checkpoint} can't be made: the job's specification is not known")

    def save_of(self, spec: Spec, request: SaveRequest) -> SaveFacts:
        """`save`, with the [app] section of the job file. Raises EngineError("save"); what `commit` raises passes through."""
        status = self.status()
        if spec.app is None:
            raise EngineError("save", "nothing tells the program to save itself: add [app] to the job file")
        if status.state is not WorkloadState.RUNNING or status.held:
            raise EngineError("save", f"there is nothing to save: the job is {'held still' if status.held else status.state}")
        request.progress("asking")
        began = time.monotonic()
        try:
            exited = self._told(spec.app, spec)
        except EngineError:
            self.marks.over()
            raise
        still_from = time.monotonic()
        try:
            image, facts = self._kept(request)
        except FAILURES as e:
            self._goes_on()
            raise EngineError("save", f"the save failed, the job runs on: {plainly(e)}") from e
        except BaseException:
            self._goes_on()
            raise
        request.progress("commit")
        over = request.final
        try:
            accepted = request.commit(image)
            over = over and accepted
        finally:  # if nobody knows whether the entry exists, nothing of the job may run any more
            if over:
                self._gone()
            else:
                self._goes_on()
        if over or exited:  # nothing of it ran while its files were sent
            still = time.monotonic() - still_from
            facts = dataclasses.replace(facts, frozen_seconds=still, sending_seconds=still - facts.frozen_seconds)
        if not accepted:
            raise EngineError("save", f"checkpoint {image.id} was not accepted: this attempt does not own the job")
        return dataclasses.replace(facts, durable_seconds=time.monotonic() - began)

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """The files back, the program started on them. Raises EngineError("refused") or EngineError("restore")."""
        if self.status().state is not WorkloadState.ABSENT:
            raise EngineError("restore", "the job is here already: kill it first")
        if manifest.engine != self.name:
            raise EngineError("refused", f"checkpoint {manifest.id} was made by engine {manifest.engine!r}, not by the program")
        if (why := compatibility.refusal(manifest.facts, self.plain_facts(spec))) is not None:
            raise EngineError("refused", why)
        self.world.bring(spec)
        try:
            self._scratch.empty()
            reader = Reader(self._store, self._job, self._keys, self._limits)
            tree.build(self._scratch.path, manifest.scratch, manifest.chunks, reader)
            self._scratch.make()
            self._launch(steps.again(spec), dict(manifest.log))
        except (*FAILURES, BadChunk, tree.UnsafePath) as e:
            self.kill()
            raise EngineError(blame(e), f"checkpoint {manifest.id} can't be restored: {plainly(e)}") from e

    def recover(self) -> None:
        """A job that was being saved by an agent that died goes on, unless its final entry may exist."""
        if self.marks.is_final:
            self._gone()
        else:
            self._goes_on()

    # ------------------------------------------------------------ telling it, and the sign that it has done so

    def _told(self, app: SelfSave, spec: Spec) -> bool:
        """Tell the program to save itself and wait until it has; whether it ended by that. Raises EngineError("save")."""
        try:
            self._listens(app)
            sign = self._sign(app, self.status(), self._work(spec))
            self.marks.tell(app.done_exit)
            self._tell(app, spec)
        except (OSError, tree.UnsafePath, hooks.HookFailed, shim_protocol.ShimGone) as e:
            if not app.command:  # a command may have told it nevertheless
                self.marks.ended()
            raise EngineError("save", f"the program could not be told to save itself: {e}") from e
        end = time.monotonic() + app.deadline_seconds
        while not sign():
            now = self.status()
            if now.state is not WorkloadState.RUNNING:
                if app.done_exit is not None and now.exit_code == app.done_exit:
                    return True
                raise EngineError("save", "the job ended by itself during the save")
            if time.monotonic() > end:
                raise EngineError(
                    "save",
                    f"the program did not save itself within {app.deadline_seconds:g} s: raise app.deadline, or look why",
                )
            time.sleep(LOOK_SECONDS)
        return False

    def _listens(self, app: SelfSave) -> None:
        """Wait until the signal does not just kill the program: one that was started a moment ago does not catch it yet."""
        number = signal.Signals[f"SIG{app.signal}"] if app.signal else 0
        if not number or number in HARMLESS or app.done_exit == 128 + number:  # it is meant to die of it
            return
        root, end = int(self._ask("status")["root_pid"]), time.monotonic() + app.deadline_seconds
        while not any(procfs.runs_own(command) and procfs.takes(command, number) for command in procfs.children(root)[:1]):
            if time.monotonic() > end:
                raise EngineError(
                    "save",
                    f"the job's command would die of SIG{app.signal}, so it was not told to save itself: the program must "
                    "catch the signal, and a shell that starts the program must do so with exec",
                )
            time.sleep(LOOK_SECONDS)

    def _tell(self, app: SelfSave, spec: Spec) -> None:
        root = int(self._ask("status")["root_pid"])
        if app.signal:
            os.kill(root, signal.Signals[f"SIG{app.signal}"])  # its init hands it on to the whole group
        elif app.file:
            top = Path(self._scratch.path)  # the job may have put links anywhere below
            tree.make_empty(top, (self._work(spec) / app.file).relative_to(top).as_posix(), *self._owner(root))
        else:
            self.run_inside(app.command, app.deadline_seconds)

    def _owner(self, root: int) -> tuple[int, int]:
        st = Path(f"/proc/{root}").stat()
        return st.st_uid, st.st_gid

    def _sign(self, app: SelfSave, status: Status, folder: Path) -> Callable[[], bool]:
        if app.done_file:
            return _Rested(folder / app.done_file).look
        if app.done_output:
            return _Said(self.read_log, (status.log or {}).get("out", 0), re.compile(app.done_output.encode())).look
        return (lambda: False) if app.done_exit is not None else (lambda: True)

    def _work(self, spec: Spec) -> Path:
        return staging.job_folder(str(self._scratch.path), spec)

    # ------------------------------------------------------------ keeping what it wrote

    def _kept(self, request: SaveRequest) -> tuple[Manifest, SaveFacts]:
        """Everything but the head entry; the caller fills in how long it took until that is there."""
        request.progress("freeze")
        known = self._bases.of(request.base).known
        if not request.final:
            self._scratch.copy_ahead(request.checkpoint, known, self.pids)
        self._scratch.sync()
        frozen_at = time.monotonic()
        self._ask("stay", on=True)  # by the shim, which also knows whether the lease lets it go on
        self._cgroup().freeze()  # raises if something does not stop
        self._ask("status")  # the second answer comes after everything in the pipes was read
        log, cpu = dict(self._ask("status")["log"]), self.status().cpu_seconds + request.cpu_seconds_before
        listed, at_ns = self._scratch.capture(request.checkpoint, known, stays_frozen=request.final), self._scratch.now_ns()
        if not request.final:
            self._ask("stay", on=False)
        frozen = time.monotonic() - frozen_at
        request.progress("upload")
        with Writer(self._store, self._job, self._keys, self._limits, known, request.condemned) as writer:
            capture = listed()
            try:
                entries = Sender(writer).send(capture.entries, capture.where, capture.known)
            finally:
                capture.drop()
        self._scratch.remember(capture, entries, writer.table, at_ns)
        image = self._described(request, entries, log, cpu)
        image = dataclasses.replace(image, frozen_seconds=frozen, chunks=writer.table.rows)
        self._manifest(image)
        if request.final:
            self.marks.final()
        sent = writer.sent_bytes
        return image, SaveFacts(image.id, image.sequence, image.kind, image.image_bytes, sent, frozen, 0.0, memory_bytes=0)

    def _described(self, r: SaveRequest, entries: list[manifest.Entry], log: dict[str, int], cpu: float) -> Manifest:
        none: list[Stored] = []
        return Manifest(
            id=r.checkpoint,
            job=self._job,
            epoch=r.epoch,
            sequence=r.sequence,
            kind="final" if r.final else "live",
            engine=self.name,
            facts={**self.plain_facts(), **compatibility.step(r.steps)},
            image=[],
            scratch=entries,
            log=log,
            init_pipes={},
            cpu_seconds=cpu,
            frozen_seconds=0.0,
            image_bytes=sum(e.extents.bytes for e in entries),
            at=clock.utc_text(),
            base=r.base,
            chunks=none,
            lineage=self._keys.lineage,
            steps=list(r.steps),
        )

    def _manifest(self, image: Manifest) -> None:
        key, data = object_keys.manifest_key(image.job, image.id), manifest.encode(image, self._keys)
        if not self._store.create(key, data) and self._store.get(key) != data:
            raise EngineError("save", f"another manifest of checkpoint {image.id} is in the store already")

    # ------------------------------------------------------------ going on

    def _gone(self) -> None:
        """Kill it after its final save. If it ended by itself, as it was told to, that is no end of the command."""
        (self._folder / shim_protocol.EXIT).unlink(missing_ok=True)  # first: without our marks it would count as the job's end
        self._end()
        self.marks.forget()

    def _goes_on(self) -> None:
        """After a live save, or one that failed: the program runs as far as the lease lets it, or is `saved_itself`."""
        with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
            self._ask("stay", on=False)
        with contextlib.suppress(OSError):
            self._scratch.drop_kept()  # of a save that failed
        self.marks.over()


class _Rested:
    """A file that appeared or changed, and then rested."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = self._now = self._stamp()
        self._since = time.monotonic()

    def _stamp(self) -> tuple[int, ...]:
        try:
            st = self._path.stat()
        except OSError:
            return ()
        return st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns

    def look(self) -> bool:
        """Whether it did."""
        stamp = self._stamp()
        if stamp != self._now:
            self._now, self._since = stamp, time.monotonic()
        return bool(stamp) and stamp != self._before and time.monotonic() - self._since >= REST_SECONDS


class _Said:
    """A new line of output that matches."""

    def __init__(self, read: Callable[[str, int, int], bytes], offset: int, pattern: re.Pattern[bytes]) -> None:
        self._read, self._at, self._pattern, self._rest = read, offset, pattern, b""

    def look(self) -> bool:
        """Whether there was one."""
        data = self._read("out", self._at, 1 << 20)
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return any(self._pattern.search(line) for line in lines)
