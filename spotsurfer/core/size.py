"""What holds for every size policy: the guard's rescue, what a job foretold, and a limit on moves an hour.

The limit is kept by a reserve: after a wish there is room for two rescues. The first goes where the highest peak so far has
room, so that the second is needed for a new peak alone; what uses up the last goes to the largest type, from where none can be.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from spotsurfer.ports.size import Kind, Moment, Size, SizeChoice, SizeTerms, cheapest_holding

HOUR = 3600.0
MOVES_PER_HOUR = 12
RESERVE = 2  # rescues that there is room for after a wish


@dataclass(frozen=True, slots=True)
class SizeRules:
    """The operator's, for jobs that run. `look_seconds` is a multiple of what a window of usage covers."""

    look_seconds: float = 60.0
    moves_per_hour: int = MOVES_PER_HOUR
    cool_down_seconds: float = 0.0
    cpu_factor: float = 4.0  # times the processors that were asked for, at most
    memory_factor: float = 4.0


@dataclass(frozen=True, slots=True)
class Course:
    """One run so far. `moved`: when, in seconds since it began, during the last hour; `alarm`: what the policy did wrong."""

    terms: SizeTerms
    moves_per_hour: int
    here: int
    memory: Any = None
    peak_bytes: float = 0.0
    hinted_bytes: float = 0.0
    cores: float = 0.0  # last seen
    moved: tuple[float, ...] = field(default=())
    alarm: str = ""
    rest_seconds: float = 0.0  # after a move wishes are not heard for so long

    def moves_in_last_hour(self, now: float) -> int:
        """Those that count at this moment."""
        return sum(now - m < HOUR for m in self.moved)


def begin(policy: Size, terms: SizeTerms, moves_per_hour: int = MOVES_PER_HOUR, rest_seconds: float = 0.0) -> Course:
    """Raises ValueError for a limit that would leave no way up after a move down."""
    if moves_per_hour <= RESERVE:
        raise ValueError(f"moves_per_hour must be at least {RESERVE + 1}: after a move down, {RESERVE} are kept for the way up")
    try:
        memory, start = policy.begin(terms)
        alarm = "" if _known(start, terms) else f"the size policy began on {start!r:.40}, which there is not"
    except Exception as e:  # somebody else's code: the job goes on where it was asked to be
        memory, start, alarm = None, terms.start, f"the size policy failed to begin: {type(e).__name__}: {e}"
    return Course(terms, moves_per_hour, terms.start if alarm else start, memory, alarm=alarm, rest_seconds=rest_seconds)


def look(policy: Size, course: Course, moment: Moment, now: float, guarded: bool = True) -> tuple[Course, SizeChoice]:
    """Ask, and let through what may be. `now`: seconds since the run began; `guarded`: the guard watches the job."""
    course = replace(
        course,
        peak_bytes=max(course.peak_bytes, moment.memory_max_bytes),
        hinted_bytes=moment.hinted_bytes,
        cores=moment.cores,
    )
    course, choice = _ask(policy, course, moment)
    return course, allowed(course, roomy(course, choice, moment), moment, now, guarded)


def roomy(course: Course, choice: SizeChoice, moment: Moment) -> SizeChoice:
    """The choice, or one that has room for what the job foretold."""
    kinds, need = course.terms.kinds, max(moment.memory_bytes, moment.hinted_bytes)
    target = moment.here if choice.to is None else choice.to
    if kinds[target].usable_bytes < need:
        up = cheapest_holding(kinds, need, max(moment.cores, moment.hinted_cores))
        if up is None or up == moment.here:
            return SizeChoice()
        foretold = moment.hinted_bytes > moment.memory_bytes
        return SizeChoice(up, "the job foretold that it needs more memory" if foretold else "it uses more than that holds")
    return SizeChoice(None, choice.why) if target == moment.here else choice


def allowed(course: Course, choice: SizeChoice, moment: Moment, now: float, guarded: bool) -> SizeChoice:
    """The choice, or to stay where a rule forbids it."""
    kinds = course.terms.kinds
    if choice.to is None:
        return choice
    if not guarded and kinds[choice.to].memory_bytes < kinds[moment.here].memory_bytes:
        return SizeChoice(None, "nobody would hold the job before its memory ends: it gets no less")
    if not spare(course, now):
        return SizeChoice(None, f"not more than {course.moves_per_hour} moves an hour")
    if moment.free:
        return choice
    if course.moved and now - course.moved[-1] < course.rest_seconds:
        return SizeChoice(None, f"it was moved {now - course.moved[-1]:.0f} s ago and rests for {course.rest_seconds:.0f}")
    return choice


def spare(course: Course, now: float) -> bool:
    """One move more leaves room for the rescues that it may lead to."""
    return course.moves_in_last_hour(now) + 1 + RESERVE <= course.moves_per_hour


def rescue(course: Course, memory_bytes: float, now: float) -> int | None:
    """Where a job goes whose memory is at its limit; None = there is nothing larger."""
    kinds = course.terms.kinds
    least = kinds[course.here].usable_bytes * 1.001
    need = max(least, memory_bytes, course.peak_bytes, course.hinted_bytes)
    if course.moves_in_last_hour(now) + 1 >= course.moves_per_hour:
        need = max(need, max(k.usable_bytes for k in kinds))
    found = cheapest_holding(kinds, need, course.cores)
    return found if found is not None else _larger(kinds, memory_bytes, course)


def moved(course: Course, to: int, now: float) -> Course:
    """After a move, of whatever kind, that began at `now`."""
    kept = tuple(m for m in course.moved if now - m < HOUR)
    return replace(course, here=to, moved=(*kept, now))


def _larger(kinds: tuple[Kind, ...], memory_bytes: float, course: Course) -> int | None:
    """What was foretold may be more than there is: the largest, if that is larger than here."""
    largest = max(range(len(kinds)), key=lambda i: kinds[i].memory_bytes)
    holds = kinds[largest].usable_bytes >= memory_bytes
    return largest if holds and kinds[largest].memory_bytes > kinds[course.here].memory_bytes else None


def _ask(policy: Size, course: Course, moment: Moment) -> tuple[Course, SizeChoice]:
    """Its choice; nothing, and an alarm, where it raises or names what there is not."""
    try:
        answer: tuple[Any, Any] = policy.look(course.memory, moment)
        memory, choice = answer
        wrong = not (isinstance(choice, SizeChoice) and (choice.to is None or _known(choice.to, course.terms)))
    except Exception as e:  # somebody else's code: whatever it raises must not move a job
        return replace(course, alarm=f"the size policy failed: {type(e).__name__}: {e}"), SizeChoice()
    if wrong:
        return replace(course, alarm=f"the size policy chose {choice!r:.80}, which there is not"), SizeChoice()
    return replace(course, memory=memory), choice


def _known(index: object, terms: SizeTerms) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(terms.kinds)
