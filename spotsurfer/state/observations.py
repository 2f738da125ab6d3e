"""Observations of clouds and machines: spot availability, notices, cool-downs, prices, last reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from spotsurfer_wire import json_codec
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Report
from sqlalchemy import Connection, and_, delete, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from spotsurfer.model.job import AttemptNumber, JobId
from spotsurfer.model.market import Cooldown, Market, Pool
from spotsurfer.model.snapshot import SpotSeen
from spotsurfer.state import ledger_facts
from spotsurfer.state.schema import cooldown as C
from spotsurfer.state.schema import price as P
from spotsurfer.state.schema import sighting as N
from spotsurfer.state.schema import spot_seen as S
from spotsurfer.state.schema import usage as U

# ---- Spot availability by pool: purchase policies look back on it and learn from it


def add_spot_seen(connection: Connection, pool: str, seen: SpotSeen) -> None:
    """Record a change of a pool's availability."""
    values = {"pool": pool, "at": seen.at.isoformat(), "up": seen.up}
    connection.execute(upsert(S).values(**values).on_conflict_do_update(index_elements=["pool", "at"], set_={"up": seen.up}))


def spot_seen_since(connection: Connection, oldest: datetime) -> dict[str, list[SpotSeen]]:
    """The changes since `oldest`, by pool, oldest first."""
    found: dict[str, list[SpotSeen]] = {}
    for r in connection.execute(select(S).where(S.c.at >= oldest.isoformat()).order_by(S.c.pool, S.c.at)):
        found.setdefault(r.pool, []).append(SpotSeen(datetime.fromisoformat(r.at), r.up))
    return found


def prune_spot_seen(connection: Connection, oldest: datetime) -> None:
    """Forget older changes."""
    connection.execute(delete(S).where(S.c.at < oldest.isoformat()))


# ---- Notices about machines: one row per instance and sign, from the first witness that reports it

KEPT_HOURS = 48  # after so long a reclaimed instance is gone from listings, too


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """A notice. `at` is on our clock, and the earliest possible time of the event."""

    instance: str
    sign: str
    at: datetime
    text: str


def add_notice(connection: Connection, row: NoticeRow) -> bool:
    """Record a notice and forget old ones; False if it was known already, then nothing changes."""
    oldest = (row.at - timedelta(hours=KEPT_HOURS)).isoformat()
    connection.execute(delete(N).where(N.c.at < oldest))
    values = {"instance": row.instance, "sign": row.sign, "at": row.at.isoformat(), "text": row.text}
    return connection.execute(upsert(N).values(**values).on_conflict_do_nothing()).rowcount == 1


def notices_of(connection: Connection, instances: Collection[str]) -> dict[str, list[NoticeRow]]:
    """The notices about these instances, oldest first. A region's queue also reports machines of others."""
    found: dict[str, list[NoticeRow]] = {}
    for r in connection.execute(select(N).where(N.c.instance.in_(instances)).order_by(N.c.at)):
        found.setdefault(r.instance, []).append(NoticeRow(r.instance, r.sign, datetime.fromisoformat(r.at), r.text))
    return found


log = structlog.get_logger()
RUNG = "rung"  # beside a report: its protection, or the last one while the job ran there
USAGE_TOLD = 2  # windows: the last whole one and the one that grows
NEW = upsert(U)
PUT = NEW.on_conflict_do_update(index_elements=list(U.primary_key), set_={c.name: c for c in NEW.excluded if not c.primary_key})


def cooldowns(connection: Connection) -> list[Cooldown]:
    """All cool-downs, expired ones included: their strikes make the next wait longer."""
    found = connection.execute(select(C.c.doc)).scalars()
    times = datetime.fromisoformat
    return [Cooldown(Pool(**d["pool"]), Market(d["market"]), times(d["until"]), d["strikes"], d["reason"]) for d in found]


def set_cooldown(connection: Connection, c: Cooldown) -> None:
    """Remember or replace."""
    doc = {**dataclasses.asdict(c), "market": str(c.market), "until": c.until.isoformat()}
    values = {"pool": str(c.pool), "market": str(c.market), "doc": doc}
    connection.execute(upsert(C).values(**values).on_conflict_do_update(index_elements=["pool", "market"], set_=values))


