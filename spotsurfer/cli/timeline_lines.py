"""Moments of the timeline as lines for people: plain sentences, dates, nothing twice, and no word broken."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from spotsurfer.cli.printing import clean, when
from spotsurfer.web.client import Json

NARROW = 60  # characters of a line; with less, sentences go on below their line's beginning
REPEATABLE = frozenset({"wish", "saved", "step", "stage", "price"})  # kinds that may well say the same again


class TimelineLines:
    """Turns moments into lines, in their order. It remembers the day and each job's last sentence.

    Lines for a terminal carry the time, and the date stands above them if the day changes. Others carry the date and the zone
    each, and are never wrapped.
    """

    def __init__(self, with_job: bool, steps: bool = False, terminal: bool = True) -> None:
        """`with_job`: each line names its job. `steps`: each step in between is told, too."""
        self._with_job, self._steps, self._terminal = with_job, steps, terminal
        self._day = ""
        self._last: dict[str | None, tuple[int | None, str]] = {}

    def shown(self, moments: Iterable[Json]) -> list[Json]:
        """Those that people read: without the steps in between, and without repetitions."""
        return [moment for moment in moments if self._is_news(moment)]

    def _is_news(self, moment: Json) -> bool:
        if moment["inner"] and not self._steps:
            return False
        said = (moment["attempt"], moment["sentence"])
        before = self._last.get(moment["job"])
        self._last[moment["job"]] = said
        return said != before or moment["kind"] in REPEATABLE

    def lines(self, moment: Json, width: int) -> Iterator[str]:
        """The lines of one moment that is shown."""
        if self._terminal:
            local = datetime.fromisoformat(moment["at"]).astimezone()
            day = local.strftime("%Y-%m-%d, times in %Z")
            if day != self._day:
                self._day = day
                yield f"{local:%A} {day}"
        job = f"{moment['job'] or '-'}  " if self._with_job else ""
        attempt = f"#{moment['attempt']}" if moment["attempt"] is not None else ""
        head = f"{when(moment['at'], day=not self._terminal)}  {job}{attempt:<4} "
        sentence = clean(moment["sentence"]).replace("\n", " ")
        if not self._terminal:
            yield head + sentence
            return
        indent = " " * (len(head) if len(head) <= width - NARROW // 2 else 4)
        wrapped = textwrap.wrap(
            head + sentence,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
        yield from wrapped or [head.rstrip()]


def fitting(moments: Sequence[Json], with_job: bool, width: int, most: int) -> list[Json]:
    """The newest moments of which all lines have room in `most` lines of a terminal; at least one if there is room at all."""
    lines, left = TimelineLines(with_job), most
    needed = [sum(1 for _ in lines.lines(moment, width)) for moment in moments]
    for number in range(len(moments), 0, -1):
        left -= needed[number - 1]
        if left < 0:
            return list(moments[number if number < len(moments) else number - (most > 0) :])
    return list(moments)
