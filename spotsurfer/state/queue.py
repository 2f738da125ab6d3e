"""The queue of jobs that have no machine yet: gates that each passes first, and the front of it, which a tick looks at.

Each queued job stands in one lane, by the column `job.waits_for`. A tick reads the beginning of each lane by an index. So many
queued jobs cost no more than a few.

Ageing is linear in the time of waiting, and alike for jobs of one priority. So among jobs of one shape and priority the oldest
is always first, and those behind the front would not get a machine before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from spotsurfer_wire.object_keys import array_of
from sqlalchemy import Connection, and_, func, or_, select, update

from spotsurfer.model.job import OVER, JobId, JobState, Wish
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import job as J

# Before a job may have its first machine; "" = it may.
DEPENDENCY, BEGIN, ARRAY = "dependency", "begin", "array"
HELD = "held"  # suspended before it began: nothing is to be done about it
BEFORE_OTHERS = (DEPENDENCY, HELD)  # gates of jobs that others may have to come before
WAITS_WORDS = {
    DEPENDENCY: "it waits for other jobs to end",
    BEGIN: "it may not begin yet",
    ARRAY: "as many tasks of its array run as may",
}
FRONT = 100  # jobs of one shape and priority that a tick looks at, beyond those with machines
FRONT_MOST = 1000  # of all

LIVING = select(A.c.job).where(A.c.state.not_in([str(s) for s in OVER]))
QUEUED = and_(J.c.state == str(JobState.QUEUED), J.c.wish == str(Wish.RUN))

BUSY = (  # each by an index, however many others there are
    select(J.c.id).where(
        J.c.state.in_([str(JobState.ACTIVE), str(JobState.HELD)]),
        J.c.wish.in_([str(w) for w in Wish]),
        J.c.waits_for.in_(["", DEPENDENCY, BEGIN, ARRAY]),
    ),
    select(J.c.id).where(J.c.state == str(JobState.QUEUED), J.c.wish.in_([str(Wish.HOLD), str(Wish.CANCEL)])),
    # Rows that nobody can read: they are set aside, and told of.
    select(J.c.id).where(or_(J.c.state.not_in([str(s) for s in JobState]), J.c.wish.not_in([str(w) for w in Wish]))),
)
PRESSING = select(J.c.id, J.c.waits_for).where(J.c.pressing, J.c.state == str(JobState.QUEUED))  # few: those with a deadline


def let_begin(connection: Connection, now: datetime) -> None:
    """Open the gate of jobs that wait for a time that has come."""
    due = and_(QUEUED, J.c.waits_for == BEGIN, J.c.begins_at <= now.isoformat())
    if connection.execute(select(J.c.id).where(due).limit(1)).first() is not None:
        connection.execute(update(J).where(due, J.c.array_limit > 0).values(waits_for=ARRAY))
        connection.execute(update(J).where(due).values(waits_for=""))


def to_look_at(connection: Connection) -> list[JobId]:
    """Jobs that a tick is about: all with machines or something to be done, and the front of the queue."""
    found = dict[str, None]()
    for query in (*BUSY, LIVING.distinct()):
        found |= dict.fromkeys(connection.execute(query).scalars())
    found |= dict.fromkeys(id for id, waits_for in connection.execute(PRESSING) if not waits_for)
    found |= dict.fromkeys(_front(connection))
    return [JobId(id) for id in found]


def _front(connection: Connection) -> Iterator[str]:
    lanes = connection.execute(
        select(J.c.shape, J.c.priority).where(QUEUED, J.c.waits_for == "").distinct().order_by(J.c.priority.desc())
    ).all()
    each = max(1, min(FRONT, FRONT_MOST // max(len(lanes), 1)))
    for shape, priority in lanes[:FRONT_MOST]:
        of_lane = and_(QUEUED, J.c.waits_for == "", J.c.shape == shape, J.c.priority == priority)
        yield from connection.execute(select(J.c.id).where(of_lane).order_by(J.c.submitted_at, J.c.id).limit(each)).scalars()
    limited = connection.execute(
        select(J.c.array, func.min(J.c.array_limit)).where(QUEUED, J.c.waits_for == ARRAY).group_by(J.c.array)
    ).all()
    for array, limit in limited:
        room = min(limit - started(connection, array), FRONT)
        if room > 0:
            tasks = select(J.c.id).where(J.c.array == array, QUEUED, J.c.waits_for == ARRAY)
            yield from connection.execute(tasks.order_by(J.c.submitted_at).limit(room)).scalars()


def started(connection: Connection, array: str) -> int:
    """Tasks of an array that have a machine, run or are suspended."""
    going = and_(J.c.array == array, J.c.state.in_([str(JobState.ACTIVE), str(JobState.HELD)]), J.c.waits_for != HELD)
    near = and_(A.c.job >= f"{array}-", A.c.job < f"{array}.")  # by the index: tasks' ids begin so, and maybe others'
    alive = connection.execute(select(A.c.job).where(A.c.state.not_in([str(s) for s in OVER]), near)).scalars()
    leaving = {id for id in alive if array_of(id) == array}
    return len({*connection.execute(select(J.c.id).where(going)).scalars(), *leaving})


def before(connection: Connection, job: JobId) -> int:
    """How many queued jobs of the same shape and priority come before it; 0 = it waits for something else, or not at all."""
    me = J.alias()
    same = and_(J.c.shape == me.c.shape, J.c.priority == me.c.priority, J.c.waits_for == "", me.c.waits_for == "")
    earlier = or_(J.c.submitted_at < me.c.submitted_at, and_(J.c.submitted_at == me.c.submitted_at, J.c.id < me.c.id))
    waits = and_(me.c.id == job, me.c.state == str(JobState.QUEUED), me.c.wish == str(Wish.RUN))
    return connection.execute(select(func.count()).select_from(J).join(me, waits).where(QUEUED, same, earlier)).scalar_one()


def gate_of(connection: Connection, job: JobId) -> str:
    """What a queued job waits for before it may have its first machine; "" = nothing."""
    return str(connection.execute(select(J.c.waits_for).where(J.c.id == job)).scalar() or "")
