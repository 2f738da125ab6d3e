"""Ways that save nothing: save method `none`, and the stand-in for a real engine that can't be made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec

from spotsurfer_agent.engines.job_host import SaveMethod
from spotsurfer_agent.ports.engine import EngineError, Protection, SaveRequest, SharedNews, Status, Still, WorkloadState


class NoSave(SaveMethod):
    """None: the job starts over on the next machine. The last rung of the ladder."""

    name = "none"

    def save(self, spec: Spec, request: SaveRequest) -> SaveFacts:  # noqa: ARG002 -- whatever it says
        """Refused."""
        raise EngineError(
            "save", f"{request.checkpoint} can't be made: the job is run without checkpoints and starts over elsewhere"
        )

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Refused."""
        raise EngineError(
            "refused",
            f"checkpoint {manifest.id} of {spec.job} was made by engine {manifest.engine!r}, this job is run without one",
        )


class UnfitEngine:
    """Runs nothing, and its preflight gives the reason, so that the report does too.

    `maybe_running`: an earlier agent had the job here, and nobody knows whether it is dead.
    """

    name = "unfit"
    note = ""

    def __init__(self, why: str, maybe_running: bool) -> None:
        self._why, self._maybe_running = why, maybe_running

    def protection(self) -> Protection:
        """Nothing runs."""
        return Protection()

    def shared(self) -> SharedNews:
        """Nothing runs."""
        return SharedNews()

    def look(self) -> None:
        """There is nothing to look at."""

    def unfit(self, manifest: Manifest, *, whole: bool = True) -> str:  # noqa: ARG002 -- as the port names it
        """Everything speaks against it."""
        return f"checkpoint {manifest.id} can't be restored: {self._why}"

    def signal(self, name: str) -> None:
        """Nothing runs."""

    def expect(self, manifest: Manifest | None) -> None:
        """There is nothing to do it with."""

    def await_end(self, seconds: float) -> bool:
        """Nothing runs."""
        time.sleep(seconds)
        return False

    def expect_start(self) -> None:
        """There is nothing to start it with."""

    def preflight(self) -> list[str]:
        """Why this machine can't protect a job."""
        return [self._why]

    def prepare(self, spec: Spec, progress: Callable[[str], None]) -> None:
        """There is nothing to do it with; `start` gives the reason."""

    def start(self, spec: Spec) -> None:
        """Refused."""
        raise EngineError("start", f"{spec.job} can't be started: {self._why}")

    def next_step(self, spec: Spec, log: Mapping[str, int]) -> None:
        """Refused."""
        raise EngineError("start", f"{spec.job} can't go on after {log} bytes of output: {self._why}")

    def go_on(self, spec: Spec) -> None:
        """Refused."""
        raise EngineError("start", f"{spec.job} can't go on: {self._why}")

    def save(self, request: SaveRequest) -> SaveFacts:
        """Refused."""
        raise EngineError("save", f"{request.checkpoint} can't be made: {self._why}")

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Refused."""
        raise EngineError("refused", f"checkpoint {manifest.id} of {spec.job} can't be restored: {self._why}")

    def status(self) -> Status:
        """Nothing runs."""
        return Status(WorkloadState.ABSENT)

    def unguard(self) -> None:
        """Nothing is guarded."""

    def hold(self) -> None:
        """Nothing to do."""

    def release(self) -> None:
        """Nothing to do."""

    def end(self) -> None:
        """No job is here."""

    def kill(self) -> None:
        """Refused if something may run: the agent must not report a death that it can't bring about."""
        if self._maybe_running:
            raise EngineError("start", f"the job can't be killed: {self._why}")

    def adopt(self) -> Status:
        """Nothing runs."""
        return self.status()

    def bring_back(self, image: Manifest) -> None:
        """Nothing is kept here."""

    def settle(self, committed: bool) -> None:
        """No save can be pending here."""
        if committed:
            raise EngineError("save", self._why)

    @property
    def stands_still(self) -> bool:
        """Nothing does."""
        return False

    def thaw(self, why: str, jump_seconds: float) -> str:  # noqa: ARG002 -- as the port names them
        """Nothing to do."""
        return ""

    def let_go(self) -> None:
        """Nothing to do."""

    def read_log(self, stream: str, offset: int, limit: int) -> bytes:  # noqa: ARG002 -- as the port names them
        """No output."""
        return b""

    @contextlib.contextmanager
    def still(self) -> Iterator[Still]:
        """There is none."""
        yield Still(self.scratch(), True)

    def scratch(self) -> str:
        """There is none."""
        return "/nonexistent"
