"""One job as its page shows it: what happened with what it cost, curves over time, what a notice would do now. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup

from spotsurfer.common.units import duration
from spotsurfer.dashboard import words
from spotsurfer.dashboard.drawing import Curve, chart, thinned
from spotsurfer.model.actions import Preview
from spotsurfer.model.job import Attempt
from spotsurfer.ports.policies import Forecast
from spotsurfer.ports.service import Foretold, JobStatus, Moment, UsageSeen

SPANS = {"6h": timedelta(hours=6), "2d": timedelta(days=2), "7d": timedelta(days=7)}
GAP = timedelta(minutes=3)  # without usage for so long a curve has a hole
MOMENTS = 60  # shown first
MOMENTS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Line:
    """A moment in words; `usd_micros` is about what the job had cost by then."""

    at: datetime
    attempt: int | None
    kind: str
    text: str
    usd_micros: int


def lines(status: JobStatus, moments: Sequence[Moment], now: datetime) -> list[Line]:
    """The story, newest first."""
    found = []
    for m in reversed(moments):
        said = words.told(m)
        if said is not None:
            found.append(Line(m.at, m.attempt, *said, cost_at(status, m.at, now)))
    return found


def cost_at(status: JobStatus, at: datetime, now: datetime) -> int:
    """What its machines had cost by then, as if each cost the same at all times."""
    total = 0.0
    for s in status.attempts:
        a = s.attempt
        if a.launched_at is not None and at > a.launched_at:
            lives = ((a.released_at or now) - a.launched_at).total_seconds()
            total += s.usd_micros * min((at - a.launched_at).total_seconds() / lives, 1.0) if lives > 0 else s.usd_micros
    return round(total)


def charts(
    status: JobStatus, usage: Sequence[UsageSeen], preview: Preview | None, begins: datetime, now: datetime
) -> list[tuple[str, str, Markup]]:
    """Title, a word on its curves, and the drawing of each chart."""
    ends = min(status.job.ended_at or now, now)
    begins = min(begins, ends - timedelta(seconds=1))
    asked = status.job.spec
    windows = [(u.at, u.window) for u in usage if u.at >= begins]
    cpu = thinned([(at, w.cpu_cores) for at, w in windows], begins, ends, GAP)
    memory = thinned([(at, w.working_bytes) for at, w in windows], begins, ends, GAP)
    gpu = thinned([(at, w.gpu_share) for at, w in windows if w.gpu_share is not None], begins, ends, GAP)
    sizes = _sizes(preview)
    found = []
    if windows:
        limit = [(begins, float(asked.cpus)), (ends, float(asked.cpus))]
        drawn = chart("Processors in use", [Curve("in use", cpu), Curve("asked for", limit, "limit")], begins, ends, _count)
        found.append(("Processors", f"in use; dashed: {asked.cpus} asked for", drawn))
        room = [(begins, float(asked.memory_bytes)), (ends, float(asked.memory_bytes))]
        drawn = chart("Memory in use", [Curve("in use", memory), Curve("asked for", room, "limit")], begins, ends, _bytes)
        found.append(("Memory", f"in use; dashed: {_bytes(asked.memory_bytes)} asked for", drawn))
    if gpu:
        found.append(
            ("GPUs", "share of the time at work", chart("GPUs at work", [Curve("at work", gpu)], begins, ends, _share))
        )
    price = _steps(status, ends, lambda a: a.price_usd_micros_per_hour / 1e6)
    listed = _steps(status, ends, lambda a: a.list_price_usd_micros_per_hour / 1e6)
    if price:
        curves = [Curve("paid", price, steps=True), Curve("on demand", listed, "limit", steps=True)]
        found.append(("Price an hour", "as bought; dashed: on demand", chart("Price an hour", curves, begins, ends, _usd)))
    memories = _steps(status, ends, lambda a: sizes.get(a.pool.instance_type, (None, None))[1])
    if any(v is not None for _, v in memories):
        drawn = chart("Memory of its machine", [Curve("memory", memories, steps=True)], begins, ends, _bytes)
        found.append(("Size of its machine", "memory", drawn))
    return found


def _sizes(preview: Preview | None) -> dict[str, tuple[int | None, float | None]]:
    offers = [*preview.choices, *(o for o, _ in preview.rejected)] if preview else []
    return {o.pool.instance_type: (o.cpus, float(o.memory_bytes)) for o in offers}


def _steps(status: JobStatus, ends: datetime, value: Callable[[Attempt], float | None]) -> list[tuple[datetime, float | None]]:
    found: list[tuple[datetime, float | None]] = []
    had = [s.attempt for s in status.attempts if s.attempt.granted_at is not None]
    for n, a in enumerate(had):
        assert a.granted_at is not None
        until = a.released_at or ends
        if n + 1 < len(had) and (following := had[n + 1].granted_at) is not None:
            until = min(until, following)
        found += [(a.granted_at, value(a)), (until, value(a))]
        if n + 1 < len(had) and (following := had[n + 1].granted_at) is not None and following > until:
            found.append((until, None))
    return found


def _count(x: float) -> str:
    return f"{x:.1f}" if x < 10 else f"{x:.0f}"


def _bytes(x: float) -> str:
    return str(words.FILTERS["bytes"](x))


def _share(x: float) -> str:
    return f"{100 * x:.0f} %"


def _usd(x: float) -> str:
    return f"${x:.3f}"


# ---- Sentences


def foretold(some: Sequence[Foretold]) -> list[tuple[str, str, str]]:
    """What notices of the usual lengths would do now: the notice, the outcome, and a class of the style sheet."""
    found = []
    for f in some:
        notice = f"{f.notice_seconds:g} s of notice" if f.notice_seconds else "no notice"
        lost = "the work since its newest checkpoint" if f.lost_seconds is None else f"up to {duration(f.lost_seconds)} of work"
        said = {"saved": "saved in time", "tried": f"may be saved in time; if not, {lost} is repeated"}
        form = {"saved": "good", "tried": "warn"}.get(str(f.outcome), "bad")
        found.append((notice, said.get(str(f.outcome), f"{lost} is repeated") + ("" if f.measured else " (assumed)"), form))
    return found


def expected(f: Forecast | None) -> str:
    """The forecast of a job with a deadline; "" = there is none."""
    if f is None:
        return ""
    spread = f"{duration(f.low_seconds)} to {duration(f.high_seconds)}"
    return f"done in {duration(f.seconds)} ({spread}), {100 * f.fallback_chance:.0f} % chance of on-demand, ${f.usd:.2f} more"


def asked_for(status: JobStatus) -> Mapping[str, str]:
    """What its user asked for, without what is as usual."""
    spec, job = status.job.spec, status.job
    due = job.submitted_at + timedelta(seconds=spec.deadline_seconds) if spec.deadline_seconds is not None else None
    level = f", {status.level} by waiting" if status.level != spec.priority else ""
    found = {
        "Command": " ".join(spec.command),
        "Image": spec.image,
        "Size": f"{spec.cpus} processors, {_bytes(spec.memory_bytes)}"
        + (f", {spec.gpus} GPUs {spec.gpu}" if spec.gpus else ""),
        "Market": str(spec.market),
        "Priority": f"{spec.priority}{level}" if spec.priority or status.level else "",
        "Budget": words.dollars(spec.budget_usd_micros) if spec.budget_usd_micros is not None else "",
        "Deadline": f"{words.when(due)} UTC" if due is not None else "",
        "Tags": ", ".join(f"{name}={value}" for name, value in spec.tags.items()),
        "Size policy": status.size,
        "Runs as": spec.user or "",
    }
    return {name: value for name, value in found.items() if value}
