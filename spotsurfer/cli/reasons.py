"""What `why` says of a job, in plain sentences: why it waits or is where it is, why it moved, and what was not taken. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from spotsurfer.cli.follow import current
from spotsurfer.cli.printing import money, when
from spotsurfer.common.plain_words import PHASES
from spotsurfer.common.timeline_words import machine_words, outcome, plainly
from spotsurfer.common.units import counted, duration
from spotsurfer.model.job import ENDED
from spotsurfer.web.client import Json

MOVES_TOLD = 3  # the newest ones
REJECTED_TOLD = 8  # lines


def standing(job: Json) -> Iterator[str]:
    """Why the job waits, runs where it is, or does not go on; then why it moved there."""
    here, phase = current(job), str(job["phase"])
    reason = plainly(str(job["note"] or job["reason"])).rstrip(".")
    if job["state"] in ENDED:
        yield _sentence(f"It has {'succeeded' if phase == 'succeeded' else phase}", reason)
    elif phase == "held":
        yield _sentence("It is paused", reason) + f" `spotsurfer resume {job['id']}` lets it go on."
    elif phase == "suspended":
        yield _sentence("It sleeps without a machine", reason) + " It wakes when somebody connects to it, or by `resume`."
    elif here is None:
        yield _waits("It waits for a machine", reason or "the next look at the market chooses one")
    else:
        yield f"It is {phase}: {PHASES[phase]}." if phase in PHASES else f"It is {phase}."
        yield _sentence(
            f"It has {_where(here)} since {when(here['launched_at'] or here['planned_at'])}", plainly(here["purpose"])
        )
        if reason and reason != plainly(here["purpose"]):
            yield _sentence("Now", reason)
    yield from _moves(job)


def _moves(job: Json) -> Iterator[str]:
    """The newest moves, each with its reasons."""
    had = [a for a in job["attempts"] if a["granted_at"]]
    for before, after in list(pairwise(had))[-MOVES_TOLD:]:
        stood = after["pause_seconds"]
        still = f"; it stood still for {duration(stood)}" if stood is not None else ""
        left = f" (#{before['number']} ended: {plainly(before['reason'])})" if before["reason"] else ""
        yield _sentence(f"It went from #{before['number']} to #{after['number']}", f"{plainly(after['purpose'])}{left}{still}")


def _where(here: Json) -> str:
    price = money(here["price_usd_micros_per_hour"])
    machine = f"{here['market']} {here['instance_type']} in {here['zone']} ({here['provider']})"
    return f"#{here['number']}, {machine} at {price} USD an hour"


def _sentence(head: str, reason: str) -> str:
    return f"{head}: {reason}." if reason else f"{head}."


def _waits(head: str, reason: str) -> str:
    """The sentence; a reason that says for what it waits is one by itself."""
    return f"It{reason.removeprefix('it')}." if reason.startswith("it waits for ") else _sentence(head, reason)


def not_taken(decisions: Sequence[Json], most: int = REJECTED_TOLD) -> list[tuple[str, str]]:
    """What the newest decision with alternatives did not take, and why; those with one reason stand together."""
    newest: list[Json] = next((d["rejected"] for d in reversed(decisions) if d["rejected"]), [])
    by_reason: dict[str, list[str]] = {}
    for r in newest:
        by_reason.setdefault(plainly(r["why"]), []).append(machine_words(plainly(r["what"])))
    rows = [(_together(list(dict.fromkeys(what))), why) for why, what in by_reason.items()]
    left = len(rows) - most
    return rows if left <= 0 else [*rows[:most], ("…", f"{counted(left, 'more reason')}; `why -v` has all")]


def _together(what: Sequence[str]) -> str:
    return what[0] if len(what) == 1 else f"{what[0]} and {len(what) - 1} more"


def decided(decision: Json, steps: bool) -> list[str]:
    """What a decision did, sentence by sentence; `steps`: each step in between, too."""
    done = [said.text for text in decision["done"] if not (said := outcome(text)).inner or steps]
    note = plainly(decision["note"])
    return [*done, *([_waits("It waits", note).removesuffix(".")] if note and not done else [])]
