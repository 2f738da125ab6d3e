"""Save method `app`: the program saves itself when it is told to, and its files are the checkpoint.

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
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, SelfSave, Spec
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.chunks.chunker import Sender
from spotsurfer_agent.chunks.writer import Writer
from spotsurfer_agent.engines.job_host import SaveMethod
from spotsurfer_agent.files import staging, tree
from spotsurfer_agent.host import hooks, shim_protocol, steps
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, WorkloadState, blame, plainly
from spotsurfer_agent.restore import compatibility

LOOK_SECONDS = 0.05
HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)  # no program dies of them: signal(7)
REST_SECONDS = 0.5  # a file that changed is whole when it rested for so long
FAILURES = (StoreError, OSError, tree.Unsavable, shim_protocol.ShimGone, shim_protocol.ShimRefused)


class AppSave(SaveMethod):
    """By the program itself."""

    name = "app"

    def save(self, spec: Spec, request: SaveRequest) -> SaveFacts:
        """Tell the program, keep its files. Raises EngineError("save"), the job then runs on; what `commit` raises passes."""
        status = self.host.status()
        if spec.app is None:
            raise EngineError("save", "nothing tells the program to save itself: add [app] to the job file")
        if status.state is not WorkloadState.RUNNING or status.held:
            raise EngineError("save", f"there is nothing to save: the job is {'held still' if status.held else status.state}")
        request.progress("asking")
        began = time.monotonic()
        try:
            exited = self._told(spec.app, spec)
        except EngineError:
            self.host.marks.over()
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
        host, files = self.host, self.host.scratch_folder
        if (why := self.unfit(manifest, spec, whole=True)) is not None:
            raise EngineError("refused", why)
        host.world.bring(spec)
        try:
            files.empty()
            reader = Reader(host.store, host.job, host.keys, host.limits)
            tree.build(files.path, manifest.scratch, manifest.chunks, reader)
            files.make()
            host.start_command(steps.again(spec), dict(manifest.log))
        except (*FAILURES, BadChunk, tree.UnsafePath) as e:
            host.kill()
            raise EngineError(blame(e), f"checkpoint {manifest.id} can't be restored: {plainly(e)}") from e

    def recover(self) -> None:
        """A job that was being saved by an agent that died goes on, unless its final entry may exist."""
        if self.host.marks.is_final:
            self._gone()
        else:
            self._goes_on()

    # ------------------------------------------------------------ telling it, and the sign that it has done so

    def _told(self, app: SelfSave, spec: Spec) -> bool:
        """Tell the program to save itself and wait until it has; whether it ended by that. Raises EngineError("save")."""
        try:
            self._listens(app)
            folder = staging.job_folder(self.host.scratch(), spec)
            sign = self._sign(app, folder)
            self.host.marks.tell(app.done_exit)
            self._tell(app, folder)
        except (OSError, tree.UnsafePath, hooks.HookFailed, shim_protocol.ShimGone) as e:
            if not app.command:  # a command may have told it nevertheless
                self.host.marks.ended()
            raise EngineError("save", f"the program could not be told to save itself: {e}") from e
        end = time.monotonic() + app.deadline_seconds
        while not sign():
            now = self.host.status()
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
        root, end = int(self.host.shim.ask("status")["root_pid"]), time.monotonic() + app.deadline_seconds
        while not any(procfs.runs_own(command) and procfs.takes(command, number) for command in procfs.children(root)[:1]):
            if time.monotonic() > end:
                raise EngineError(
                    "save",
                    f"the job's command would die of SIG{app.signal}, so it was not told to save itself: the program must "
                    "catch the signal, and a shell that starts the program must do so with exec",
                )
            time.sleep(LOOK_SECONDS)

    def _tell(self, app: SelfSave, folder: Path) -> None:
        root = int(self.host.shim.ask("status")["root_pid"])
        if app.signal:
            os.kill(root, signal.Signals[f"SIG{app.signal}"])  # its init hands it on to the whole group
        elif app.file:
            top, owner = self.host.scratch_folder.path, Path(f"/proc/{root}").stat()
            # The job may have put links anywhere below.
            tree.make_empty(top, (folder / app.file).relative_to(top).as_posix(), owner.st_uid, owner.st_gid)
        else:
            self.host.run_inside(app.command, app.deadline_seconds)

    def _sign(self, app: SelfSave, folder: Path) -> Callable[[], bool]:
        """What to ask again and again, from before it is told, whether the program has saved itself."""
        if app.done_file:
            return _Rested(folder / app.done_file).look
        if app.done_output:
            printed = (self.host.status().log or {}).get("out", 0)
            return _Said(self.host.read_log, printed, re.compile(app.done_output.encode())).look
        return (lambda: False) if app.done_exit is not None else (lambda: True)

    # ------------------------------------------------------------ keeping what it wrote

    def _kept(self, request: SaveRequest) -> tuple[Manifest, SaveFacts]:
        """Everything but the head entry; the caller fills in how long it took until that is there."""
        host, files = self.host, self.host.scratch_folder
        request.progress("freeze")
        known = host.bases.of(request.base).known
        if not request.final:
            files.copy_ahead(request.checkpoint, known, host.pids)
        files.sync()
        frozen_at = time.monotonic()
        host.shim.ask("stay", on=True)  # by the shim, which also knows whether the lease lets it go on
        host.shim.cgroup().freeze()  # raises if something does not stop
        host.shim.ask("status")  # the second answer comes after everything in the pipes was read
        log, cpu = dict(host.shim.ask("status")["log"]), host.status().cpu_seconds + request.cpu_seconds_before
        listed, at_ns = files.capture(request.checkpoint, known, stays_frozen=request.final), files.now_ns()
        if not request.final:
            host.shim.ask("stay", on=False)
        frozen = time.monotonic() - frozen_at
        request.progress("upload")
        with Writer(host.store, host.job, host.keys, host.limits, known, request.condemned) as writer:
            capture = listed()
            try:
                entries = Sender(writer).send(capture.entries, capture.where, capture.known)
            finally:
                capture.drop()
        files.remember(capture, entries, writer.table, at_ns)
        image = Manifest(
            id=request.checkpoint,
            job=host.job,
            epoch=request.epoch,
            sequence=request.sequence,
            kind="final" if request.final else "live",
            engine=self.name,
            facts={**self.plain_facts(), **compatibility.step(request.steps)},
            image=[],
            scratch=entries,
            log=log,
            init_pipes={},
            cpu_seconds=cpu,
            frozen_seconds=frozen,
            image_bytes=sum(e.extents.bytes for e in entries),
            at=clock.utc_text(),
            base=request.base,
            chunks=writer.table.rows,
            lineage=host.keys.lineage,
            steps=list(request.steps),
        )
        key, data = object_keys.manifest_key(image.job, image.id), manifest.encode(image, host.keys)
        if not host.store.create(key, data) and host.store.get(key) != data:
            raise EngineError("save", f"another manifest of checkpoint {image.id} is in the store already")
        if request.final:
            host.marks.final()
        sent = writer.sent_bytes
        return image, SaveFacts(image.id, image.sequence, image.kind, image.image_bytes, sent, frozen, 0.0, memory_bytes=0)

    # ------------------------------------------------------------ going on

    def _gone(self) -> None:
        """Kill it after its final save. If it ended by itself, as it was told to, that is no end of the command."""
        # First, because without our marks it would count as the job's end.
        (self.host.folder / shim_protocol.EXIT).unlink(missing_ok=True)
        self.host.end()
        self.host.marks.forget()

    def _goes_on(self) -> None:
        """After a live save, or one that failed: the program runs as far as the lease lets it, or is `saved_itself`."""
        with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
            self.host.shim.ask("stay", on=False)
        with contextlib.suppress(OSError):
            self.host.scratch_folder.drop_kept()  # of a save that failed
        self.host.marks.over()


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
