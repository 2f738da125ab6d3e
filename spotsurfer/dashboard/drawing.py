"""SVG drawn on the server: a job's life on a time axis, and small charts. Widths are percent, so that text keeps its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite

from markupsafe import Markup

from spotsurfer.common.units import duration
from spotsurfer.dashboard import words
from spotsurfer.model.job import Attempt
from spotsurfer.ports.service import JobStatus, Moment

ROW, BAR, AXIS = 30, 12, 22  # pixels
ATTEMPTS_MAX = 40
STEPS = (60, 300, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000)
TICKS_MAX = 6


def _percent(at: datetime, begins: datetime, ends: datetime) -> float:
    return min(max(100 * ((at - begins) / ((ends - begins) or timedelta(seconds=1))), 0.0), 100.0)


def _ticks(begins: datetime, ends: datetime) -> Iterable[tuple[float, str]]:
    """Round moments of the axis, in UTC, with their texts."""
    span = (ends - begins).total_seconds()
    step = next((s for s in STEPS if span / s <= TICKS_MAX), STEPS[-1])
    form = "%H:%M" if step < 86400 else "%b %d"
    at = (int(begins.timestamp()) // step + 1) * step
    while at < ends.timestamp():
        moment = datetime.fromtimestamp(at, UTC)
        yield _percent(moment, begins, ends), f"{moment:%b %d}" if moment.hour == moment.minute == 0 else moment.strftime(form)
        at += step


def _axis(begins: datetime, ends: datetime, height: int) -> list[Markup]:
    parts = []
    for x, text in _ticks(begins, ends):
        parts.append(Markup('<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="{1}"/>').format(x, height - AXIS))
        if 3 < x < 97:
            parts.append(
                Markup('<text class="tick" x="{:.2f}%" y="{}" text-anchor="middle">{}</text>').format(x, height - 6, text)
            )
    return parts


def _svg(name: str, height: int, parts: Iterable[Markup], kind: str) -> Markup:
    inside = Markup("").join(parts)
    return Markup('<svg class="{}" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        kind, height, name, inside
    )


# ---- A job's life

MARKS = {  # kind of moment -> its form below
    "notice": "notice",
    "saved": "saved",
    "moved": "moved",
    "alert": "alert",
    "out of memory": "alert",
    "near miss": "alert",
}
FORMS = {
    "notice": Markup('<path d="M-5 0H5L0 10Z"/>'),
    "saved": Markup('<path d="M0 2V10"/>'),
    "moved": Markup('<circle r="4" cy="6"/>'),
    "alert": Markup('<path d="M-4 2L4 10M4 2L-4 10"/>'),
}


def life(status: JobStatus, moments: Sequence[Moment], now: datetime) -> Markup:
    """Attempts as bars by market, with notices, checkpoints, moves and alerts as marks. The last attempts if there are many."""
    seen = [s.attempt for s in status.attempts if s.attempt.launched_at is not None][-ATTEMPTS_MAX:]
    begins = min(
        [status.job.submitted_at, *(a.planned_at for a in seen)] if len(seen) < ATTEMPTS_MAX else [a.planned_at for a in seen]
    )
    ends = max([status.job.ended_at or now, *(a.released_at for a in seen if a.released_at)])
    if ends <= begins:
        ends = begins + timedelta(seconds=1)
    height = max(len(seen), 1) * ROW + AXIS
    parts = _axis(begins, ends, height)
    rows = {int(a.number): n * ROW for n, a in enumerate(seen)}
    parts += [_attempt(a, rows[int(a.number)], begins, ends) for a in seen]
    for m in moments:
        form = MARKS.get(m.kind)
        if form is not None and m.attempt in rows and begins <= m.at <= ends:
            parts.append(_mark(form, m, _percent(m.at, begins, ends), rows[m.attempt] + ROW - BAR - 3))
    name = f"Timeline of {status.job.id}: {len(seen)} machines from {words.when(begins)} to {words.when(ends)} UTC"
    return _svg(name, height, parts, "life")


def _attempt(a: Attempt, y: int, begins: datetime, ends: datetime) -> Markup:
    assert a.launched_at is not None
    x, end = _percent(a.launched_at, begins, ends), _percent(a.released_at or ends, begins, ends)
    text = f"#{a.number} {a.pool.instance_type} {a.market}"
    span = duration(((a.released_at or ends) - a.launched_at).total_seconds())
    title = f"{text} in {a.pool.zone}, {span}, {words.hourly(a.price_usd_micros_per_hour)} an hour" + (
        f": {a.reason}" if a.reason else ""
    )
    boot = _percent(a.granted_at or a.released_at or ends, begins, ends)
    return Markup(
        '<text class="label" x="{:.2f}%" text-anchor="{}" y="{}">{}</text><g class="bar {}"><title>{}</title>'
        '<rect class="boot" x="{:.2f}%" y="{}" width="{:.2f}%" height="{}" rx="2"/>'
        '<rect x="{:.2f}%" y="{}" width="{:.2f}%" height="{}" rx="2"/></g>'
    ).format(
        *((x, "start") if x < 60 else (end, "end")),
        y + ROW - BAR - 6,
        text,
        "spot" if a.market == "spot" else "demand",
        title,
        *(x, y + ROW - BAR - 3, max(boot - x, 0.15), BAR),
        *(min(boot, end), y + ROW - BAR - 3, max(end - boot, 0.15), BAR),
    )


def _mark(form: str, m: Moment, x: float, y: int) -> Markup:
    title = f"{words.when(m.at)} UTC: {m.kind}: {m.text}"
    return Markup('<svg class="mark {}" x="{:.2f}%" y="{}" overflow="visible"><title>{}</title>{}</svg>').format(
        form, x, y, title, FORMS[form]
    )


# ---- Small charts over time


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of a chart in order of time; `steps`: each value lasts until the next. `form` is a class of the style sheet."""

    name: str
    points: Sequence[tuple[datetime, float | None]]
    form: str = "first"
    steps: bool = False


