"""Whether a machine that stands by could take the job now. The controller drains nobody for one that could not.

In this order: what is known of the machine is compared with what the newest checkpoint needs, which takes one small object;
then root, shared file systems and inputs are brought; then the files that could be looked at only now are compared. Who does
not answer is asked again, ever more seldom, while the job runs on where it is: another machine would get no answer either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.engines.port import EngineError
from spotsurfer_agent.gate import GateShut
from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.storeport import StoreError
from spotsurfer_agent.work import Work

log = logging.getLogger(__name__)

PAUSES_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)  # between tries for what nobody gives; the last one again and again
UNFIT = ("refused", "image", "input")  # kinds of errors that speak against this machine, or against any


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known at one instant. With neither reason the job may come."""

    waits: str = ""  # why the job should not come yet, in a sentence's second half
    unfit: str = ""  # why it can't go on here
    kind: str = ""  # of that; "" = facts speak against it


NOT_YET = Standing("it is compared with what the job needs")
READY = Standing()


class _Unanswered(Exception):
    """Somebody whom the job needs does not answer. `kind` is what becomes of it in the end."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass
class Readiness:
    """Of one machine for its job. `look` may take long: it belongs into a thread of its own. Durations in seconds."""

    work: Work
    halt: Callable[[], None]  # raises GateShut where the job does not come any more
    limit_seconds: float  # after so long without an answer the machine gives up
    standing: Standing = field(default=NOT_YET, init=False)
    _for: str | None = field(default=None, init=False)  # checkpoint of which all is known; "" = there is none yet
    _tries: int = field(default=0, init=False)
    _again_at: float = field(default=float("-inf"), init=False)
    _unanswered_since: float | None = field(default=None, init=False)

    def look(self) -> None:
        """Compare and bring, unless all is known of the newest checkpoint. What comes of it is in `standing`."""
        spec, target = self.work.mailbox.mail.spec, self._newest()
        if spec is None or target is None or target == self._for or self.work.now() < self._again_at:
            return
        try:
            self._told(self._looked(spec, target), target)
        except GateShut:
            return
        except _Unanswered as e:
            self._wait(e)
        except EngineError as e:
            known = e.kind in UNFIT
            self._told(Standing(unfit=str(e), kind=e.kind) if known else READY, None if known else target)
        except StoreError as e:
            self._later(Standing(f"the store does not answer: {e}"))

    @property
    def told(self) -> Standing:
        """What is known now; where there is nothing to find out, that is known at once."""
        spec = self.work.mailbox.mail.spec
        simple = spec is not None and self._newest() == "" and not _brings(spec)
        return READY if simple else self.standing

    def _newest(self) -> str | None:
        """The newest checkpoint; "" where none is to be compared with, None where that is not known."""
        head = self.work.heads.newest
        if head is None:  # of a job that nobody was granted yet the log is empty
            return "" if self.work.mailbox.mail.head_at > float("-inf") else None
        # A job that was over and gets a machine goes back to a checkpoint which only the grant names.
        return "" if head.done is not None else head.checkpoint or ""

    def check(self) -> None:
        """Raises EngineError where nothing should be fetched for the job yet."""
        told = self.standing
        if told.waits or told.unfit:
            raise EngineError(told.kind or "refused", told.unfit or told.waits)

    # ------------------------------------------------------------ one look

    def _looked(self, spec: Spec, target: str) -> Standing:
        image = self._image(target) if target else None
        brings = _brings(spec)
        if image is not None and (why := self.work.engine.unfit(image, whole=not brings)):
            return Standing(unfit=why)
        if image is not None:
            self.halt()  # to read it may have taken long: what is started for a job that is here already would be in its way
            self.work.engine.expect(image)
        if not brings:
            return READY
        self._bring(spec)
        return Standing(unfit=self.work.engine.unfit(image) if image is not None else "")

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
        except GateShut:
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

    def _wait(self, e: _Unanswered) -> None:
        now = self.work.now()
        since = self._unanswered_since = now if self._unanswered_since is None else self._unanswered_since
        over = now - since >= self.limit_seconds
        self._later(Standing(unfit=str(e), kind=e.kind) if over else Standing(f"{e}; it is asked again"))

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
