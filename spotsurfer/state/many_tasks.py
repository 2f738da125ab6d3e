"""Commands on tasks that never began, all at once: thousands of them in seconds, without a tick for each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, exists, func, or_, select, true, update

from spotsurfer.model.job import ASKED, ENDED, JobId, JobState, Wish
from spotsurfer.model.queueing.dependencies import NEVER
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.service import Moment
from spotsurfer.state import dependencies, queue, timeline
from spotsurfer.state.jobs import Selection
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import dependency as D
from spotsurfer.state.schema import job as J

BY_USER = "cancelled by its user"


def cancel(connection: Connection, wanted: Selection, now: datetime) -> list[JobId]:
    """End those of the tasks that never began, and whose end starts nothing; returns them."""
    return _end(connection, never_began(wanted), BY_USER, now)


def cancel_hopeless(connection: Connection, now: datetime) -> None:
    """End jobs that wait for what can't come any more, and those that can't come because of that."""
    hopeless = select(D.c.job).where(D.c.never != "")
    while _end(connection, and_(_fresh(), J.c.id.in_(hopeless)), NEVER, now):
        pass


def _end(connection: Connection, which: ColumnElement[bool], why: str, now: datetime) -> list[JobId]:
    ended = {"state": str(JobState.CANCELLED), "wish": str(Wish.CANCEL), "reason": why, "ended_at": now.isoformat()}
    plain = and_(which, J.c.spec["on_end"].as_string().in_(("[]", "()")))
    found = _changed(connection, plain, {**ended, "waits_for": ""}, "cancel", now)
    data = {"state": str(JobState.CANCELLED), "exit_code": None, "usd_micros": 0}
    said = f"{JobState.CANCELLED}: {why}"
    timeline.add_many(connection, [Moment(now, job, None, str(Kind.ENDED), said, dict(data)) for job in found])
    connection.execute(delete(D).where(D.c.job.in_(found)))
    names = set[str](found)
    for array, owner, name in connection.execute(select(J.c.array, J.c.owner, J.c.name).where(J.c.id.in_(found)).distinct()):
        names |= {*([array] if array else []), f"{owner}/{name}"}
    dependencies.ended(connection, names)
    return found


def hold(connection: Connection, wanted: Selection, now: datetime) -> list[JobId]:
    """Suspend those of the tasks that never began; returns them."""
    held = {"state": str(JobState.HELD), "wish": str(Wish.HOLD), "held_by": "", "reason": ASKED, "waits_for": queue.HELD}
    mine = and_(never_began(wanted), J.c.state == str(JobState.QUEUED))
    return _changed(connection, mine, held, "suspend", now)


def resume(connection: Connection, wanted: Selection, now: datetime) -> list[JobId]:
    """Let those of the tasks wait for their turn again that were suspended before they began; returns them."""
    waits = exists().where(D.c.job == J.c.id)
    gate = case(
        (waits, queue.DEPENDENCY), (J.c.begins_at > now.isoformat(), queue.BEGIN), (J.c.array_limit > 0, queue.ARRAY), else_=""
    )
    run = {"state": str(JobState.QUEUED), "wish": str(Wish.RUN), "reason": "", "resumed_at": now.isoformat(), "waits_for": gate}
    return _changed(connection, and_(never_began(wanted), J.c.waits_for == queue.HELD), run, "resume", now)


def prioritize(connection: Connection, wanted: Selection, now: datetime, *, priority: int) -> list[JobId]:
    """Give those of the tasks that never began another priority; returns them."""
    spec = func.json_set(J.c.spec, "$.priority", priority)
    mine = and_(never_began(wanted), J.c.priority != priority)
    return _changed(connection, mine, {"priority": priority, "spec": spec}, f"priority {priority}", now)


def left(connection: Connection, wanted: Selection, began: bool) -> list[JobId]:
    """Those of the tasks that have not ended; `began`: and had a machine."""
    mine = and_(_of(wanted), J.c.state.not_in([str(s) for s in ENDED]), ~_fresh() if began else true())
    return list(connection.execute(select(J.c.id).where(mine).order_by(J.c.submitted_at)).scalars())


def never_began(wanted: Selection) -> ColumnElement[bool]:
    """Tasks that have not ended and never had an attempt."""
    return and_(_of(wanted), _fresh())


def _of(wanted: Selection) -> ColumnElement[bool]:
    if wanted.job:  # that waits before a gate: others are the tick's
        return and_(J.c.id == wanted.job, J.c.waits_for != "")
    mine = J.c.array == wanted.array
    return mine if wanted.tasks is None else and_(mine, J.c.task.in_(wanted.tasks))


def _fresh() -> ColumnElement[bool]:
    waiting = or_(J.c.state == str(JobState.QUEUED), J.c.waits_for == queue.HELD)
    return and_(waiting, ~exists().where(A.c.job == J.c.id))


def _changed(
    connection: Connection, which: ColumnElement[bool], values: Mapping[str, Any], what: str, now: datetime
) -> list[JobId]:
    query = update(J).where(which).values(**values, version=J.c.version + 1).returning(J.c.id)
    found = [JobId(id) for id in connection.execute(query).scalars()]
    told = [Moment(now, job, None, str(Kind.WISH), f"{what}, asked by its user") for job in found]
    timeline.add_many(connection, told)
    return found
