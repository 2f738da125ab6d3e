"""Which step comes next, and what a specification says of one. Pure.

A job without `steps` has one step, `main`. The steps that began are kept as a list of runs, the newest last: it is part of each
manifest, so a step that was restored knows what ran before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from spotsurfer_wire.messages import MAIN, Spec, Step, StepRun


def steps_of(spec: Spec) -> list[Step]:
    """All steps of a job; one at least."""
    return spec.steps or [Step(MAIN, spec.command)]


def following(spec: Spec, runs: Sequence[StepRun]) -> int | None:
    """The number of the step after the newest run, which ended; None = it was the last.

    After a failure only steps with `always` run.
    """
    failed = bool(exit_code(runs))
    for number, step in enumerate(steps_of(spec)):
        if number > runs[-1].number and (step.always or not failed):
            return number
    return None


def exit_code(runs: Sequence[StepRun]) -> int | None:
    """The job's exit code, as far as it ran: that of the first step that failed, else of the newest."""
    codes = [run.exit_code for run in runs]
    return next((code for code in codes if code), codes[-1] if codes else None)


def begun(spec: Spec, number: int, log: Mapping[str, int], at: str) -> StepRun:
    """A step that is about to run; its output begins at `log`."""
    return StepRun(steps_of(spec)[number].name, number, dict(log), at)


def ended(run: StepRun, code: int | None, log: Mapping[str, int], cpu_seconds: float, at: str) -> StepRun:
    """A step after its end."""
    return dataclasses.replace(run, exit_code=code, log_end=dict(log), cpu_seconds=cpu_seconds, ended=at)


def at(spec: Spec, number: int, runs: Sequence[StepRun] = ()) -> Spec:
    """The specification of a job that consists of this step alone; `runs` are the ones before it.

    [app] speaks of the step `main`: no other one is told to save itself.
    """
    step, before = steps_of(spec)[number], [run for run in runs if run.number < number]
    environment = {"SPOTSURFER_STEP": step.name, **of_task(spec), **spec.environment}
    if before:
        environment["SPOTSURFER_EXIT_CODE"] = str(exit_code(before) or 0)  # for a step that runs whatever happened
    app = spec.app if not spec.steps or step.name == MAIN else None
    return dataclasses.replace(spec, command=step.command, environment=environment, app=app, step=number)


def of_task(spec: Spec) -> dict[str, str]:
    """Variables that tell a task of an array which one it is."""
    return {"SPOTSURFER_ARRAY_ID": spec.array, "SPOTSURFER_TASK": str(spec.task)} if spec.array else {}


def again(spec: Spec) -> Spec:
    """The specification with the command that goes on from what a program saved itself."""
    if spec.app is None or not spec.app.restart_command:
        return spec
    return dataclasses.replace(spec, command=spec.app.restart_command)


def unprotected(spec: Spec, number: int) -> str:
    """Why nothing is saved while this step runs, in one sentence; empty = it is saved like any job."""
    step = steps_of(spec)[number]
    if spec.engine == "none":
        return ""  # the choice of the engine gives that reason
    if not step.protect:
        return f"the step {step.name!r} is not protected: when its machine goes, it begins again elsewhere"
    if spec.engine == "app" and spec.steps and step.name != MAIN:
        return (
            f"the step {step.name!r} does not save itself, only {MAIN!r} does: when its machine goes, it begins again elsewhere"
        )
    return ""
