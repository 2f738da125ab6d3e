"""The database: migrations equal the schema, versions guard rows, one controller a folder."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, text
from support.builders import NOW, a_job, an_attempt

from spotsurfer.model.errors import ControllerRunning, NotFound, SpotsurferError
from spotsurfer.model.job import HeldBy, Job, JobId, JobState, MoveRequest
from spotsurfer.model.market import Cooldown, Market
from spotsurfer.state import jobs as rows
from spotsurfer.state import journal, ledger_facts, observations
from spotsurfer.state.db import lock_state, migrate, new_family, open_database
from spotsurfer.state.schema import metadata


def test_migrations_make_exactly_the_schema() -> None:
    with open_database(None).connect() as c:
        assert compare_metadata(MigrationContext.configure(c), metadata) == []


def test_what_agents_counted_before_there_was_a_record_by_day_is_kept(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    migrate(engine, "0014")
    with engine.begin() as c:
        doc = '{"store_read_bytes": 7, "store_sent_bytes": 9}'
        values = "('j', 2, '2026-01-01T12:00:00+00:00', 0, 0, 0, :doc), ('old', 1, '2026-01-02T12:00:00+00:00', 0, 0, 0, '{}')"
        c.execute(
            text(f"INSERT INTO usage (job, attempt, at, cpu_seconds, frozen_seconds, saves, doc) VALUES {values}"), {"doc": doc}
        )
    with open_database(tmp_path / "x.db").connect() as c:
        found = ledger_facts.counts(c, [JobId("j"), JobId("old")])
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert found == {("j", 2): [(at, 7, 9, 0, 0)], ("old", 1): [(at + timedelta(days=1), 0, 0, 0, 0)]}


def test_an_old_database_opens_again(tmp_path: Path) -> None:
    family = new_family(open_database(tmp_path / "x.db"))
    assert new_family(open_database(tmp_path / "x.db")) == family


def test_one_that_a_newer_version_migrated_is_refused(tmp_path: Path) -> None:
    with open_database(tmp_path / "x.db").begin() as c:
        c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SpotsurferError, match="was migrated by a newer spotsurfer: install that one again"):
        open_database(tmp_path / "x.db")


def test_what_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.db").mkdir()
    with pytest.raises(SpotsurferError, match="can't be opened"):
        open_database(tmp_path / "x.db")


def test_one_controller_a_folder(tmp_path: Path) -> None:
    fd = lock_state(tmp_path)
    with pytest.raises(ControllerRunning):
        lock_state(tmp_path)
    os.close(fd)
    os.close(lock_state(tmp_path))


def full_job() -> Job:
    move = MoveRequest(2, NOW, "m6i.large", Market.SPOT)
    spec = {"inputs": ("a", "b"), "tags": {"x": "y"}, "on_end": ("mail", "me")}
    return a_job(spec, move=move, held_by=HeldBy.IDLE, ended_at=NOW + timedelta(seconds=1), exit_code=3)


def test_rows_round_trip() -> None:
    engine = open_database(None)
    job, attempt = full_job(), an_attempt(1, released_at=NOW, reclaimed=True)
    with engine.begin() as c:
        job = rows.add_job(c, job)
        rows.add_attempt(c, attempt)
    with engine.connect() as c:
        assert rows.load_job(c, job.id) == job
        assert rows.load_attempt(c, job.id, attempt.number) == attempt


def test_a_row_that_moved_on_is_not_overwritten() -> None:
    engine = open_database(None)
    with engine.begin() as c:
        rows.add_job(c, a_job())
        rows.add_attempt(c, an_attempt())
        rows.save_job(c, replace(a_job(), failures=1))
        rows.save_attempt(c, an_attempt())
    with engine.begin() as c:
        with pytest.raises(rows.Stale):
            rows.save_job(c, a_job())
        with pytest.raises(rows.Stale):
            rows.save_attempt(c, an_attempt())
        assert rows.load_job(c, a_job().id).failures == 1


@pytest.fixture
def assemblies() -> Engine:
    """Runs of one name, oldest first: the second one runs, the others have ended."""
    engine = open_database(None)
    with engine.begin() as c:
        for n, (name, state) in enumerate((("asm-aaa", "succeeded"), ("asm-abb", "active"), ("asm-acc", "failed"))):
            spec = replace(a_job().spec, name="asm")
            rows.add_job(c, replace(a_job(), id=name, spec=spec, state=JobState(state), submitted_at=NOW + timedelta(n)))
        rows.add_job(c, replace(a_job(), id="zebra-production-1", spec=replace(a_job().spec, name="zebra-production")))
    return engine


@pytest.mark.parametrize(
    ("name", "found"),
    [("asm-aaa", "asm-aaa"), ("asm", "asm-abb"), ("zebra-production", "zebra-production-1")],
)
def test_what_changes_a_job_takes_its_whole_id_or_name(assemblies: Engine, name: str, found: str) -> None:
    with assemblies.connect() as c:
        assert rows.named_job(c, name).id == rows.find_job(c, name).id == found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("z", "write its whole id or name; did you mean zebra-production-1?"),
        ("asm-a", "did you mean asm-acc or asm-abb or asm-aaa?"),
        ("nope", "`spotsurfer list` shows all"),
        ("", "`spotsurfer list` shows all"),
        ("a%", "`spotsurfer list` shows all"),
    ],
)
def test_a_beginning_changes_nothing(assemblies: Engine, name: str, said: str) -> None:
    """`cancel z` cancelled a job of somebody's production."""
    with assemblies.connect() as c, pytest.raises(NotFound, match=re.escape(said)):
        rows.named_job(c, name)


def test_who_only_looks_may_write_a_beginning(assemblies: Engine) -> None:
    with assemblies.connect() as c:
        assert rows.find_job(c, "z").id == "zebra-production-1"
        with pytest.raises(NotFound, match="asm-acc or asm-abb"):
            rows.find_job(c, "asm-a")


def test_of_ended_runs_the_newest_is_meant(assemblies: Engine) -> None:
    with assemblies.begin() as c:
        rows.save_job(c, replace(rows.load_job(c, JobId("asm-abb")), state=JobState.SUCCEEDED))
        assert rows.named_job(c, "asm").id == "asm-acc"


def test_open_jobs_are_those_with_something_to_do() -> None:
    engine = open_database(None)
    with engine.begin() as c:
        for name, state in (("a", JobState.ACTIVE), ("b", JobState.SUCCEEDED), ("c", JobState.SUCCEEDED)):
            rows.add_job(c, replace(a_job(), id=name, state=state))
        rows.add_attempt(c, replace(an_attempt(), job="b"))
        assert [j.id for j in rows.open_jobs(c)] == ["a", "b"]


def test_the_journal_remembers_what_was_begun() -> None:
    engine = open_database(None)
    with engine.begin() as c:
        one, two = journal.begin(c, "launch/x/1", NOW), journal.begin(c, "launch/x/2", NOW)
        journal.finish(c, one, "done", NOW)
        assert journal.unfinished(c) == [(two, "launch/x/2")]


def test_cooldowns_are_replaced_and_cleared() -> None:
    engine = open_database(None)
    pool = an_attempt().pool
    with engine.begin() as c:
        for strikes in (1, 2):
            observations.set_cooldown(c, Cooldown(pool, Market.SPOT, NOW, strikes, "none left"))
        assert [k.strikes for k in observations.cooldowns(c)] == [2]
        observations.clear_cooldown(c, pool, Market.SPOT)
        assert observations.cooldowns(c) == []
