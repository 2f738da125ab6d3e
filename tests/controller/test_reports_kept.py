"""No report is lost on its way into the database, none is written down twice, and each speaks for its own attempt alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from spotsurfer_agent import protocol
from spotsurfer_agent.protocol import AgentState, Report, SaveFacts
from spotsurfer_agent.store import StoreError
from support.builders import JOB, NOW, a_job, a_snapshot, an_attempt, seen
from support.desk import Versions

from spotsurfer.controller import chronicle
from spotsurfer.controller.chronicle import Chronicle
from spotsurfer.model.job import AttemptState as A
from spotsurfer.state import jobs as rows
from spotsurfer.state import market, timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.reports import Reports

FINAL = SaveFacts("000001-000004", 4, "final", 4_000_000_000, 400_000_000, 0.6, 3.9)
FIRST = Report(JOB, 1, "i-1", "0", 8, AgentState.RUNNING, 7, cpu_seconds=10.0)
LAST = replace(FIRST, sequence=9, state=AgentState.DRAINED, cpu_seconds=20.0, last_save=FINAL)
OTHER = replace(FIRST, attempt=2, instance="i-2")
LATER = NOW + timedelta(hours=2)


class Desk:
    """A chronicle, what it listens to, and the database."""

    def __init__(self) -> None:
        self.store, self.database = Versions(), open_database(None)
        with self.database.begin() as c:
            rows.add_job(c, a_job())
        self.begin()

    def begin(self) -> None:
        """A controller that was just started."""
        self.reports, self.chronicle = Reports(self.store), Chronicle(self.database)

    def say(self, *reports: Report) -> None:
        for r in reports:
            self.store.put(protocol.live_key(r.job, r.attempt), protocol.encode(r))

    def tick(self, now: Any = NOW) -> None:
        observer = SimpleNamespace(changed=self.reports.listen(now), reports=self.reports, lookout=None)
        attempts = an_attempt(1, A.RUNNING), an_attempt(2, A.RUNNING)
        snapshot = a_snapshot(seen(attempts))
        self.chronicle.attend(snapshot.jobs)
        self.chronicle.record(observer, snapshot, now)  # type: ignore[arg-type]

    def known(self) -> Any:
        with self.database.connect() as c:
            return market.last_words(c, [JOB])

    def saved(self) -> int:
        with self.database.connect() as c:
            return sum(m.kind == "saved" for _, m in timeline.read(c, JOB, 0))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_report_that_can_not_be_read_hinders_no_other(desk: Desk) -> None:
    desk.say(LAST, OTHER)

    def fails(verb: str, key: str) -> None:
        if verb == "get" and key == protocol.live_key(JOB, 2):
            raise StoreError("away")

    desk.store.before = fails
    desk.tick()
    assert desk.known()[JOB, 1][1] == LAST
    assert (JOB, 2) not in desk.known()
    assert desk.reports.unread == {(JOB, 2): "away"}
    word = desk.reports.word(JOB, 2)
    assert word is not None and word.at == NOW, "its agent spoke, whatever it said"
    desk.store.before = lambda verb, key: None
    desk.tick(LATER)
    assert desk.known()[JOB, 2][1] == OTHER
    assert desk.saved() == 1
    assert desk.reports.unread == {}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (protocol.encode(FIRST).replace(b"10.0", b"NaN"), "NaN is no number"),
        (b"x" * 2_000_000, "too large"),
        (protocol.encode(OTHER), "another attempt"),
    ],
)
def test_a_garbled_report_is_a_sign_of_life_and_no_word(desk: Desk, body: bytes, why: str) -> None:
    desk.say(FIRST)
    desk.tick()
    desk.store.put(protocol.live_key(JOB, 1), body)
    desk.tick(LATER)
    assert desk.known()[JOB, 1][1] == FIRST
    word = desk.reports.word(JOB, 1)
    assert word is not None and word.at == LATER and word.garbled and why in word.unread


def test_a_report_that_the_database_did_not_take_is_written_down_at_the_next_tick(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.say(FIRST)
    desk.tick()
    desk.say(LAST)
    with monkeypatch.context() as m:
        m.setattr(chronicle, "news", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            desk.tick()
    assert desk.known()[JOB, 1][1] == FIRST
    desk.tick()
    assert desk.known()[JOB, 1][1] == LAST
    assert desk.saved() == 1
    desk.tick()
    assert desk.saved() == 1, "once is enough"


def test_a_controller_that_comes_back_does_not_take_an_old_report_for_a_new_one(desk: Desk) -> None:
    desk.say(LAST)
    desk.tick()
    desk.begin()
    desk.tick(LATER)
    at, report = desk.known()[JOB, 1]
    assert (at, report) == (NOW, LAST)
    assert desk.chronicle.words([an_attempt(1, A.RUNNING)]) == {1: LAST}
    assert desk.saved() == 1


def test_time_in_which_we_could_not_listen_counts_against_nobody(desk: Desk) -> None:
    """Else an outage of the store would look like the death of the whole fleet."""
    desk.say(FIRST)
    desk.reports.listen(NOW)
    desk.store.before = _away
    for minutes in (1, 2, 3):
        with pytest.raises(StoreError):
            desk.reports.listen(NOW + timedelta(minutes=minutes))
    desk.store.before = lambda verb, key: None
    desk.reports.listen(NOW + timedelta(minutes=4))
    later = NOW + timedelta(minutes=6)
    assert desk.reports.hearing(later).seconds(NOW, later) == 120, "since we hear again"


def test_who_can_not_write_has_no_right_to_call_others_silent(desk: Desk) -> None:
    """A full bucket, credentials that ended: the store lists, and takes nothing."""
    desk.say(FIRST)
    desk.reports.listen(NOW)
    desk.store.before = lambda verb, key: _away(verb, key) if verb == "put" else None
    for minutes in (1, 2, 3):
        with pytest.raises(StoreError):
            desk.reports.listen(NOW + timedelta(minutes=minutes))
    now = NOW + timedelta(minutes=3)
    assert desk.reports.hearing(now).seconds(NOW, now) == 0
    desk.store.before = lambda verb, key: None
    desk.reports.listen(NOW + timedelta(minutes=4))
    later = NOW + timedelta(minutes=5)
    assert desk.reports.hearing(later).seconds(NOW, later) == 60


def test_who_speaks_while_the_store_takes_its_time_has_just_spoken(desk: Desk) -> None:
    """Stamped with the beginning of a look of a minute, it seemed to be silent a minute too long."""
    reports = Reports(desk.store, lambda: NOW + timedelta(seconds=60))
    desk.say(FIRST)
    reports.listen(NOW)
    word = reports.word(JOB, 1)
    assert word is not None and word.at == NOW + timedelta(seconds=60)


def test_while_this_process_stood_still_nobody_was_silent(desk: Desk) -> None:
    """A laptop that slept for ten minutes ended its only box."""
    desk.reports.listen(NOW)
    desk.reports.listen(LATER)
    assert desk.reports.hearing(LATER).seconds(NOW, LATER) == 0


def test_a_report_that_is_gone_was_there_until_now(desk: Desk) -> None:
    desk.say(FIRST)
    desk.reports.listen(NOW)
    desk.store.delete([protocol.live_key(JOB, 1)])
    soon = NOW + timedelta(seconds=20)
    desk.reports.listen(soon)
    word = desk.reports.word(JOB, 1)
    assert word is not None and (word.at, word.version) == (soon, "")
    desk.reports.listen(soon + timedelta(seconds=20))
    assert desk.reports.word(JOB, 1) == word
    assert desk.reports.heard(JOB, 1) is not None
    desk.reports.noted([(JOB, 1)])
    desk.reports.keep(set())
    assert desk.reports.word(JOB, 1) is None
    assert desk.reports.heard(JOB, 1) is None


def test_before_its_first_look_a_controller_has_heard_nothing(desk: Desk) -> None:
    assert desk.reports.hearing(NOW).seconds(NOW - timedelta(hours=3), NOW) == 0
    desk.store.before = _away
    with pytest.raises(StoreError):
        desk.reports.listen(NOW)
    assert desk.reports.hearing(NOW).seconds(NOW - timedelta(hours=3), NOW) == 0
    desk.store.before = lambda verb, key: None
    desk.reports.listen(NOW + timedelta(seconds=5))
    later = NOW + timedelta(seconds=25)
    assert desk.reports.hearing(later).seconds(NOW - timedelta(hours=3), later) == 20


def _away(verb: str, key: str) -> None:
    raise StoreError("away")


def test_a_report_under_the_key_of_another_attempt_is_not_believed(desk: Desk) -> None:
    desk.say(FIRST)
    desk.reports.listen(NOW)
    desk.store.put(protocol.live_key(JOB, 2), protocol.encode(replace(LAST, state=AgentState.BROKEN)))
    desk.reports.listen(NOW)
    heard = desk.reports.heard(JOB, 1)
    assert heard is not None
    assert heard.report == FIRST
    assert desk.reports.heard(JOB, 2) is None
