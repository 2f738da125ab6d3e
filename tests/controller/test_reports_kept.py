"""No report is lost on its way into the database, none is written down twice, and each speaks for its own attempt alone."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import AgentState, Report, SaveFacts
from spotsurfer_wire.store.port import StoreError
from sqlalchemy import text as sql
from support.builders import JOB, NOW, a_job, a_snapshot, an_attempt, seen
from support.desk import Versions

from spotsurfer.controller import event_recorder
from spotsurfer.controller.event_recorder import EventRecorder
from spotsurfer.model.job import AttemptState as A
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.agent_reports import Reports

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
        self.reports, self.chronicle = Reports(self.store), EventRecorder(self.database)

    def say(self, *reports: Report) -> None:
        for r in reports:
            self.store.put(object_keys.live_key(r.job, r.attempt), json_codec.encode(r))

    def tick(self, now: Any = NOW) -> None:
        observer = SimpleNamespace(changed=self.reports.listen(now), reports=self.reports, interruptions=None)
        attempts = an_attempt(1, A.RUNNING), an_attempt(2, A.RUNNING)
        snapshot = a_snapshot(seen(attempts))
        self.chronicle.attend(snapshot.jobs)
        self.chronicle.record(observer, snapshot, now)  # type: ignore[arg-type]

    def known(self) -> Any:
        with self.database.connect() as c:
            return observations.last_words(c, [JOB])

    def saved(self) -> int:
        with self.database.connect() as c:
            return sum(m.kind == "saved" for _, m in timeline.read(c, JOB, 0))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_report_that_can_not_be_read_hinders_no_other(desk: Desk) -> None:
    desk.say(LAST, OTHER)

    def fails(verb: str, key: str) -> None:
        if verb == "get" and key == object_keys.live_key(JOB, 2):
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


def test_a_store_that_lists_and_gives_nothing_stops_a_look_for_three_reads_and_no_longer(desk: Desk) -> None:
    """Each may take half a minute: with a hundred machines no tick ended within the hour."""
    asked = []

    def fails(verb: str, key: str) -> None:
        if verb == "get":
            asked.append(key)
            raise StoreError("no answer")

    desk.say(*(replace(FIRST, attempt=number) for number in range(1, 11)))
    desk.store.before = fails
    desk.reports.listen(NOW)
    assert len(asked) == 3
    assert all(word.at == NOW for word in desk.reports.words().values()), "they have spoken"
    for _ in range(3):
        desk.reports.listen(NOW)
    assert len(set(asked)) == 10, "nobody waits for who is never read"
    desk.say(OTHER)
    asked.clear()
    desk.store.before = lambda verb, key: asked.append(key) if verb == "get" else None
    desk.reports.listen(NOW)
    assert len(asked) == 10 and not desk.reports.unread


def test_three_reports_that_are_never_given_hinder_no_other(desk: Desk) -> None:
    desk.say(*(replace(FIRST, attempt=number) for number in range(1, 7)))

    def fails(verb: str, key: str) -> None:
        if verb == "get" and key in [object_keys.live_key(JOB, n) for n in (1, 2, 3)]:
            raise StoreError("denied")

    desk.store.before = fails
    for sequence in (8, 9, 10):
        desk.say(*(replace(FIRST, attempt=number, sequence=sequence) for number in range(1, 7)))
        desk.reports.listen(NOW)
        desk.reports.listen(NOW)
        for number in (4, 5, 6):
            heard = desk.reports.heard(JOB, number)
            assert heard is not None and heard.report.sequence == sequence


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "empty"),
        (json_codec.encode(FIRST).replace(b"10.0", b"NaN"), "NaN is no number"),
        (b"x" * 2_000_000, "too large"),
        (json_codec.encode(OTHER), "another attempt"),
    ],
)
def test_a_garbled_report_is_a_sign_of_life_and_no_word(desk: Desk, body: bytes, why: str) -> None:
    desk.say(FIRST)
    desk.tick()
    desk.store.put(object_keys.live_key(JOB, 1), body)
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
        m.setattr(event_recorder, "news", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            desk.tick()
    assert desk.known()[JOB, 1][1] == FIRST
    desk.tick()
    assert desk.known()[JOB, 1][1] == LAST
    assert desk.saved() == 1
    desk.tick()
    assert desk.saved() == 1, "once is enough"


def test_a_report_that_can_not_be_written_down_leaves_the_one_before_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was as if the agent had never been understood, so its job was held at once."""
    desk.say(FIRST)
    desk.tick()
    desk.say(LAST)
    with monkeypatch.context() as m:
        m.setattr(event_recorder, "news", lambda *_: 1 / 0)
        desk.tick(LATER)
    word, heard = desk.reports.word(JOB, 1), desk.reports.heard(JOB, 1)
    assert word is not None and word.garbled and word.at == LATER
    assert heard is not None and (heard.report, heard.changed_at) == (FIRST, NOW)
    third = replace(LAST, sequence=10)
    desk.say(third)
    desk.tick(LATER)
    assert desk.known()[JOB, 1][1] == third


