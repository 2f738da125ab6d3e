"""The agent's long tasks, one at a time (save, restore, finish), and the pins that keep the garbage collector away.

Order of writes, because each may be the last one before a crash. A checkpoint: chunks, manifest (both by the engine), output up
to the freeze, head entry. The end: output, result files, head entry. So a reader of an entry finds everything that it names.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from spotsurfer_wire import clock, head_log, json_codec, manifest, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Manifest, Stored
from spotsurfer_wire.messages import Condemned, Done, Head, Intent, SaveFacts, Spec, Want
from spotsurfer_wire.store.port import ObjectStore, StoreDenied, StoreError, StoreFull, StoreUnreachable

from spotsurfer_agent.control.facts import Outcome, Task
from spotsurfer_agent.control.log_upload import Logs
from spotsurfer_agent.control.mailbox import Fenced, Heads, InDoubt, Mailbox
from spotsurfer_agent.control.state_file import StateFile, StepBook
from spotsurfer_agent.control.time_limit import RunTime
from spotsurfer_agent.files import home_folder, staging
from spotsurfer_agent.host import hooks, steps
from spotsurfer_agent.host.hints import Hints
from spotsurfer_agent.ports.engine import Engine, EngineError, SaveRequest, WorkloadState
from spotsurfer_agent.prepare.inputs.delivery import JobInputs
from spotsurfer_agent.store.layers import Retry, RetryingStore, WriteFence

READ_TRIES = 5
READ_PAUSE_SECONDS = 2.0
HOOK_PAUSE_SECONDS, HOOK_PAUSE_MAX_SECONDS = 0.5, 5.0  # between two runs of a command that lets the job go on
CAME_BACK = "it came back: it could not go on where it was moved to"
TIME_LIMIT = "time limit"
NAMED = 5  # files that a sentence names
FORESEEN = (EngineError, staging.FilesError, StoreError, Fenced, ProtocolError)

T = TypeVar("T")


class CondemnedChunk(StoreError):
    """The collector is about to remove a chunk that the save relies on: the save must not be committed, but made again."""


class Pins:
    """Intents of one job's saves: keep the controller's collector away from what a save under way relies on.

    Collector and writer meet without a clock. The collector writes its list, waits, looks again at all manifests and only then
    removes; the writer makes its manifest and only then reads the list. So either the collector's second look finds the
    manifest, or the writer finds its chunk on the list and does not commit. The intent makes that last case rare: while one
    stands, no list is written.
    """

    def __init__(self, store: ObjectStore, job: str) -> None:
        self._store, self._job = store, job

    def begin(self, checkpoint: str, base: str | None) -> frozenset[str]:
        """Announce a save, before its first chunk is offered or assumed to be there; repeating it is harmless.

        Returns the names of chunks and packs that are about to be removed: the save must neither reuse them nor rely on
        finding them there. Raises StoreError.
        """
        intent = Intent(checkpoint, base, clock.utc_text())
        self._store.create(object_keys.intent_key(self._job, checkpoint), json_codec.encode(intent))
        return self._condemned()

    def check(self, chunks: Iterable[Stored]) -> None:
        """Call it when the manifest is in the store and its head entry is not. Raises CondemnedChunk, StoreError."""
        condemned = self._condemned()
        if condemned and (doomed := condemned.intersection(c.pack or c.digest for c in chunks)):
            raise CondemnedChunk(
                f"the collector is removing {len(doomed)} chunks that the checkpoint relies on: they are sent anew next time"
            )

    def end(self, checkpoint: str) -> None:
        """The save is committed, or will never be. Raises StoreError."""
        self._store.delete([object_keys.intent_key(self._job, checkpoint)])

    def _condemned(self) -> frozenset[str]:
        data = self._store.get(object_keys.condemned_key(self._job))
        return frozenset(json_codec.decode(Condemned, data).names) if data is not None else frozenset()


@dataclass
class Work:
    """Everything a task needs. `stage` says what a save is doing, for people."""

    job: str
    attempt: int
    engine: Engine
    store: WriteFence
    heads: Heads
    mailbox: Mailbox
    logs: Logs
    state: StateFile
    keys: Keys
    now: Callable[[], float]
    wait: Callable[[float], None]
    urgent: Callable[[], bool]  # the cloud takes the machine
    keeps: Callable[[], bool]  # a final save leaves the job frozen: it may come back
    goods: JobInputs | None
    pressed: bool = field(default=False, init=False)  # the job stands still for want of memory
    stage: str = field(default="", init=False)
    waits: str = field(default="", init=False)  # why the job is here and stands still, for people
    _drained: int = field(default=0, init=False)  # number of the order for the last final save
    _refused: str = field(default="", init=False)  # why our own commit refused
    _unknown: bool = field(default=False, init=False)  # its head entry may have been written, or may still be
    _stood_seconds: float = field(default=0.0, init=False)  # how long the job had stood still when a final save was settled
    _ran: float | None = field(default=None, init=False)  # how long the job had run when the save under way began
    _saved_at: float | None = field(default=None, init=False)  # when the last save ended, if the program has ended by it

    def __post_init__(self) -> None:
        self._patience = Retry(now=self.now, wait=self.wait)
        self._patient = RetryingStore(self.store, self._patience)  # for all but the head log
        self.ran = RunTime(self.state)
        self.steps = StepBook(self.state)  # what ran of the job, step by step
        self.hints = Hints(Path(self.engine.scratch()))  # that the job gives of its own accord

    def do(self, task: Task) -> Outcome:
        """Carry a task out; every foreseen failure becomes part of the outcome."""
        doing: dict[Task, Callable[[], Outcome]] = {
            Task.BOOT: self._boot,
            Task.BEGIN: self._begin,
            Task.STEP: self._step,
            Task.LIVE: lambda: self._save(final=False),
            Task.FINAL: lambda: self._save(final=True),
            Task.THAW: self._thaw,
            Task.SETTLE: self._settle,
            Task.PUBLISH: self._publish,
            Task.KILL: self._kill,
        }
        try:
            return doing[task]()
        except FORESEEN as e:
            kind = "restore" if isinstance(e, ProtocolError) and task is Task.BEGIN else "store"
            kind = e.kind if isinstance(e, EngineError | staging.FilesError) else kind
            return Outcome(task, self.now(), self._refused or str(e) or f"{task} failed", kind)
        finally:
            self.stage, self.waits, self._refused, self._unknown = "", "", "", False

    def _boot(self) -> Outcome:
        status = self.engine.adopt()
        ran_here = status.state is not WorkloadState.ABSENT or self.state.memory.between_steps
        if not ran_here and (problems := self.engine.preflight()):
            raise EngineError("start", " ".join(problems))
        if ran_here:
            self.logs.resume(self.state.memory.log_begin)
            self.state.update(began=True)  # the agent before us may have died before it wrote so
            self.steps.seen(status)
            self._run_on("restore", 0.0)  # the agent before us may have died before the job went on
        return Outcome(Task.BOOT, self.now())

    def _begin(self) -> Outcome:
        head, spec, began = self.heads.newest, self._spec(), self.now()
        if head is None:
            raise Fenced("the head log is empty")
        self.engine.kill()  # an earlier agent may have died in the middle of this
        self.engine.prepare(spec, self._progress)
        if head.checkpoint is None:
            first = self.steps.first(spec)
            self._bring(spec)
            home_folder.place(self._patient, spec, self.engine.scratch())
            staging.place_inputs(self._patient, spec, self.engine.scratch())
            if self.goods is not None:
                self.goods.delivery.place(spec, self.engine.scratch())
            self.store.check()  # bringing all that takes its time: somebody else may own the job by now
            self.engine.start(first)
            self.logs.begin({})
            self.state.update(began=True, ran_before=0.0)
            return Outcome(Task.BEGIN, self.now())
        image = self.manifest(head.checkpoint)
        if image is None:
            raise EngineError("restore", f"checkpoint {head.checkpoint} has no manifest: an older one must do")
        if why := self.engine.unfit(image):
            raise EngineError("refused", why)
        self._bring(spec)
        self.store.check()
        self.engine.restore(image, self.steps.taken_over(spec, image))
        self.logs.begin(image.log)
        self.state.update(began=True, restore_seconds=self.now() - began, ran_before=head.ran_seconds)
        self._run_on("restore", hooks.jump_since(image.at))
        return Outcome(Task.BEGIN, self.now(), kind="hook", note=self.engine.note)

    def _run_on(self, why: str, jump_seconds: float) -> None:
        """Let a job go on that stands still, once its user's command has succeeded. Raises EngineError("hook"), Fenced,
        StoreError if nobody wants it to any more; then it stands still yet.
        """
        pause = HOOK_PAUSE_SECONDS
        while self.engine.stands_still and (refused := self.engine.thaw(why, jump_seconds)):
            self.waits = f"{refused}; it is tried again"
            if self.urgent() or self._drain_asked:
                raise EngineError("hook", f"the job stood still until it had to leave: {refused}")
            self.store.check()
            self.wait(pause)
            pause = min(2 * pause, HOOK_PAUSE_MAX_SECONDS)

    def _seen_order(self) -> None:
        """An order to drain that is there now is about what is over."""
        desired = self.mailbox.mail.desired
        if desired is not None and desired.want is Want.DRAIN:
            self._drained = desired.sequence

    @property
    def _drain_asked(self) -> bool:
        desired = self.mailbox.mail.desired
        return desired is not None and desired.want is Want.DRAIN and desired.sequence > self._drained

    def _step(self) -> Outcome:
        """Start the next of the job's commands. Earlier notes of it count: an agent before us may have begun this."""
        status = self.engine.status()
        if status.saved_itself:
            return self._go_on()
        spec, log = self.steps.turn(self._spec(), status)
        self.engine.next_step(spec, log)
        self.steps.started()
        return Outcome(Task.STEP, self.now())

    def _go_on(self) -> Outcome:
        """Start the command again that ended by saving itself; until then it counts as frozen for that save."""
        runs = self.steps.runs
        self.engine.go_on(steps.at(self._spec(), runs[-1].number, runs))
        frozen = self.state.memory.frozen_seconds + (self.now() - self._saved_at if self._saved_at is not None else 0.0)
        self._saved_at = None
        self.state.update(frozen_seconds=frozen)
        return Outcome(Task.STEP, self.now())

    @property
    def unprotected(self) -> str:
        """Why nothing is saved of the step that runs, in one sentence; empty = it is saved."""
        spec, runs = self.mailbox.mail.spec, self.steps.runs
        return steps.unprotected(spec, runs[-1].number) if spec is not None and runs else ""

    def _bring(self, spec: Spec) -> None:
        """Bring what the job needs besides its command. Raises FilesError, StoreError; also if nobody wants it any more."""
        if self.goods is not None:
            self.goods.ready(spec, self._patient, self.engine.scratch(), self.store.check, self._progress)
            self.stage = ""

    def bring_ahead(self, spec: Spec, halt: Callable[[], None]) -> None:
        """Bring what the job needs before it comes. Raises FilesError, StoreError."""
        if self.goods is not None and (spec.fetches or spec.shares):
            self.goods.ahead(spec, self._patient, self.engine.scratch(), halt)

    def _spec(self) -> Spec:
        spec = self.mailbox.mail.spec
        if spec is None:
            raise StoreError("the job's specification was not read yet")
        return spec

    def manifest(self, checkpoint: str) -> Manifest | None:
        """What a checkpoint consists of; None if it does not exist. Raises StoreError, ProtocolError."""
        data = self._insist(lambda: self._patient.get(object_keys.manifest_key(self.job, checkpoint)))
        return manifest.decode(data, self.keys, self.job, checkpoint) if data is not None else None

    def _insist(self, ask: Callable[[], T]) -> T:
        """What the store answers. A store that stumbles for seconds must not cost an attempt, so it is asked again."""
        for tries in range(1, READ_TRIES + 1):
            try:
                return ask()
            except StoreError as e:  # one that can't be reached was asked again for long enough already
                if tries == READ_TRIES or isinstance(e, CondemnedChunk | StoreUnreachable):
                    raise
                self.wait(READ_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    # ---------------------------------------------------------------- saves

    def _save(self, *, final: bool) -> Outcome:
        """Announce a save, let the engine make it and `_commit` it, and count it."""
        head = self.heads.newest
        if head is None:
            raise Fenced("the head log is empty")
        if final and (self._spec().engine == "none" or self.unprotected):
            return self._left_unsaved()
        # Each try has its own number: a manifest that lost its race must never be overwritten by another.
        sequence = max(head.sequence, self.state.memory.save_sequence) + 1
        self.state.update(save_sequence=sequence)
        self.hints.heard()
        checkpoint = object_keys.checkpoint_id(self.attempt, sequence)
        request = SaveRequest(
            checkpoint=checkpoint,
            epoch=self.attempt,
            sequence=sequence,
            final=final,
            keep=final and self.keeps() and not self.pressed,
            cpu_seconds_before=self.steps.cpu_before,
            base=head.checkpoint,
            commit=self._commit,
            progress=self._progress,
            urgent=self.urgent(),
            pressed=self.pressed,
            condemned=Pins(self._patient, self.job).begin(checkpoint, head.checkpoint),
            why=self._why() if final else "save",
            steps=tuple(self.steps.runs),
        )
        self._saved_at, self._ran = None, self.ran.seconds
        try:
            saved = self.engine.save(request)
        except BaseException:
            self._run_on_after_all()
            raise
        finally:
            if not self._unknown:  # else a later entry of the head log ends the intent
                with contextlib.suppress(StoreError):  # without retries: the next save must not wait for this
                    Pins(self.store, self.job).end(checkpoint)
        self._saved_at = self.now() if self.engine.status().saved_itself else None
        self._count(saved)
        task = Task.FINAL if final else Task.LIVE
        return Outcome(task, self.now(), save=saved, kind="hook", note=self.engine.note)

    def _why(self) -> str:
        """Why the job leaves, for its user's command; see `host.hooks`."""
        desired = self.mailbox.mail.desired
        if desired is None or desired.want is not Want.DRAIN:
            return "notice"
        self._seen_order()
        return "notice" if self.urgent() else "move" if desired.keep else "suspend"

    def _run_on_after_all(self) -> None:
        """A job that was to leave and could not be saved runs on. If the cloud takes the machine it is saved again at once."""
        if not self.urgent():
            self._run_on("failed", 0.0)
        elif self.engine.stands_still:
            self.engine.let_go()

    def _count(self, saved: SaveFacts) -> None:
        memory = self.state.memory
        frozen = memory.frozen_seconds + saved.frozen_seconds
        self.state.update(saves=memory.saves + 1, frozen_seconds=frozen, last_save=dataclasses.asdict(saved))

    def _left_unsaved(self) -> Outcome:
        """Drain a job, or a step of it, that its user runs without checkpoints: it dies here, and begins again elsewhere.

        In this order, because nothing of it may run after its final entry; output first: it shows that the store takes writes.
        """
        status = self.engine.status()
        self._flush(dict(status.log or {}))
        self.steps.keep_used(status.cpu_seconds)
        self.engine.kill()
        self.heads.append(head_log.unsaved, patient=True)
        return Outcome(Task.FINAL, self.now())

    def _progress(self, stage: str) -> None:
        self.stage = stage

    def _flush(self, log: Mapping[str, int]) -> None:
        """All output up to there."""
        self._patience.ask(lambda: self.logs.flush(log))

    def _commit(self, image: Manifest) -> bool:
        """The last step of a save: output, then the head entry. False = it is not ours, and `_refused` says why."""
        self.stage = "committing"
        try:
            self._flush(image.log)
            self._unclaimed(image)
            self._unknown = True
            self._append(image)
            self._unknown = False
        except InDoubt:
            raise  # the job stays frozen: it must never run on after its final entry
        except (Fenced, StoreError, ProtocolError) as e:
            self._unknown &= not isinstance(e, Fenced | StoreDenied | StoreFull)
            self._refused = f"checkpoint {image.id} was not committed: {e}"
            return False
        return True

    def _append(self, image: Manifest) -> None:
        final, ran = image.kind == "final", self.ran.seconds if self._ran is None else self._ran
        if final:
            self.steps.keep_used(image.cpu_seconds - self.steps.cpu_before)

        def entry(base: Head) -> Head:
            return head_log.committed(base, image.id, image.epoch, image.sequence, (image.cpu_seconds, ran), final)

        self.heads.append(entry, patient=final)

    def _unclaimed(self, image: Manifest) -> None:
        """Check that the collector claims no chunk of a manifest that is in the store. Raises CondemnedChunk, StoreError."""
        self._insist(lambda: Pins(self._patient, self.job).check(image.chunks))

    def _settle(self) -> Outcome:
        """A final save whose agent died: complete it if its manifest is there, else let the job run on.

        Without a manifest its head entry was never begun, so none can still be on its way. With it the entry may be, and only
        winning the number ourselves makes sure.
        """
        self.heads.refresh()
        status = self.engine.status()
        pending, self._stood_seconds = status.pending_final, status.pending_seconds
        if pending is None:
            return Outcome(Task.SETTLE, self.now())
        image = self.manifest(pending)
        if image is not None and not self.heads.view.own_final:
            self._flush(image.log)
            try:
                self._unclaimed(image)
            except CondemnedChunk:
                self.engine.settle(False)
                raise
            self._append(image)
        if image is None or not self.keeps() or self.pressed:
            self.engine.settle(image is not None)
            self._seen_order()
            self._run_on("failed", self._stood_seconds)
        return Outcome(Task.SETTLE, self.now())

    def _thaw(self) -> Outcome:
        """The kept job is ours again. An entry of our own comes first: winning it proves that nobody else has the job."""
        self.heads.append(head_log.renewed, patient=False)
        memory, status = self.state.memory, self.engine.status()
        stood = status.pending_seconds
        if (image := self._shared_back(status.pending_final)) is not None:
            self.engine.bring_back(image)
        counted = (memory.last_save or {}).get("frozen_seconds", 0.0)
        self.engine.settle(False)
        self.state.update(frozen_seconds=memory.frozen_seconds + max(stood - counted, 0.0))
        self._seen_order()
        self._run_on("return", stood)
        return Outcome(Task.THAW, self.now(), kind="back", note=CAME_BACK)

    def _shared_back(self, pending: str | None) -> Manifest | None:
        """The final save of a job that may write to a shared folder, if the save says how long its files there were.

        A manifest that can't be read must not keep the job from going on: it runs here, and its memory is whole.
        """
        if pending is None or all(share.read_only for share in self._spec().shares):
            return None
        with contextlib.suppress(ProtocolError, StoreError):
            image = self.manifest(pending)
            return image if image is not None and image.shared else None
        return None

    def _count_left(self, stood_seconds: float) -> None:
        """Count our final save if an agent before us died before it did so.

        If its base can't be read, all of it counts as new. Raises StoreError, ProtocolError.
        """
        head, counted = self.heads.newest, self.state.memory.last_save or {}
        if not self.heads.view.own_final or head is None or head.checkpoint in (None, counted.get("checkpoint")):
            return
        image = self.manifest(head.checkpoint)
        if image is None or (image.kind, image.epoch) != ("final", self.attempt):
            return  # the job was left unsaved
        known: set[str] = set()
        with contextlib.suppress(StoreError, ProtocolError):
            base = self.manifest(image.base) if image.base is not None else None
            known = {chunk.digest for chunk in base.chunks} if base is not None else known
        new = sum(chunk.size for chunk in image.chunks if chunk.digest not in known)
        frozen = stood_seconds or image.frozen_seconds
        facts = (image.id, image.sequence, image.kind, image.image_bytes, new, frozen, frozen)
        self._count(SaveFacts(*facts, memory_bytes=image.memory_bytes))

    # ---------------------------------------------------------------- the end

    def _publish(self) -> Outcome:
        self.heads.refresh()
        if self.heads.view.own_done:
            return Outcome(Task.PUBLISH, self.now())
        status, spec = self.engine.status(), self._spec()
        log = dict(status.log or {})
        self._flush(log)
        prefix = object_keys.output_prefix(self.job, self.attempt)
        out = staging.publish(self._patient, spec, prefix, self.engine.scratch())
        home_folder.publish(self._patient, spec, self.attempt, self.engine.scratch())
        runs = self.steps.close(status)
        code = steps.exit_code(runs)
        lacks = "" if code else _lacks(out)
        ended_by = "" if self.state.memory.time_up is None else TIME_LIMIT
        done = Done(code, "exited", out.sizes, log, runs, out.digests, ended_by, "" if spec.outputs_optional else lacks)
        cpu = self.steps.cpu_before + status.cpu_seconds
        self.steps.keep_used(status.cpu_seconds)
        self.heads.append(lambda base: head_log.ended(base, done, cpu), patient=True)
        with contextlib.suppress(StoreError):  # nobody wants to see what there was before
            self.store.delete([x.key for x in self.store.list(object_keys.partials_prefix(self.job))])
        return Outcome(Task.PUBLISH, self.now(), note="; ".join(filter(None, (lacks, _passed_over(out)))))

    def _kill(self) -> Outcome:
        left = self.engine.status()
        if self.closed and (spec := self.mailbox.mail.spec) is not None and spec.home and self.state.memory.began:
            self._send_home(spec)
        self.engine.kill()
        with contextlib.suppress(StoreError, ProtocolError):
            self._count_left(left.pending_seconds or self._stood_seconds)
        if self.goods is not None:
            self.goods.drop()
        return Outcome(Task.KILL, self.now())

    @property
    def closed(self) -> bool:
        """Whether the job was ended while it was ours: nobody else goes on with it."""
        head = self.heads.newest
        return head is not None and head.done is not None and head.done.reason != "exited" and head.epoch == self.attempt

    def _send_home(self, spec: Spec) -> None:
        """Send what a job that was ended made of its folder. It goes beside the fence: no head entry follows, and nobody has
        the job any more. A failure is no reason to keep the machine.
        """
        self.engine.end()
        with contextlib.suppress(StoreError, staging.FilesError):
            home_folder.publish(RetryingStore(self.store.behind), spec, self.attempt, self.engine.scratch())


def _lacks(out: staging.Published) -> str:
    """What the user asked for and does not get."""
    parts = []
    if out.missing:
        parts.append(f"no file matched the outputs {', '.join(out.missing)}")
    if out.unnamed:
        parts.append(f"not published, because their names are no UTF-8 or can't be printed: {', '.join(out.unnamed[:NAMED])}")
    return "; ".join(parts)


def _passed_over(out: staging.Published) -> str:
    """A link to an input, which is there already, or a socket that is left over: nobody misses it."""
    return f"passed over, because they are no files of the job: {', '.join(out.skipped[:NAMED])}" if out.skipped else ""
