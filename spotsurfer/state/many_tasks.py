"""Commands on tasks that never began, all at once: thousands of them in seconds, without a tick for each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, exists, or_, select, update

from spotsurfer.model.job import ASKED, ENDED, JobId, JobState, Wish
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
    ended = {"state": str(JobState.CANCELLED), "wish": str(Wish.CANCEL), "reason": BY_USER, "ended_at": now.isoformat()}
    plain = and_(never_began(wanted), J.c.spec["on_end"].as_string().in_(("[]", "()")))
    found = _changed(connection, plain, {**ended, "waits_for": ""}, "cancel", now)
    said = f"{JobState.CANCELLED}: {BY_USER}"
    data = {"state": str(JobState.CANCELLED), "exit_code": None, "usd_micros": 0}
    timeline.add_many(connection, [Moment(now, job, None, str(Kind.ENDED), said, dict(data)) for job in found])
    waited = select(D.c.on).where(D.c.on.in_(select(J.c.id).where(J.c.array == wanted.array)))
    names = {wanted.array, *connection.execute(waited.distinct()).scalars()}
    names |= {f"{o}/{n}" for o, n in connection.execute(select(J.c.owner, J.c.name).where(J.c.array == wanted.array).limit(1))}
    dependencies.ended(connection, names if found else ())
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


def left(connection: Connection, wanted: Selection, began: bool) -> list[JobId]:
    """Those of the tasks that have not ended; `began`: and had a machine."""
    mine = and_(_of(wanted), J.c.state.not_in([str(s) for s in ENDED]), or_(not began, ~_fresh()))
    return list(connection.execute(select(J.c.id).where(mine).order_by(J.c.submitted_at)).scalars())


def never_began(wanted: Selection) -> ColumnElement[bool]:
    """Tasks that have not ended and never had an attempt."""
    return and_(_of(wanted), _fresh())


def _of(wanted: Selection) -> ColumnElement[bool]:
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