@pytest.mark.parametrize(("text", "known"), [("NaN", []), ("\\udcf6", ["Gr\\udcf6"])], ids=["refused", "old"])
def test_a_row_of_an_older_version_fails_no_tick(desk: Desk, text: str, known: list[str]) -> None:
    """What 0.2 took from an agent, and this version may refuse: each tick failed after the upgrade, and `list`, too."""
    desk.say(replace(FIRST, error="GrMARK"), OTHER)
    desk.tick()
    old, new = ('"GrMARK"', "NaN") if text == "NaN" else ("MARK", text)
    with desk.database.begin() as c:
        c.execute(sql("UPDATE usage SET doc = replace(doc, :old, :new) WHERE attempt = 1"), {"old": old, "new": new})
    desk.begin()
    desk.store.delete([object_keys.live_key(JOB, 1)])
    desk.tick(LATER)
    with desk.database.connect() as c:
        assert [r.error for k, (_, r) in desk.known().items() if k == (JOB, 1)] == known
        assert [r.error for r in [observations.last_report(c, JOB, 1)] if r is not None] == known
    assert (JOB, 2) in desk.known()
    desk.say(LAST)
    desk.tick(LATER)
    assert desk.known()[JOB, 1][1] == LAST


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


def test_looks_that_are_meant_to_be_far_apart_hear_all_the_same(desk: Desk) -> None:
    """With a tick of more than half a minute silence never counted, and no machine that died was given up."""
    reports = Reports(desk.store, tick_seconds=40.0)
    for n in range(4):
        reports.listen(NOW + timedelta(seconds=40 * n))
    now = NOW + timedelta(seconds=120)
    assert reports.hearing(now).seconds(NOW, now) == 120
    later = NOW + timedelta(seconds=220)
    reports.listen(later)
    assert reports.hearing(later).seconds(NOW, later) == 120, "it was to be there at 160"


def test_a_store_that_comes_and_goes_leaves_one_gap_and_not_thousands(desk: Desk) -> None:
    """Each of them was gone through for each machine, in each tick of the next day."""
    for n in range(100):
        desk.store.before = _away if n % 2 else lambda verb, key: None
        with contextlib.suppress(StoreError):
            desk.reports.listen(NOW + timedelta(seconds=4 * n))
    now = NOW + timedelta(seconds=400)
    assert len(desk.reports.hearing(now).deaf) == 1
    assert desk.reports.hearing(now).seconds(NOW, now) == 0


@given(st.lists(st.tuples(st.integers(1, 20), st.sampled_from(["well", "away", "full"])), max_size=20), st.integers(0, 200))
def test_gaps_are_apart_and_in_order_and_count_once(looks: list[tuple[int, str]], since: int) -> None:
    store, now = Versions(), NOW
    reports = Reports(store)
    for seconds, how in looks:
        now += timedelta(seconds=seconds)
        store.before = {"well": lambda *_: None, "away": _away, "full": _full}[how]
        with contextlib.suppress(StoreError):
            reports.listen(now)
    gaps = reports.hearing(now).deaf
    assert all(first[0] < first[1] < second[0] for first, second in itertools.pairwise(gaps))
    begin = NOW + timedelta(seconds=since)
    whole = [begin + timedelta(seconds=n) for n in range(max(0, int((now - begin).total_seconds())))]
    assert reports.hearing(now).seconds(begin, now) == sum(not any(a <= t < b for a, b in gaps) for t in whole)


def test_a_report_that_is_gone_was_there_until_now(desk: Desk) -> None:
    desk.say(FIRST)
    desk.reports.listen(NOW)
    desk.store.delete([object_keys.live_key(JOB, 1)])
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


def _full(verb: str, key: str) -> None:
    if verb == "put":
        raise StoreError("full")


def test_a_report_under_the_key_of_another_attempt_is_not_believed(desk: Desk) -> None:
    desk.say(FIRST)
    desk.reports.listen(NOW)
    desk.store.put(object_keys.live_key(JOB, 2), json_codec.encode(replace(LAST, state=AgentState.BROKEN)))
    desk.reports.listen(NOW)
    heard = desk.reports.heard(JOB, 1)
    assert heard is not None
    assert heard.report == FIRST
    assert desk.reports.heard(JOB, 2) is None
