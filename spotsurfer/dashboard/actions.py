"""What people do to a job: each is a page that asks, and a form that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spotsurfer.common.units import parse_usd
from spotsurfer.model.errors import UsageError
from spotsurfer.model.job import ENDED, HOLDS, JobId, Wish
from spotsurfer.model.market import Market
from spotsurfer.ports.service import JobStatus, Service


@dataclass(frozen=True, slots=True)
class Action:
    """`name` is that of the API's route, as the audit log has it. `fields`: those of the form."""

    name: str
    label: str
    asks: str  # what happens, in a sentence
    done: str  # what is said afterwards
    do: Callable[[Service, JobId, Mapping[str, str]], object]
    fits: Callable[[JobStatus], bool]
    fields: Sequence[str] = ()
    harsh: bool = False


def _open(s: JobStatus) -> bool:
    return s.job.state not in ENDED and s.job.wish is not Wish.CANCEL


def _here(s: JobStatus) -> bool:
    return _open(s) and any(a.attempt.state in HOLDS for a in s.attempts)


def _move(service: Service, job: JobId, form: Mapping[str, str]) -> object:
    market = form.get("market") or None
    if market not in (None, *map(str, Market)):
        raise UsageError(f"The market is {market!r}, expected spot or on-demand.")
    return service.move(job, form.get("instance_type", "").strip() or None, Market(market) if market else None)


def _priority(service: Service, job: JobId, form: Mapping[str, str]) -> object:
    text = form.get("priority", "").strip()
    if not text.isascii() or not text.removeprefix("-").isdecimal() or len(text) > 5:
        raise UsageError(f"The priority is {text!r}, expected a whole number from -100 to 100.")
    return service.prioritize(job, int(text))


def _budget(service: Service, job: JobId, form: Mapping[str, str]) -> object:
    text = form.get("usd", "").strip()
    try:
        return service.set_budget(job, parse_usd(text) if text else None)
    except ValueError as e:
        raise UsageError(f"The budget {e}.") from None


ACTIONS = {
    a.name: a
    for a in (
        Action(
            "hold",
            "Suspend",
            "It is saved, its machine is given back, and it waits until somebody resumes it.",
            "It is suspended soon.",
            lambda service, job, _: service.hold(job),
            lambda s: _open(s) and s.job.wish is Wish.RUN,
        ),
        Action(
            "resume",
            "Resume",
            "It gets a machine again and goes on from its newest checkpoint.",
            "It is to go on.",
            lambda service, job, _: service.resume(job),
            lambda s: _open(s) and s.job.wish is Wish.HOLD,
        ),
        Action(
            "checkpoint",
            "Save now",
            "A live checkpoint is made: it stands still for a moment and runs on.",
            "A checkpoint was asked for.",
            lambda service, job, _: service.checkpoint(job),
            _here,
        ),
        Action(
            "move",
            "Move",
            "It is saved and goes on on another machine.",
            "A move was asked for.",
            _move,
            _here,
            ("instance_type", "market"),
        ),
        Action(
            "priority",
            "Priority",
            "If there is no room for all, jobs of higher priority come first.",
            "Its priority was changed.",
            _priority,
            _open,
            ("priority",),
        ),
        Action(
            "budget",
            "Budget",
            "A job that reaches its budget is suspended. An empty field means no limit of its own.",
            "Its budget was changed.",
            _budget,
            _open,
            ("usd",),
        ),
        Action(
            "cancel",
            "Cancel job",
            "It ends without results. That can't be undone.",
            "It is to be cancelled.",
            lambda service, job, _: service.cancel(job),
            _open,
            harsh=True,
        ),
    )
}


def fitting(status: JobStatus) -> list[Action]:
    """What makes sense for the job now."""
    return [a for a in ACTIONS.values() if a.fits(status)]
