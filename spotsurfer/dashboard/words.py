"""Values as the pages print them: money, times, sizes, states."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from spotsurfer.common.plain_words import PHASES, STATES
from spotsurfer.common.timeline_words import say
from spotsurfer.common.units import duration, size
from spotsurfer.model.money import MICROS
from spotsurfer.ports.service import JobStatus, Moment

NOTHING, MINUS = "\u2013", "\u2212"  # for values that are not known, and in front of amounts
# Phase -> the group by which pages count and colour.
GROUP_OF = {
    "queued": "waiting",
    **dict.fromkeys(("ordering", "booting", "waiting", "starting", "restoring"), "starting"),
    "running": "running",
    "stuck": "stuck",
    **dict.fromkeys(("saving", "moving", "suspending"), "moving"),
    **dict.fromkeys(("suspended", "held"), "paused"),
    **{state: state for state in ("succeeded", "failed", "cancelled")},
}
GROUPS = ("stuck", "running", "moving", "starting", "waiting", "paused", "failed", "succeeded", "cancelled")
OPEN_GROUPS = GROUPS[:6]


def state_word(status: JobStatus) -> str:
    """The state in people's words; a failed job with its exit code."""
    word = STATES.get(status.phase, status.phase).capitalize()
    return f"{word} ({status.job.exit_code})" if status.job.exit_code else word


def group(phase: str) -> str:
    """By what jobs are counted and coloured."""
    return GROUP_OF.get(phase, "waiting")


def dollars(micros: int | None) -> str:
    """An amount for reading: cents, and more digits below one cent."""
    if micros is None:
        return NOTHING
    usd = micros / MICROS
    sign, usd = (MINUS if usd < 0 else ""), abs(usd)
    return f"{sign}${usd:,.2f}" if usd == 0 or usd >= 0.01 else f"{sign}<$0.01"


def hourly(micros: int | None) -> str:
    """A price an hour, to a tenth of a cent."""
    return NOTHING if micros is None else f"${micros / MICROS:,.3f}"


def when(at: datetime | None) -> str:
    """A moment, to the second, in UTC."""
    return NOTHING if at is None else f"{at.astimezone(UTC):%b %d %H:%M:%S}"


def iso(at: datetime | None) -> str:
    """The same for programs."""
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="seconds")


def about(seconds: float | None) -> str:
    """A duration in one or two units; a dash if it is not known."""
    return NOTHING if seconds is None else duration(max(seconds, 0.0) // 1 if seconds >= 10 else max(round(seconds, 1), 0.0))


def share(part: float, whole: float | None) -> float:
    """Percent of a limit, at most 100."""
    return min(100.0 * part / whole, 100.0) if whole else 0.0


def told(moment: Moment) -> tuple[str, str] | None:
    """Kind and text of a moment for people; None if another one says the same."""
    said = say(moment.kind, moment.text, moment.data)
    return None if said.inner else (moment.kind, said.text)


FILTERS: dict[str, Callable[..., Any]] = {
    "state": state_word,
    "group": group,
    "dollars": dollars,
    "hourly": hourly,
    "when": when,
    "iso": iso,
    "about": about,
    "bytes": lambda n: NOTHING if n is None else size(int(n)),
    "share": share,
    "meaning": lambda phase: PHASES.get(phase, phase),
}