def clear_cooldown(connection: Connection, pool: Pool, market: Market) -> None:
    """The pool gave a machine: its strikes are forgotten."""
    connection.execute(delete(C).where(and_(C.c.pool == str(pool), C.c.market == str(market))))


def add_price(connection: Connection, job: JobId, attempt: AttemptNumber, at: datetime, price: int) -> None:
    """From `at` on the attempt's machine costs this much, micro-dollars an hour."""
    values = {"job": job, "attempt": attempt, "at": at.isoformat(), "usd_micros_per_hour": price}
    connection.execute(insert(P).prefix_with("OR IGNORE").values(**values))


def prices(connection: Connection, jobs: Sequence[JobId]) -> dict[tuple[JobId, AttemptNumber], list[tuple[datetime, int]]]:
    """Price steps of each attempt of these jobs, oldest first."""
    query = select(P).where(P.c.job.in_(list(jobs))).order_by(P.c.job, P.c.attempt, P.c.at)
    found: dict[tuple[JobId, AttemptNumber], list[tuple[datetime, int]]] = {}
    for r in connection.execute(query).mappings():
        key = (JobId(r["job"]), AttemptNumber(r["attempt"]))
        found.setdefault(key, []).append((datetime.fromisoformat(r["at"]), int(r["usd_micros_per_hour"])))
    return found


def kept(report: Report) -> Report:
    """The stored part of a report: only the newest usage windows, because all windows have a table of their own."""
    if report.usage is None:
        return report
    return dataclasses.replace(report, usage=dataclasses.replace(report.usage, rows=report.usage.rows[-USAGE_TOLD:]))


def set_usage(connection: Connection, report: Report, at: datetime) -> None:
    """Keep the last report of an attempt."""
    report = kept(report)
    values: dict[str, Any] = {
        "job": report.job,
        "attempt": report.attempt,
        "at": at.isoformat(),
        "cpu_seconds": report.cpu_seconds,
        "frozen_seconds": report.frozen_seconds,
        "saves": report.saves,
        "doc": {**dataclasses.asdict(report), RUNG: report.protection or _rung(connection, report.job, report.attempt)},
    }
    connection.execute(PUT, values)
    ledger_facts.add_counts(connection, report, at)


def last_reports(connection: Connection, jobs: Sequence[JobId]) -> dict[tuple[str, int], Report]:
    """The last report of each attempt of these jobs."""
    return {key: report for key, (_, report) in last_words(connection, jobs).items()}


def last_words(connection: Connection, jobs: Sequence[JobId]) -> dict[tuple[str, int], tuple[datetime, Report]]:
    """The last report of each attempt of these jobs, and when it came."""
    rows = connection.execute(select(U.c.job, U.c.attempt, U.c.at, U.c.doc).where(U.c.job.in_(list(jobs))))
    known = ((row, report) for row in rows if (report := report_of(row.doc)) is not None)
    return {(row.job, row.attempt): (datetime.fromisoformat(row.at), report) for row, report in known}


def last_report(connection: Connection, job: str, attempt: int) -> Report | None:
    """The last report of one attempt."""
    doc = connection.execute(select(U.c.doc).where(and_(U.c.job == job, U.c.attempt == attempt))).scalar()
    return None if doc is None else report_of(doc)


def rungs(connection: Connection, job: str) -> set[str]:
    """How a job could be saved while it ran: the last rung under each attempt that reported one."""
    docs = connection.execute(select(U.c.doc).where(U.c.job == job)).scalars()
    return {rung for doc in docs if (rung := doc.get(RUNG))}


def _rung(connection: Connection, job: str, attempt: int) -> str:
    """The stored rung: the last report comes from a job that no longer runs, and has none."""
    doc = connection.execute(select(U.c.doc).where(and_(U.c.job == job, U.c.attempt == attempt))).scalar()
    return "" if doc is None else str(doc.get(RUNG, ""))


def report_of(doc: dict[str, Any]) -> Report | None:
    """The report; None for one that an older version accepted and this one does not: it counts as missing."""
    try:
        return json_codec.decode(Report, json.dumps({"protocol": json_codec.PROTOCOL, **doc}).encode())
    except ProtocolError as e:
        log.warning("report.passed-over", job=doc.get("job"), attempt=doc.get("attempt"), error=str(e))
        return None
