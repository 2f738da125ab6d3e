"""The list of jobs as a page shows it: what was asked for, and the rows of one page. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from spotsurfer.dashboard.words import GROUPS, OPEN_GROUPS, group, state_word
from spotsurfer.model.job import HOLDS, WAITS
from spotsurfer.ports.service import AttemptStatus, JobBrief, JobStatus

ROWS = 100  # of a page
RANK = {name: n for n, name in enumerate(GROUPS)}
# Columns that can be sorted by, each with whether the largest comes first.
SORTS: dict[str, tuple[Callable[[JobStatus], Any], bool]] = {
    "submitted": (lambda s: s.job.submitted_at, True),
    "state": (lambda s: (RANK[group(s.phase)], s.phase), False),
    "name": (lambda s: s.job.id, False),
    "owner": (lambda s: s.job.owner, False),
    "project": (lambda s: s.job.spec.project, False),
    "cost": (lambda s: s.usd_micros, True),
    "machine": (lambda s: machine_text(s), False),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for. `words`: all must occur; `state`: a group, "open", or "" for all."""

    words: str = ""
    state: str = ""
    sort: str = "submitted"
    backward: bool = False
    page: int = 1

    @staticmethod
    def of(query: Mapping[str, str]) -> Asked:
        """What makes no sense is left out."""
        state, sort, page = query.get("state", ""), query.get("sort", ""), query.get("page", "")
        return Asked(
            query.get("q", "")[:200],
            state if state in (*GROUPS, "open") else "",
            sort if sort in SORTS else "submitted",
            query.get("dir") == "back",
            min(int(page), 1_000_000) if page.isdecimal() and page.isascii() and page.strip("0") and len(page) < 8 else 1,
        )

    def url(self, **changes: Any) -> str:
        """The address with other values; the first page unless one is given."""
        to = replace(self, **{"page": 1, **changes})
        given = {"q": to.words, "state": to.state, "sort": to.sort, "dir": "back" if to.backward else "", "page": str(to.page)}
        usual = {"sort": "submitted", "page": "1"}
        return "/" + (f"?{text}" if (text := urlencode({k: v for k, v in given.items() if v and v != usual.get(k)})) else "")


@dataclass(frozen=True, slots=True)
class Fleet:
    """One page of the list. `counts` are of all jobs that match the words."""

    rows: Sequence[JobStatus]
    found: int
    total: int
    counts: Mapping[str, int]
    pages: int
    page: int


def fleet(jobs: Sequence[JobStatus], asked: Asked) -> Fleet:
    """The rows that were asked for."""
    words = asked.words.lower().split()
    matching = _matching(jobs, words) if words else list(jobs)
    counts = Counter(group(s.phase) for s in matching)
    counts["open"] = sum(counts[g] for g in OPEN_GROUPS)
    wanted = OPEN_GROUPS if asked.state == "open" else (asked.state,)
    found = [s for s in matching if group(s.phase) in wanted] if asked.state else matching
    key, largest = SORTS[asked.sort]
    found.sort(key=key, reverse=largest != asked.backward)
    pages = max(-(-len(found) // ROWS), 1)
    page = min(asked.page, pages)
    return Fleet(found[(page - 1) * ROWS : page * ROWS], len(found), len(jobs), counts, pages, page)


def _matching(jobs: Sequence[JobStatus], words: Sequence[str]) -> list[JobStatus]:
    texts = ((s, _text(s)) for s in jobs)
    return [s for s, text in texts if all(word in text for word in words)]


def _text(s: JobStatus) -> str:
    """Where words are looked for: `owner:ada` and `run=7` are found, too."""
    spec = s.job.spec
    tags = " ".join(f"{name}={value}" for name, value in spec.tags.items())
    known = f"owner:{s.job.owner} project:{spec.project}"
    return f"{s.job.id} {spec.name} {known} {tags} {s.phase} {state_word(s)} {machine_text(s)} {s.note}".lower()


def current(status: JobStatus) -> AttemptStatus | None:
    """The attempt that has the job, else the one that waits for it, else None."""
    for states in (HOLDS, WAITS):
        for a in reversed(status.attempts):
            if a.attempt.state in states:
                return a
    return None


def machine_text(status: JobStatus) -> str:
    """Type and market of its machine; "" = it has none."""
    here = current(status)
    return f"{here.attempt.pool.instance_type} {here.attempt.market}" if here else ""


def age_seconds(status: JobStatus, now: datetime) -> float:
    """Since it was submitted, until its end."""
    return max(((status.job.ended_at or now) - status.job.submitted_at).total_seconds(), 0.0)


def row_name(row: JobBrief) -> str:
    """The job, or tasks of an array: "abc-[5-1000]"."""
    return f"{row.array}-[{row.tasks}]" if row.tasks else row.id
