"""The database: migrations equal the schema, versions guard rows, one controller a folder."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from support.builders import NOW, a_job, an_attempt

from spotsurfer.model.errors import ControllerRunning, NotFound, SpotsurferError
from spotsurfer.model.job import HeldBy, Job, JobState, MoveRequest
from spotsurfer.model.market import Cooldown, Market
from spotsurfer.state import jobs as rows
from spotsurfer.state import journal, market
from spotsurfer.state.db import lock_state, new_family, open_database
from spotsurfer.state.schema import metadata


def test_migrations_make_exactly_the_schema() -> None:
    with open_database(None).connect() as c:
        assert compare_metadata(MigrationContext.configure(c), metadata) == []


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
        rows.add_job(c, job)
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


def test_jobs_are_found_by_name_or_beginning() -> None:
    engine = open_database(None)
    with engine.begin() as c:
        for name in ("asm-aaa", "asm-abb"):
            rows.add_job(c, replace(a_job(), id=name, spec=replace(a_job().spec, name="asm")))
    with engine.connect() as c:
        assert rows.find_job(c, "asm-ab").id == "asm-abb"
        for wrong, what in (("asm", "2 jobs"), ("nope", "no job")):
            with pytest.raises(NotFound, match=what):
                rows.find_job(c, wrong)


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
            market.set_cooldown(c, Cooldown(pool, Market.SPOT, NOW, strikes, "none left"))
        assert [k.strikes for k in market.cooldowns(c)] == [2]
        market.clear_cooldown(c, pool, Market.SPOT)
        assert market.cooldowns(c) == []
