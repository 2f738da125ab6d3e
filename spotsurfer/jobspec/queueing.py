"""Checks of what a job says about its turn: tasks of an array, what must come before it, its begin, its time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from spotsurfer.common.units import SECONDS_MAX, parse_seconds
from spotsurfer.model.job import SIGNALS, JobSpec
from spotsurfer.model.queueing.arrays import read_array
from spotsurfer.model.queueing.dependencies import read_after

WARN_MAX_SECONDS = 65_535.0  # as Slurm
TIME_LIMIT_MIN_SECONDS = 1.0


def problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """(key of the job file, second half of a sentence)."""
    for key, value, read in (
        ("array", spec.array, read_array),
        ("after", spec.after, read_after),
        ("begin", spec.begin, _begin),
    ):
        if value and (why := _why(read, value)):
            yield key, why
    if spec.time_limit_seconds is not None and spec.time_limit_seconds < TIME_LIMIT_MIN_SECONDS:
        yield "time_limit", f"is {spec.time_limit_seconds:g} seconds, expected at least {TIME_LIMIT_MIN_SECONDS:g}"
    if spec.warn_signal and spec.warn_signal.removeprefix("B:").removeprefix("S:") not in SIGNALS:
        yield "warn.signal", f"is {spec.warn_signal!r}, expected one of {', '.join(SIGNALS)}"
    if spec.warn_signal and spec.time_limit_seconds is None:
        yield "warn.signal", 'comes before a time limit, and there is none: add a line like time_limit = "2h"'
    if not 0 <= spec.warn_seconds <= WARN_MAX_SECONDS:
        yield "warn.before", f"is {spec.warn_seconds:g} seconds, expected 0 to {WARN_MAX_SECONDS:g}"


def begins_at(spec: JobSpec, now: datetime) -> datetime | None:
    """When it may begin; None = at once. Raises ValueError with the second half of a sentence."""
    return _begin(spec.begin, now) if spec.begin else None


def _begin(text: str, now: datetime | None = None) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            after = timedelta(seconds=parse_seconds(text))
        except ValueError:
            raise ValueError(f'is {text!r}, expected a time like "2026-12-01T08:00:00Z", or a duration like "2h"') from None
        return None if now is None else now + after
    if at.tzinfo is None:
        raise ValueError(f'is {text!r}, a time without a zone: write one, as in "2026-12-01T08:00:00Z"')
    if now is not None and (at - now).total_seconds() > SECONDS_MAX:
        raise ValueError(f"is {text!r}, more than ten years from now")
    return at


def _why(read: Callable[..., object], value: object) -> str:
    try:
        read(value)
    except ValueError as e:
        return str(e)
    return ""
