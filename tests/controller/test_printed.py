"""A job's output as the service tells it: which attempt's, in which order, and what it asks the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.log_pieces import Row
from spotsurfer_wire.messages import Done, Head, HeadKind
from support.builders import JOB, a_job

from spotsurfer.config.settings import Settings
from spotsurfer.controller import wiring
from spotsurfer.model.errors import NotFound
from spotsurfer.model.job import JobState
from spotsurfer.ports.service import LogAsk
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[wiring.Controller]:
    """Its job failed and ran again: attempts 1 and 4 had it, two more never did."""
    made = wiring.build(Settings(controller={"data_dir": str(tmp_path / "data")}))  # type: ignore[arg-type]
    store = made.service.stored_output._store
    kinds = [(HeadKind.GRANT, 1), (HeadKind.DONE, 1), (HeadKind.GRANT, 4)]
    for number, (kind, epoch) in enumerate(kinds, 1):
        done = Done(3, "exited") if kind is HeadKind.DONE else None
        entry = Head(number, kind, epoch, None, 0, False, done, 0.0, f"n{number}", "")
        store.create(object_keys.head_key(JOB, number), json_codec.encode(entry))
    for attempt, out, err in ((1, b"first run\n", b"no\n"), (4, b"second run\n", b"oh\n")):
        record = Row(1000, 0, 0).packed() + Row(2000, 0, 3).packed() + Row(3000, len(out), 3).packed()
        for stream, data in (("times", record), ("out", out), ("err", err)):
            store.create(object_keys.log_key(JOB, attempt, stream, 0, len(data)), data)
    with open_database(tmp_path / "data" / "state.db").begin() as c:
        rows.add_job(c, a_job())
    yield made
    made.stop()


def test_the_newest_run_in_order_and_where_earlier_ones_are(controller: wiring.Controller) -> None:
    found = controller.service.printed(JOB, LogAsk())
    assert [(p.stream, p.data) for p in found.parts] == [("err", b"oh\n"), ("out", b"second run\n")]
    assert (found.earlier, found.ended) == ([1], False)
    first = controller.service.printed(JOB, LogAsk(attempt=1))
    assert [p.data for p in first.parts] == [b"no\n", b"first run\n"]


def test_an_attempt_that_never_had_the_job(controller: wiring.Controller) -> None:
    """It was an empty answer and exit code 0."""
    for attempt in (2, 99):
        with pytest.raises(NotFound, match=rf"Attempt {attempt} .*: there is output of 1, 4\."):
            controller.service.printed(JOB, LogAsk(attempt=attempt))
        with pytest.raises(NotFound, match="there is output of 1, 4"):
            controller.service.log(JOB, "out", 0, 100, attempt)


def test_who_waits_for_news_asks_the_store_once_in_so_long(controller: wiring.Controller) -> None:
    service = controller.service
    service.printed(JOB, LogAsk())
    store, asked = service.stored_output._store, list[str]()
    place = service.printed(JOB, LogAsk(in_order=True, old_seconds=60.0)).place
    for name in ("list", "get", "get_range"):
        setattr(store, name, lambda *_, name=name: asked.append(name))
    for _ in range(20):
        assert service.printed(JOB, LogAsk(place=place, in_order=True, old_seconds=60.0)).parts == []
    assert asked == []


def test_of_an_ended_job_all_is_told_at_once(controller: wiring.Controller, tmp_path: Path) -> None:
    store = controller.service.stored_output._store
    store.create(object_keys.log_key(JOB, 4, "out", 11, 16), b"late\n")
    ask = LogAsk(in_order=True, old_seconds=60.0)
    found = controller.service.printed(JOB, ask)
    assert b"late\n" not in b"".join(p.data for p in found.parts), "its order is not recorded yet"
    with open_database(tmp_path / "data" / "state.db").begin() as c:
        rows.save_job(c, a_job(state=JobState.SUCCEEDED))
    found = controller.service.printed(JOB, ask)
    assert found.ended
    assert found.parts[-1].data.endswith(b"late\n")
