"""What `watch --live` draws: one job, or all of them, as lines of text for a screen of some size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rich.text import Text

from spotsurfer.cli.follow import current
from spotsurfer.cli.printing import clean, money, state, when
from spotsurfer.cli.timeline_lines import TimelineLines, fitting
from spotsurfer.common.plain_words import MACHINES, PHASES
from spotsurfer.common.timeline_words import plainly
from spotsurfer.common.units import counted, duration
from spotsurfer.model.job import ENDED
from spotsurfer.web.client import Json

ATTEMPTS_SHOWN = 5  # the newest ones
BAR_MIN = 10  # characters
FULL, HERE = "▒", "█"  # of a bar: a machine that is gone, and one that is there
KEYS = "q or Ctrl-C ends this view; jobs go on"


@dataclass(frozen=True, slots=True)
class Screen:
    """The room and the time of a drawing."""

    width: int
    height: int
    now: datetime
    trouble: str = ""  # why what is drawn may be old


@dataclass(slots=True)
class Story:
    """The newest moments that people read, as the controller tells them bit by bit."""

    with_job: bool
    jobs: Sequence[str] = ()  # only of these; none = of all
    kept: list[Json] = field(default_factory=list)
    most: int = 200
    told: TimelineLines = field(init=False)

    def __post_init__(self) -> None:
        self.told = TimelineLines(self.with_job)

    def add(self, moments: Sequence[Json]) -> None:
        """Moments that are new."""
        wanted = [m for m in moments if not self.jobs or m["job"] in self.jobs]
        self.kept = [*self.kept, *self.told.shown(wanted)][-self.most :]

    def lines(self, width: int, most: int) -> list[str]:
        """Its last lines."""
        newest, lines = fitting(self.kept, self.with_job, width, most), TimelineLines(self.with_job)
        return [line for moment in newest for line in lines.lines(moment, width)][-most:] if most > 0 else []


def cut(text: str, width: int) -> str:
    """One line of at most `width` characters, cut between words if that keeps most of it."""
    text = clean(text).replace("\n", " ")
    if len(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    at = kept.rfind(" ")
    return (kept[:at] if at > width // 2 else kept) + "…"


def job_screen(job: Json, story: Story, log: Sequence[str], screen: Screen) -> list[Text]:
    """One job: its state, machine and cost, its attempts as bars, its last moments and the end of its output."""
    head = [_title(f"{job['name']}  {job['id']}", screen), *_facts(job, screen)]
    bars = _bars(job, screen)
    left = max(screen.height - len(head) - len(bars) - 4, 2)  # two headings, a line of help, and one that stays free
    logged = min(len(log), left // 3)
    moments = story.lines(screen.width, left - logged)
    parts = [*head, *bars, _heading("What happened", screen), *map(Text, moments)]
    if log and logged:
        parts += [_heading("Its output", screen), *(Text(cut(line, screen.width)) for line in log[-logged:])]
    return _filled(parts, screen)


def fleet_screen(jobs: Sequence[Json], story: Story, screen: Screen) -> list[Text]:
    """All open jobs as a table, and the last moments of all."""
    running = [j for j in jobs if j["phase"] in ("running", "stuck", "saving", "moving")]
    hourly = sum(here["price_usd_micros_per_hour"] for j in jobs if (here := current(j)) is not None)
    heading = f"{counted(len(jobs), 'open job')}, {len(running)} running, {money(hourly)} USD an hour"
    room = max((screen.height - 5) * 2 // 3, 1)
    shown = jobs[: room if len(jobs) <= room else room - 1]
    rows = [[j["id"], state(j), *_machine(current(j), screen), money(j["usd_micros"])] for j in shown]
    columns = ["JOB", "STATE", "MACHINE", "AGE", "UNSAVED", "USD"]
    rows = [[*row[:3], _age(job, screen), row[3], row[4]] for row, job in zip(rows, shown, strict=True)]
    wide = [max(len(clean(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    spare = screen.width - sum(wide[1:]) - 2 * (len(wide) - 1)
    wide[0] = max(min(wide[0], spare), 8)
    table = ["  ".join(cut(cell, w).ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in [columns, *rows]]
    more = [Text(f"… {len(jobs) - len(shown)} more: `spotsurfer list --open`")] if len(shown) < len(jobs) else []
    parts = [_title(heading, screen), Text(cut(table[0], screen.width), style="bold")]
    parts += [Text(cut(line, screen.width)) for line in table[1:]] + more
    parts.append(_heading("What happened", screen))
    return _filled([*parts, *map(Text, story.lines(screen.width, screen.height - len(parts) - 1))], screen)


def _filled(parts: list[Text], screen: Screen) -> list[Text]:
    """With the line of help at the bottom."""
    room = max(screen.height - 1, 1)
    parts = parts[:room]
    return [*parts, *(Text() for _ in range(room - len(parts))), Text(cut(screen.trouble or KEYS, screen.width), style="dim")]


def _title(text: str, screen: Screen) -> Text:
    at = when(screen.now.isoformat())
    text = cut(text, max(screen.width - len(at) - 2, 8))
    return Text(f"{text}{at:>{max(screen.width - len(text), 0)}}", style="bold")


def _heading(text: str, screen: Screen) -> Text:
    return Text(f"── {text} ".ljust(screen.width, "─")[: screen.width], style="dim")


def _age(job: Json, screen: Screen) -> str:
    return duration(max((screen.now - datetime.fromisoformat(job["submitted_at"])).total_seconds() // 1, 0.0))


def _machine(here: Json | None, screen: Screen) -> tuple[str, str]:
    """The machine in a few words, and how old the newest checkpoint is."""
    if here is None:
        return "-", "-"
    unsaved = here["unsaved_seconds"]
    room = max(screen.width // 4, 10)
    return cut(f"{here['instance_type']} {here['market']}", room), "-" if unsaved is None else duration(unsaved // 1)


def _facts(job: Json, screen: Screen) -> list[Text]:
    here, phase = current(job), job["phase"]
    words = f"{phase}: {PHASES[phase]}" if phase in PHASES else phase
    rows = [("state", words), ("because", plainly(job["note"]) if phase != "running" else "")]
    if here is not None:
        price = f"{money(here['price_usd_micros_per_hour'])} USD an hour"
        rows.append(("machine", f"#{here['number']} {here['instance_type']} {here['market']} in {here['zone']}, {price}"))
    elif job["state"] not in ENDED:
        rows.append(("machine", "none"))
    budget = job["spec"].get("budget_usd_micros")
    rows.append(("cost so far", f"{money(job['usd_micros'])} USD" + (f" of {money(budget)}" if budget else "")))
    rows.append(("checkpoint", _checkpoint(job, here)))
    rows.append(("age", f"{_age(job, screen)}, {counted(job['moves'], 'move')}"))
    return [Text.assemble((f"{name:<13}", "dim"), cut(value, max(screen.width - 13, 8))) for name, value in rows if value]


def _checkpoint(job: Json, here: Json | None) -> str:
    if here is None or here["unsaved_seconds"] is None:
        return job["checkpoint"] or "none yet"
    saving = f", {here['save_stage']} now" if here["save_stage"] else ""
    return f"{job['checkpoint'] or 'none yet'}, {duration(here['unsaved_seconds'] // 1)} of work since then{saving}"


def _bars(job: Json, screen: Screen) -> list[Text]:
    """The newest machines, each as a bar from its start to its end."""
    attempts = [a for a in job["attempts"] if a["launched_at"]][-ATTEMPTS_SHOWN:]
    if not attempts:
        return []
    spans = [
        (datetime.fromisoformat(a["launched_at"]), datetime.fromisoformat(a["released_at"]) if a["released_at"] else screen.now)
        for a in attempts
    ]
    begin, end = min(s for s, _ in spans), max(e for _, e in spans)
    heads = [cut(f"#{a['number']} {a['market']} {a['instance_type']}", screen.width // 3) for a in attempts]
    tails = [
        f"{duration((e - s).total_seconds() // 1)}, {MACHINES[a['state']]}" for a, (s, e) in zip(attempts, spans, strict=True)
    ]
    left, right = max(map(len, heads)) + 1, max(map(len, tails)) + 1
    room = max(screen.width - left - right, BAR_MIN)
    seconds = max((end - begin).total_seconds(), 1.0)
    lines = [_heading("Its machines", screen)]
    for a, (s, e), head, tail in zip(attempts, spans, heads, tails, strict=True):
        first = int((s - begin).total_seconds() / seconds * room)
        last = max(int((e - begin).total_seconds() / seconds * room), first + 1)
        mark, style = (FULL, "dim") if a["released_at"] else (HERE, "green")
        bar = " " * min(first, room - 1) + mark * (min(last, room) - min(first, room - 1))
        lines.append(Text.assemble(f"{head:<{left}}", (f"{bar:<{room}}", style), f" {tail}"))
    return lines


def log_lines(pieces: Sequence[tuple[Json, bytes]], most: int) -> list[str]:
    """The last lines of a job's output, both streams as they were printed."""
    text = b"".join(data for _, data in pieces).decode("utf-8", "replace")
    return [line.expandtabs(4) for line in text.splitlines()[-most:]]


def ended(job: Json) -> str:
    """The last sentence about a job that has ended."""
    code = f" with exit code {job['exit_code']}" if job["exit_code"] else ""
    return f"{job['id']} {job['state']}{code}: {money(job['usd_micros'])} USD so far."
