"""Slurm's ways to write durations, times, sizes, signals and ids of jobs, both ways. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from datetime import datetime, timedelta

MINUTE, HOUR, DAY = 60, 3600, 86400
FOREVER = frozenset({"-1", "infinite", "unlimited"})
UNKNOWN = "Unknown"

# ---- Durations


def read_limit(text: str) -> int | None:
    """Seconds of a time limit, in whole minutes as Slurm counts them; None = no limit. Raises ValueError."""
    if text.lower() in FOREVER:
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise ValueError(text)
    days, *rest = found.groups()
    parts = [int(x) for x in rest if x is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:  # minutes[:seconds]
        hours, minutes, seconds = 0, *(*parts, 0)[:2]
    total = int(days or 0) * DAY + hours * HOUR + minutes * MINUTE + seconds
    return -(-total // MINUTE) * MINUTE or None


def show_duration(seconds: float | None, none: str = "UNLIMITED") -> str:
    """As squeue writes it: 1-02:03:04, 2:03:04 or 3:04."""
    if seconds is None:
        return none
    days, rest = divmod(int(seconds), DAY)
    hours, rest = divmod(rest, HOUR)
    end = f"{rest // MINUTE:02}:{rest % MINUTE:02}"
    if days:
        return f"{days}-{hours:02}:{end}"
    return f"{hours}:{end}" if hours else end.removeprefix("0") if end.startswith("0") else end


def show_clock(seconds: float | None, none: str = "UNLIMITED") -> str:
    """As scontrol and sacct write it: 1-02:03:04 or 02:03:04."""
    if seconds is None:
        return none
    days, rest = divmod(int(seconds), DAY)
    clock = f"{rest // HOUR:02}:{rest % HOUR // MINUTE:02}:{rest % MINUTE:02}"
    return f"{days}-{clock}" if days else clock


# ---- Times

UNITS = {"second": 1, "minute": MINUTE, "hour": HOUR, "day": DAY, "week": 7 * DAY}
CLOCKS = {"midnight": (0, 0, 0), "noon": (12, 0, 0), "elevenses": (11, 0, 0), "fika": (15, 0, 0), "teatime": (16, 0, 0)}
CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?", re.IGNORECASE)
DATES = (
    re.compile(r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"),
    re.compile(r"(?P<month>\d{1,2})/(?P<day>\d{1,2})(?:/(?P<year>\d{2,4}))?"),
    re.compile(r"(?P<month>\d{2})(?P<day>\d{2})(?P<year>\d{2})"),
)


def read_time(text: str, now: datetime) -> datetime:
    """A moment as `--begin` and `--starttime` take it; `now` has the zone of this host. Raises ValueError."""
    words = text.strip().lower()
    if found := re.fullmatch(r"now(?:([+-])(\d+)\s*([a-z]*))?", words):
        sign, count, unit = found.groups()
        if count is None:
            return now
        step = UNITS.get((unit or "second").removesuffix("s"), 0) or next(
            (x for name, x in UNITS.items() if unit and name.startswith(unit)), 0
        )
        if not step:
            raise ValueError(text)
        return now + timedelta(seconds=int(count) * step * (-1 if sign == "-" else 1))
    date, clock = _date_and_clock(words, now)
    hour, minute, second = clock or (0, 0, 0)
    day = date or now
    found_at = day.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return found_at + timedelta(days=1) if date is None and found_at <= now else found_at


def _date_and_clock(words: str, now: datetime) -> tuple[datetime | None, tuple[int, int, int] | None]:
    date: datetime | None = None
    clock: tuple[int, int, int] | None = None
    for part in re.split(r"t(?=\d)|\s+", words):
        if part in ("today", "tomorrow"):
            date = now + timedelta(days=part == "tomorrow")
        elif part in CLOCKS:
            clock = CLOCKS[part]
        elif found := CLOCK.fullmatch(part):
            hour, minute, second, half = found.groups()
            clock = (int(hour) % 12 + 12 * (half == "pm") if half else int(hour), int(minute), int(second or 0))
        elif day := next((m for pattern in DATES if (m := pattern.fullmatch(part))), None):
            year = int(day["year"] or now.year)
            date = now.replace(year=year + 2000 if year < 100 else year, month=int(day["month"]), day=int(day["day"]))
        else:
            raise ValueError(words)
    return date, clock


def show_time(at: datetime | None, none: str = UNKNOWN) -> str:
    """A moment in this host's zone, as all of Slurm's programs write it."""
    return none if at is None else at.astimezone().strftime("%Y-%m-%dT%H:%M:%S")


# ---- Sizes of memory

KIB = 1 << 10
MEMORY = re.compile(r"(\d+)(?:([kmgt])b?)?", re.IGNORECASE)
LETTERS = "KMGTP"


def read_memory(text: str) -> int:
    """Bytes of a size; without a unit it is in MiB. Raises ValueError."""
    found = MEMORY.fullmatch(text)
    if not found:
        raise ValueError(text)
    count, unit = int(found[1]), (found[2] or "m").upper()
    in_bytes = count << 10 * (LETTERS.index(unit) + 1)
    return -(-in_bytes // (1 << 20)) << 20


def show_memory(size: int) -> str:
    """As Slurm writes it: the largest unit that leaves a whole number, from MiB on: 1G, 1500M."""
    value, at = size >> 20, 1
    while value and value % KIB == 0 and at < len(LETTERS) - 1:
        value, at = value // KIB, at + 1
    return f"{value}{LETTERS[at]}" if value else "0"


# ---- Signals


def read_signal(text: str) -> str:
    """The name, without SIG, of a signal given by name or number. Raises ValueError."""
    try:
        found = signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (ValueError, KeyError):
        raise ValueError(text) from None
    return found.name.removeprefix("SIG")


def exit_words(code: int | None) -> str:
    """`code:signal` of an exit code of ours, which is 128 + n for a command killed by signal n."""
    if code is not None and 128 < code < 128 + signal.NSIG:
        return f"0:{code - 128}"
    return f"{code or 0}:0"


# ---- Ids of jobs

ID = re.compile(r"(\d+)(?:_(?:(\d+)|\*|\[([\d,:%-]+)\]))?(?:\.(\w+))?")


@dataclass(frozen=True, slots=True)
class JobIds:
    """What an id stands for: a job, an array, or tasks of one. `step`: of a job ("batch"); "" = none."""

    number: int
    tasks: frozenset[int] | None = None  # None = all, or the job is no array
    step: str = ""

    def covers(self, number: int, task: int | None) -> bool:
        """Whether the job with this number and task is meant."""
        return number == self.number and (self.tasks is None or task in self.tasks)


RAW = 10_000_000


def raw_id(number: int, task: int | None) -> int:
    """A job's SLURM_JOB_ID: its number; of a task one that no other job has, and that tells number and task."""
    return number if task is None else (task + 1) * RAW + number


def read_ids(text: str) -> list[JobIds]:
    """Ids like `5`, `5_3`, `5_[1-3,7]` separated by commas. Raises ValueError with the one that is none."""
    parts = re.split(r",(?![^\[]*\])", text)
    return [_read_id(part.strip()) for part in parts if part.strip()]


def _read_id(text: str) -> JobIds:
    found = ID.fullmatch(text)
    if not found:
        raise ValueError(text)
    number, task, tasks, step = found.groups()
    if int(number) >= RAW and task is None and tasks is None:  # the raw id of a task
        return JobIds(int(number) % RAW, frozenset({int(number) // RAW - 1}), step or "")
    if task is not None:
        return JobIds(int(number), frozenset({int(task)}), step or "")
    return JobIds(int(number), frozenset(read_tasks(tasks.partition("%")[0])) if tasks else None, step or "")


def read_tasks(text: str) -> list[int]:
    """Numbers of `1-5,9,10-20:2` in order. Raises ValueError."""
    tasks = set[int]()
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not found:
            raise ValueError(text)
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or step < 1:
            raise ValueError(text)
        tasks |= set(range(first, last + 1, step))
    return sorted(tasks)
