"""Marks on disk of a program that saves itself: the next agent process learns from them what this one ordered."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.ports.engine import Status, WorkloadState


class Marks:
    """The marks of one folder's job.

    Told: a save is under way. Final: its final entry may exist, so the job must not run on. Late: a save is over, and the
    program may still end because of it, or has ended: that is no end of the job. While the program is being started again, Late
    also holds what it had used, because its exit status is removed before the new one runs.
    """

    def __init__(self, folder: Path) -> None:
        self._final, self._told, self._late = folder / "app-final", folder / "app-told", folder / "app-late"

    def tell(self, done_exit: int | None) -> None:
        """The program is about to be told to save itself; `done_exit`: how it ends by that, if it does."""
        shim_protocol.write_durably(self._told, {"done_exit": done_exit})

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
        told = shim_protocol.read_json(self._told) or {}
        if told.get("done_exit") is None:
            self._told.unlink(missing_ok=True)
        else:
            self._told.replace(self._late)

    def again(self, ended: Status) -> None:
        """The program ended like this and is about to be started again."""
        note = {"done_exit": ended.exit_code, "log": ended.log, "cpu_seconds": ended.cpu_seconds}
        shim_protocol.write_durably(self._late, note)

    def runs(self) -> None:
        """An agent takes over a job that runs: the one before may have died when it had just started it again."""
        if "log" in (shim_protocol.read_json(self._late) or {}):
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
        """The status; `saved_itself` if the program ended by saving itself while nobody waited for that."""
        if status.state is WorkloadState.RUNNING or (late := shim_protocol.read_json(self._late)) is None:
            return status
        if status.state is WorkloadState.EXITED:
            return dataclasses.replace(status, saved_itself=status.exit_code == late.get("done_exit") and not self.is_told)
        if "log" not in late:
            return status
        # The shim is gone: only this mark knows how the program ended.
        used = {"exit_code": late["done_exit"], "log": late["log"], "cpu_seconds": float(late["cpu_seconds"])}
        return dataclasses.replace(status, state=WorkloadState.EXITED, saved_itself=True, **used)
