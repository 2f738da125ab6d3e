"""Marks on disk of a program that saves itself: the next agent process knows what this one had told it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from spotsurfer_agent import shimwire
from spotsurfer_agent.engines.port import Status, WorkloadState


class Marks:
    """Of the job of one folder.

    Told: a save is under way. Final: its final entry may exist, so the job must not run on. Late: a save is over, and the
    program may still end by it, or has: that is no end of the job. Late also says what it had used where it is being started
    again: its exit status goes before the new one runs.
    """

    def __init__(self, folder: Path) -> None:
        self._final, self._told, self._late = folder / "app-final", folder / "app-told", folder / "app-late"

    def tell(self, done_exit: int | None) -> None:
        """The program is about to be told to save itself; `done_exit`: how it ends by that, if it does."""
        shimwire.write_durably(self._told, {"done_exit": done_exit})

    def final(self) -> None:
        """The final entry of the save under way may exist from now on."""
        self._final.touch()

    @property
    def is_told(self) -> bool:
        """A save is under way, or was when an agent died."""
        return self._told.exists()

    @property
    def is_final(self) -> bool:
        """Nothing of the job may run any more."""
        return self._final.exists()

    def over(self) -> None:
        """The save has ended, well or not, and the job goes on."""
        self._final.unlink(missing_ok=True)
        told = shimwire.read_json(self._told) or {}
        if told.get("done_exit") is None:
            self._told.unlink(missing_ok=True)
        else:
            self._told.replace(self._late)

    def again(self, ended: Status) -> None:
        """It is about to be started again, having ended so."""
        note = {"done_exit": ended.exit_code, "log": ended.log, "cpu_seconds": ended.cpu_seconds}
        shimwire.write_durably(self._late, note)

    def runs(self) -> None:
        """An agent takes over a job that runs: the one before may have died when it had just started it again."""
        if "log" in (shimwire.read_json(self._late) or {}):
            self._late.unlink(missing_ok=True)

    def ended(self) -> None:
        """No save is under way: nothing of the job runs any more, or the program could not be told."""
        for mark in (self._final, self._told):
            mark.unlink(missing_ok=True)

    def forget(self) -> None:
        """The job has ended, or was started again."""
        self.ended()
        self._late.unlink(missing_ok=True)

    def seen(self, status: Status) -> Status:
        """The same; of a program that ended as it saved itself, while nobody waits for that, it is said."""
        if status.state is WorkloadState.RUNNING or (late := shimwire.read_json(self._late)) is None:
            return status
        if status.state is not WorkloadState.EXITED:
            return self._between(status, late)
        return dataclasses.replace(status, saved_itself=status.exit_code == late.get("done_exit") and not self.is_told)

    def _between(self, status: Status, late: dict[str, Any]) -> Status:
        """Its keeper is gone, and how it ended is noted here alone, if it ended by saving itself."""
        if "log" not in late:
            return status
        used = {"exit_code": late["done_exit"], "log": late["log"], "cpu_seconds": float(late["cpu_seconds"])}
        return dataclasses.replace(status, state=WorkloadState.EXITED, saved_itself=True, **used)