HIGH, BUCKETS = 96, 240


def chart(title: str, curves: Sequence[Curve], begins: datetime, ends: datetime, say: Callable[[float], str]) -> Markup:
    """Curves from zero up, with the largest value and the time axis."""
    values = [v for c in curves for _, v in c.points if v is not None and isfinite(v)]
    most = max(values, default=0.0)
    top = most * 1.2 or 1.0
    parts = _axis(begins, ends, HIGH + AXIS)
    labels = []
    for at in (0.0, most / 2, most):
        y = HIGH - at / top * HIGH
        parts.append(Markup('<line class="grid" x1="0" x2="100%" y1="{0:.1f}" y2="{0:.1f}"/>').format(y))
        if at:
            labels.append(Markup('<text class="tick" x="2" y="{:.1f}">{}</text>').format(y - 3, say(at)))
    for curve in curves:
        lines = Markup("").join(_polyline(run, curve.form) for run in _runs(curve, begins, ends, top))
        parts.append(
            Markup(
                '<svg viewBox="0 0 1000 {0}" width="100%" height="{0}" preserveAspectRatio="none"><title>{1}</title>{2}</svg>'
            ).format(HIGH, curve.name, lines)
        )
    last = next((v for _, v in reversed(curves[0].points) if v is not None), None) if curves else None
    name = f"{title}: now {say(last)}, at most {say(most)}" if last is not None else f"{title}: nothing is known"
    return _svg(name, HIGH + AXIS, parts + labels, "chart")


def _runs(curve: Curve, begins: datetime, ends: datetime, top: float) -> Iterable[list[tuple[float, float]]]:
    """Unbroken pieces in the units of the view box."""
    run: list[tuple[float, float]] = []
    for at, value in curve.points:
        if value is None or not isfinite(value):
            if run:
                yield run
            run = []
            continue
        x, y = 10 * _percent(at, begins, ends), HIGH - value / top * HIGH
        if curve.steps and run:
            run.append((x, run[-1][1]))
        run.append((x, y))
    if run:
        yield run


def _polyline(run: Sequence[tuple[float, float]], form: str) -> Markup:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
    return Markup('<polyline class="{}" points="{}"/>').format(form, points)


def thinned(
    points: Sequence[tuple[datetime, float]], begins: datetime, ends: datetime, gap: timedelta
) -> list[tuple[datetime, float | None]]:
    """At most so many points as a chart can show, each the largest of its time; a hole where there is none for `gap`."""
    span = (ends - begins) / BUCKETS
    found: list[tuple[datetime, float | None]] = []
    last: datetime | None = None
    bucket = -1
    for at, value in points:
        if last is not None and at - last > max(gap, span * 2):
            found.append((last, None))
            bucket = -1
        place = int((at - begins) / span) if span else 0
        if place == bucket and found[-1][1] is not None:
            found[-1] = found[-1][0], max(found[-1][1], value)
        else:
            found.append((at, value))
        bucket, last = place, at
    return found


# ---- Bars of one line


def bar(percent: float, form: str = "") -> Markup:
    """A share of a whole."""
    return Markup(
        '<svg class="share {}" width="100%" height="6" aria-hidden="true"><rect class="whole" width="100%" height="6" rx="3"/>'
        '<rect width="{:.2f}%" height="6" rx="3"/></svg>'
    ).format(form, min(max(percent, 0.0), 100.0))


def spans(parts: Sequence[tuple[float, float, str]], name: str) -> Markup:
    """Spans of a time: begin and length in percent, and a class of the style sheet."""
    drawn = Markup("").join(
        Markup('<rect class="{}" x="{:.2f}%" width="{:.2f}%" height="14"/>').format(kind, x, max(length, 0.2))
        for x, length, kind in parts
    )
    return Markup('<svg class="strip" width="100%" height="14" role="img" aria-label="{}">{}</svg>').format(name, drawn)


def columns(rows: Sequence[tuple[str, float, str]], name: str) -> Markup:
    """Upright bars: the label below, a value, and the text that a pointer finds."""
    high, top = 110, max((v for _, v, _ in rows), default=0.0) or 1.0
    room = 100 / max(len(rows), 1)
    parts = []
    for n, (label, value, text) in enumerate(rows):
        height = max(value, 0.0) / top * high
        parts.append(
            Markup(
                '<g class="bar"><title>{}</title><rect x="{:.2f}%" y="{:.1f}" width="{:.2f}%" height="{:.1f}" rx="1"/></g>'
            ).format(text, n * room + room * 0.1, high - height, room * 0.8, height)
        )
        if n % -(-len(rows) // 10) == 0:
            parts.append(
                Markup('<text class="tick" x="{:.2f}%" y="{}" text-anchor="middle">{}</text>').format(
                    (n + 0.5) * room, high + 16, label
                )
            )
    return _svg(name, high + AXIS, parts, "columns")
