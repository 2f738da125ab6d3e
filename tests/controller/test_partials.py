"""Requests for what a running job has written so far: done, pending, or nothing will come of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import AgentState, Desired, OutputObject, Partial, Report
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from sqlalchemy import Engine
from support.builders import JOB, NOW, a_job, an_attempt

from spotsurfer.controller.apply import Apply
from spotsurfer.controller.jobs.partial_outputs import Partials
from spotsurfer.model.actions import Ask
from spotsurfer.model.errors import Conflict, NotFound
from spotsurfer.model.job import AttemptNumber
from spotsurfer.model.job import AttemptState as A
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database
from spotsurfer.store.agent_reports import Heard, Reports

SAID = Report(JOB, 1, "i-1", "0", 1, AgentState.RUNNING, 1)


@pytest.fixture
def store(tmp_path: Path) -> ObstoreStore:
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def engine() -> Engine:
    made = open_database(None)
    with made.begin() as c:
        rows.add_job(c, a_job(partials_asked=2))
    return made


def hold(engine: Engine, state: A = A.RUNNING, desired: int = 2, number: int = 1) -> None:
    with engine.begin() as c:
        rows.add_attempt(c, an_attempt(number, state, desired_partial=desired))


def there(store: ObstoreStore, number: int, attempt: int = 1) -> None:
    store.put(object_keys.partial_prefix(JOB, number, attempt) + "deep/LIST", b"abc")
    told = Partial(number, attempt, "main", "now", {"deep/LIST": OutputObject(3, "d" * 64)}, ["*.log"])
    assert store.create(object_keys.partial_key(JOB, number, attempt), json_codec.encode(told))


def partials(engine: Engine, store: ObstoreStore, said: Report | None = SAID) -> Partials:
    reports = Reports(store)
    if said is not None:
        reports._heard[JOB, 1] = Heard(said, "", NOW)
    return Partials(engine, store, reports)


def test_pending_until_the_list_is_there(engine: Engine, store: ObstoreStore) -> None:
    hold(engine)
    assert partials(engine, store).seen(JOB, 2).done is False
    store.put(object_keys.partial_prefix(JOB, 2, 1) + "x", b"half of it")
    store.put(object_keys.partial_prefix(JOB, 2, 1) + "LIST", b"a file of that name")
    assert partials(engine, store).seen(JOB, 2).done is False
    there(store, 2)
    seen = partials(engine, store).seen(JOB, 2)
    assert (seen.done, seen.step, [f.path for f in seen.outputs], seen.missing) == (True, "main", ["deep/LIST"], ["*.log"])
    assert b"".join(partials(engine, store).file(JOB, 2, "deep/LIST")) == b"abc"
    with pytest.raises(NotFound):
        partials(engine, store).file(JOB, 2, "../../SPEC.json")


def test_what_failed_on_the_machine_is_said(engine: Engine, store: ObstoreStore) -> None:
    hold(engine)
    with pytest.raises(Conflict, match=r"the disk is full.*asks again"):
        partials(engine, store, replace(SAID, partial=2, partial_error="the disk is full")).seen(JOB, 2)
    with pytest.raises(Conflict, match="a newer request"):
        partials(engine, store, replace(SAID, partial=2)).seen(JOB, 1)


def test_a_job_that_left_its_machine_takes_the_request_along(engine: Engine, store: ObstoreStore) -> None:
    with pytest.raises(Conflict, match="left its machine"):
        partials(engine, store, None).seen(JOB, 2)
    hold(engine, A.RELEASED)
    hold(engine, A.RUNNING, desired=0, number=2)
    with pytest.raises(Conflict, match="left its machine"):
        partials(engine, store).seen(JOB, 2)
    there(store, 2)
    assert partials(engine, store).seen(JOB, 2).done, "what is there is there"


def test_a_request_that_nobody_made(engine: Engine, store: ObstoreStore) -> None:
    for number in (0, 3):
        with pytest.raises(NotFound, match="has no request"):
            partials(engine, store).seen(JOB, number)


def test_the_request_stays_in_what_is_wanted_of_the_machine(engine: Engine, store: ObstoreStore) -> None:
    hold(engine, desired=0)
    nothing: Any = None
    apply = Apply(
        engine, nothing, store, nothing, ManualClock(NOW), "f", lambda _: "", lambda _c, _j: None, lambda _token, _id: None
    )
    for save, why, number in ((0, "so far", 2), (5, "a save", 0)):
        apply.carry_out(Ask(JOB, AttemptNumber(1), "run", save, None, None, why, number))
        data = store.get(object_keys.desired_key(JOB, 1))
        assert data is not None
        assert json_codec.decode(Desired, data).partial == 2
    with engine.connect() as c:
        assert rows.load_attempt(c, JOB, AttemptNumber(1)).desired_partial == 2
