"""What one attempt knows of its job's steps, kept in the agent's state file: a next agent process goes on between two steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from spotsurfer_agent import clock, stepping
from spotsurfer_agent.engines.port import Status, WorkloadState
from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.statefile import Memory, StateFile
from spotsurfer_agent.steps import MAIN, StepRun


def runs_of(memory: Memory) -> list[StepRun]:
    """The steps that began, oldest first."""
    return [StepRun(**run) for run in memory.steps]


def used(memory: Memory, newest: float) -> float:
    """CPU time of this attempt, seconds, where the processes that run now, or ran last, used `newest` of it."""
    return max(memory.cpu_told, memory.cpu_steps + (0.0 if memory.between_steps else newest))


class StepBook:
    """The runs of one job's steps. Whoever starts something writes it down here first."""

    def __init__(self, state: StateFile, utc: Callable[[], str] = clock.utc_text) -> None:
        self._state, self._utc = state, utc

    @property
    def runs(self) -> list[StepRun]:
        """The steps that began, oldest first; the last one is the newest."""
        return runs_of(self._state.memory)

    @property
    def cpu_before(self) -> float:
        """CPU time of the job before the processes that run now, seconds: other attempts, and steps that ended here."""
        return self._state.memory.cpu_before + self._state.memory.cpu_steps

    def first(self, spec: Spec) -> Spec:
        """The job begins with its first step: what is to be started."""
        run = stepping.begun(spec, 0, {}, self._utc())
        self._take(0.0, {}, [run])
        return stepping.at(spec, 0)

    def taken_over(self, spec: Spec, image: Manifest) -> Spec:
        """The job goes on in the step that a checkpoint was made in: what is to be restored."""
        runs = image.steps or [stepping.begun(spec, 0, {}, "")]
        self._take(image.cpu_seconds, dict(image.log), runs)
        return stepping.at(spec, runs[-1].number, runs)

    def _take(self, cpu_before: float, log: dict[str, int], runs: list[StepRun]) -> None:
        steps = [dataclasses.asdict(run) for run in runs]
        self._state.update(cpu_before=cpu_before, cpu_steps=0.0, cpu_told=0.0, log_begin=log, steps=steps, between_steps=False)

    def keep_used(self, newest: float) -> None:
        """Keep what this attempt used before its end is told: an agent that comes after us can't see it any more."""
        self._state.update(cpu_told=used(self._state.memory, newest))

    def due(self, spec: Spec | None, status: Status) -> int | None:
        """The step that is to be started now, because the one before it has ended, or because it ended as it saved itself."""
        runs = self.runs
        if spec is None or not runs:
            return None
        if status.saved_itself or self._noted(status):
            return runs[-1].number
        if status.state is not WorkloadState.EXITED:
            return None
        return stepping.following(spec, [*runs[:-1], dataclasses.replace(runs[-1], exit_code=status.exit_code)])

    def _noted(self, status: Status) -> bool:
        """An agent wrote down the end of a step, and has not started the next: maybe it died then."""
        m = self._state.memory
        return m.between_steps and (status.state is WorkloadState.ABSENT or status.step < m.steps[-1]["number"])

    def turn(self, spec: Spec, status: Status) -> tuple[Spec, Mapping[str, int]]:
        """Write down how the step ended and which one follows; what is to be started, and how much output there is already."""
        number = self.due(spec, status)
        assert number is not None, "no step is due"
        if not self._noted(status):
            runs, here = self._closed(status), self._state.memory.cpu_steps + status.cpu_seconds
            runs.append(stepping.begun(spec, number, runs[-1].log_end, self._utc()))
            self._state.update(steps=[dataclasses.asdict(run) for run in runs], cpu_steps=here, between_steps=True)
        runs = self.runs
        return stepping.at(spec, number, runs), runs[-1].log

    def seen(self, status: Status) -> None:
        """An agent that takes over sees the job: the one before may have died as soon as it had started the newest step."""
        if self.runs and status.state is not WorkloadState.ABSENT and status.step == self.runs[-1].number:
            self.started()

    def started(self) -> None:
        """The newest step runs."""
        self._state.update(between_steps=False)

    def close(self, status: Status) -> list[StepRun]:
        """The last step has ended: note it and return all runs."""
        runs = self._closed(status)
        self._state.update(steps=[dataclasses.asdict(run) for run in runs])
        return runs

    def _closed(self, status: Status) -> list[StepRun]:
        """All runs, the newest one ended as the workload did."""
        runs = self.runs or [StepRun(MAIN, 0)]  # the agent that started it knew of no steps
        spent = sum(run.cpu_seconds for run in runs[:-1])
        cpu = max(0.0, self.cpu_before + status.cpu_seconds - spent)
        return [*runs[:-1], stepping.ended(runs[-1], status.exit_code, status.log or {}, cpu, self._utc())]
