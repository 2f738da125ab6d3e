"""The costs of this month as a page shows them, computed beside the requests and kept for a minute."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spotsurfer.dashboard.words import NOTHING
from spotsurfer.model.cost_report import CostReport, Group, MachineCost, MonthForecast, Saved, Use

FRESH = timedelta(seconds=60)
WAIT_SECONDS = 0.08  # for a first report; with many jobs it takes seconds
KEPT_MAX = 200  # people
ROWS_MAX = 200  # of a table
BY: dict[str, Callable[[MachineCost], str]] = {
    "owner": lambda m: m.owner,
    "project": lambda m: m.project,
    "type": lambda m: m.pool.rsplit("/", 1)[-1],
    "market": lambda m: str(m.market),
    "name": lambda m: m.name,
}
NOT_MACHINES = "(no machine's)"


@dataclass(frozen=True, slots=True)
class Line:
    """Costs of a group of machines."""

    name: str
    machines: int
    seconds: float
    usd_micros: int
    usd_micros_on_demand: int


@dataclass(frozen=True, slots=True)
class Month:
    """The report without what the page does not show. Money is micro-dollars."""

    at: datetime
    since: datetime
    usd_micros: int
    usd_micros_on_demand: int
    asked_usd_micros: int | None  # on the machines that were asked for, on demand
    kinds: Sequence[tuple[str, int]]
    work: Sequence[tuple[str, float, int]]
    waste: Sequence[tuple[str, float, int]]
    savings: Sequence[Saved]
    others: Sequence[tuple[str, int | None, str]]
    days: Sequence[Group]
    groups: dict[str, Sequence[Line]]
    forecast: MonthForecast | None
    moves: int
    pause_seconds: float
    kept_seconds: float
    repeated_seconds: float


def month(report: CostReport) -> Month:
    """What the page shows of a report by day."""
    uses = [(str(a.use), a.seconds, a.usd_micros) for a in report.uses]
    tags = sorted({f"tag:{tag}" for x in report.labels for tag in x.tags})[:50]
    keys = BY | {tag: _of_tag(tag.removeprefix("tag:")) for tag in tags}
    return Month(
        at=report.at,
        since=report.since or report.at,
        usd_micros=report.usd_micros,
        usd_micros_on_demand=report.usd_micros_on_demand,
        asked_usd_micros=next((a.usd_micros for a in report.alternatives if a.name == "on demand"), None),
        kinds=sorted(((str(k), v) for k, v in report.kinds.items() if v), key=lambda x: -x[1]),
        work=[u for u in uses if u[0] == Use.WORK],
        waste=sorted((u for u in uses if u[0] != Use.WORK), key=lambda u: -u[2]),
        savings=[s for s in report.savings if s.usd_micros],
        others=[(a.name, a.usd_micros, a.how) for a in report.alternatives],
        days=sorted(report.groups, key=lambda g: g.group),
        groups={by: _lines(report, key) for by, key in keys.items()},
        forecast=report.forecast,
        moves=report.moves,
        pause_seconds=report.pause_seconds,
        kept_seconds=report.kept_seconds,
        repeated_seconds=report.repeated_seconds,
    )


def _of_tag(tag: str) -> Callable[[MachineCost], str]:
    return lambda m: m.tags.get(tag, "")


def _lines(report: CostReport, key: Callable[[MachineCost], str]) -> list[Line]:
    """The most expensive group first; what is no machine's is a line of its own, so that all add up to what was spent."""
    some: defaultdict[str, list[MachineCost]] = defaultdict(list)
    for m in report.attempts:
        some[key(m) or NOTHING].append(m)
    found = [
        Line(name, len(ms), sum(m.seconds for m in ms), sum(m.usd_micros for m in ms), sum(m.usd_micros_on_demand for m in ms))
        for name, ms in some.items()
    ]
    found.sort(key=lambda x: (-x.usd_micros, x.name))
    if rest := found[ROWS_MAX:]:
        sums = (sum(getattr(x, f) for x in rest) for f in ("machines", "seconds", "usd_micros", "usd_micros_on_demand"))
        found = [*found[:ROWS_MAX], Line(f"({len(rest)} more)", *sums)]
    if left := report.usd_micros - sum(x.usd_micros for x in found):
        found.append(Line(NOT_MACHINES, 0, 0.0, left, left))
    return found


class Months:
    """The newest report of each person, or of everybody; an old one is shown while the next is computed, one at a time."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now, self._lock = now, threading.Lock()
        self._kept: OrderedDict[str, Month] = OrderedDict()
        self._running: dict[str, Future[Month]] = {}
        self._pool = ThreadPoolExecutor(1, "costs")

    def get(self, whose: str, compute: Callable[[datetime], CostReport]) -> Month | None:
        """The report of this month; None while the first one is computed. Raises what `compute` raises."""
        now = self._now()
        begins = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        with self._lock:
            kept = self._kept.get(whose)
            kept = kept if kept is not None and kept.since >= begins else None
            if kept is not None and now - kept.at < FRESH:
                return kept
            running = self._running.get(whose)
            if running is None:
                running = self._running[whose] = self._pool.submit(lambda: month(compute(begins)))
        try:
            made = running.result(0 if kept is not None else WAIT_SECONDS)
        except NotYet:
            return kept
        except Exception:
            self._running.pop(whose, None)
            if kept is not None:
                return kept
            raise
        with self._lock:
            self._running.pop(whose, None)
            self._kept[whose] = made
            self._kept.move_to_end(whose)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return made
