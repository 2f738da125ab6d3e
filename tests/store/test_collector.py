"""Retention and collection: nothing that a checkpoint needs is ever lost, whatever dies when; in the end all else is gone."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.objects import Objects
from spotsurfer_agent.control.tasks import CondemnedChunk, Pins
from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import decode, encode
from spotsurfer_wire.messages import HeadKind
from support.saves import JOB, KEYS, Writer, a_head, a_manifest, named

from spotsurfer.core.checkpoints.retention import RetentionRules
from spotsurfer.store.garbage_collector import Asked, Collector, objects_of

ASKED = Asked(JOB, RetentionRules(newest=1), KEYS)


class Killed(BaseException):
    """The controller dies here."""


class _Interrupted:
    """The collector's way to the store: before each call something else may happen."""

    def __init__(self, inner: Objects, before: Callable[[], None]) -> None:
        self._inner, self._before = inner, before

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in ("create", "put", "get", "get_range", "list", "delete"):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self._before()
            return value(*args, **kwargs)

        return call


Interrupted: Any = _Interrupted  # it is whatever it stands before


class Steady:
    """Time that goes by only when told to."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def a_collector(store: Any, wait: float = 0.0, now: Callable[[], float] | None = None) -> Collector:
    return Collector(store, wait, lambda: None, now or Steady())


def chunks(store: Objects) -> set[str]:
    return {k.rpartition("/")[2] for k in store.data if k.startswith((f"jobs/{JOB}/chunks/", f"jobs/{JOB}/packs/"))}


def prove(store: Objects, checkpoint: str) -> None:
    store.create(object_keys.proven_key(JOB, checkpoint), b"{}")


@functools.lru_cache(1000)
def needs(manifest: bytes) -> frozenset[str]:
    return frozenset(objects_of(decode(manifest, KEYS, JOB)))


def lost(store: Objects, log: HeadLog) -> list[str]:
    """Chunks that a committed checkpoint names and the store has not."""
    log.refresh()
    there, missing = chunks(store), list[str]()
    for c in {e.checkpoint for e in log.entries if e.checkpoint}:
        data = store.get(object_keys.manifest_key(JOB, c))
        if data is None:
            assert log.newest is not None and log.newest.checkpoint != c, "the manifest that counts was removed"
            continue
        missing += [f"{c}: {n}" for n in needs(data) - there]
    return missing


def until_clean(collector: Collector, asked: Asked = ASKED) -> None:
    step = collector.step(asked)
    for _ in range(9):
        if step.clean and not step.dropped:
            return
        step = collector.step(asked)
    raise AssertionError(f"never clean: {step}")


def test_chunks_of_a_dropped_checkpoint_go_and_no_other() -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    old, new = writer.save_all(["a", "b"]), writer.save_all(["b", "c"])
    until_clean(a_collector(store))
    assert chunks(store) == {named(c).digest for c in "abc"}  # nothing newer is proven
    prove(store, new)
    until_clean(a_collector(store))
    assert chunks(store) == {named(c).digest for c in "bc"}
    assert store.get(object_keys.manifest_key(JOB, old)) is None


def test_an_object_of_many_chunks_stays_as_long_as_one_of_them_is_needed() -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    pack, left_over = named("pack").digest, named("other pack").digest
    for name in (pack, left_over):
        store.create(object_keys.pack_key(JOB, name), b"many chunks")
    image = a_manifest("000001-000001", ["a"], chunks=[replace(named("a"), pack=pack, at=0, length=8)])
    store.create(object_keys.manifest_key(JOB, image.id), encode(image, KEYS))
    writer.log.append(a_head(2, HeadKind.COMMIT, 1, image.id, image.sequence))
    until_clean(a_collector(store))
    assert chunks(store) == {pack}


def test_the_condemned_get_their_time_and_a_new_manifest_saves_them() -> None:
    store, now = Objects(), Steady()
    writer = Writer(store)
    writer.grant()
    writer.save_all(["a"])
    store.create(object_keys.chunk_key(JOB, named("x").digest), b"left over")
    collector = a_collector(store, 60.0, now)
    assert collector.step(ASKED).condemned == 1
    assert collector.step(ASKED).deleted == 0
    now.at = 59.0
    assert collector.step(ASKED).deleted == 0
    # A manifest that came meanwhile names it: whoever read no list before is right to rely on it.
    late = a_manifest("000001-000009", ["x"])
    store.create(object_keys.manifest_key(JOB, late.id), encode(late, KEYS))
    store.create(object_keys.intent_key(JOB, late.id), json_codec.encode(messages.Intent(late.id, None, "")))
    now.at = 61.0
    assert collector.step(ASKED).deleted == 0
    assert named("x").digest in chunks(store)


def test_a_writer_that_reads_the_list_does_not_commit() -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    writer.save_all(["a"])
    store.create(object_keys.chunk_key(JOB, named("x").digest), b"left over")
    a_collector(store).step(ASKED)
    pins = Pins(store, JOB)
    assert pins.begin("000001-000002", None) == {named("x").digest}
    with pytest.raises(CondemnedChunk, match="1 chunks"):
        pins.check([named("a"), named("x")])
    pins.check([named("a")])


def test_no_list_while_a_save_is_under_way() -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    writer.save_all(["a"])
    saving = writer.save(["b"], set())
    for _ in range(4):
        next(saving)
    assert a_collector(store).step(ASKED).waits == "the save 000001-000002 is under way"
    assert named("b").digest in chunks(store)


def test_a_fenced_save_holds_nothing_up() -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    saving = writer.save(["b"], set())
    for _ in range(4):
        next(saving)
    Writer(store, epoch=2).grant()
    until_clean(a_collector(store))
    assert chunks(store) == set()
    assert not store.list(object_keys.intents_prefix(JOB))


ANOTHERS = encode(a_manifest("000001-000009", ["b"]), KEYS)


@pytest.mark.parametrize(("data", "told"), [(b"torn", "changed or cut off"), (ANOTHERS, "for that of 000001-000001")])
def test_a_manifest_that_cant_be_read_or_is_anothers_stops_all_removal(data: bytes, told: str) -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    name = writer.save_all(["a"])
    store.put(object_keys.manifest_key(JOB, name), data)
    store.create(object_keys.chunk_key(JOB, named("x").digest), b"left over")
    with pytest.raises(ProtocolError, match=told):
        a_collector(store).step(ASKED)
    assert chunks(store) == {named("a").digest, named("x").digest}


def test_time_in_which_the_host_was_suspended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still in a suspended host: a look at who leads was good for hours, and a successor was at work."""
    store, looks, at = Objects(), list[None](), [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda clock: at[0] if clock == time.CLOCK_BOOTTIME else 1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    writer = Writer(store)
    writer.grant()
    writer.save_all(["a"])
    for name in ("x", "y", "z"):
        store.create(object_keys.chunk_key(JOB, named(name).digest), b"left over")
    collector = Collector(store, 60.0, lambda: looks.append(None))
    assert collector.step(ASKED).condemned == 3
    assert collector.step(ASKED).deleted == 0
    at[0] += 61.0
    looks.clear()

    def delete(self: Objects, keys: Iterable[str]) -> None:
        at[0] += 3600.0

    monkeypatch.setattr(Objects, "delete", delete)
    assert collector.step(ASKED).deleted == 3
    assert len(looks) == 3, "before each it has to look again"


def test_a_controller_that_does_not_lead_removes_nothing() -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    writer.save_all(["a"])
    store.create(object_keys.chunk_key(JOB, named("x").digest), b"left over")

    def lead() -> None:
        raise Killed

    before = dict(store.data)
    with pytest.raises(Killed):
        Collector(store, 0.0, lead).step(ASKED)
    assert store.data == before


def test_a_controller_that_stalls_while_it_removes_takes_nothing_from_its_successors_saves() -> None:
    """Up to 500 chunks went after one look at who leads."""
    store, time, leads = Objects(), Steady(), [True]
    writer = Writer(store)
    writer.grant()
    writer.save_all(["a"])
    spare = ["x", "y", "z"]
    for name in spare:
        store.create(object_keys.chunk_key(JOB, named(name).digest), b"left over")

    def lead() -> None:
        if not leads[0]:
            raise Killed

    def stalls() -> None:
        """Its successor finishes the list, and a save finds what is still there."""
        if leads[0] and len(chunks(store)) == 3:
            leads[0] = False
            time.at += 1000.0
            store.put(object_keys.condemned_key(JOB), json_codec.encode(messages.Condemned()))

    old = Collector(Interrupted(store, stalls), 60.0, lead, time)
    assert old.step(ASKED).condemned == 3
    time.at += 30.0
    old.step(ASKED)
    time.at += 60.0
    with pytest.raises(Killed):
        old.step(ASKED)
    assert len(chunks(store)) == 2, "one went before the stall, one was on its way, and none came after it"


def test_a_plan_changes_nothing_and_says_all() -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    writer.save_all(["a"])
    new = writer.save_all(["b"])
    prove(store, new)
    before = dict(store.data)
    plan = a_collector(store).plan(ASKED)
    assert store.data == before
    assert (plan.dropped, plan.condemned, plan.condemned_bytes) == (["000001-000001"], 1, 6)


def test_an_ended_job_keeps_only_what_is_protected() -> None:
    store = Objects()
    writer = Writer(store)
    writer.grant()
    first = writer.save_all(["a"])
    writer.save_all(["b"])
    store.put(object_keys.protected_key(JOB, first), b"{}")
    until_clean(a_collector(store), Asked(JOB, RetentionRules(1, ended=True), KEYS))
    assert chunks(store) == {named("a").digest}


# ---------------------------------------------------------------- everything at once


class Race:
    """A collector and writers, interleaved call by call as chance says; either may die anywhere."""

    def __init__(self, rand: random.Random) -> None:
        self.store, self.rand = Objects(), rand
        self.pace = rand.choice([0.2, 0.5, 1.0, 3.0])  # calls of the writer for each of the collector
        self.reader = HeadLog(self.store, JOB)
        self.writer = Writer(self.store)
        self.writer.grant()
        self.saving: Iterator[None] = iter(())

    def draw(self, most: int) -> int:
        return self.rand.randint(0, most)

    def step_writer(self) -> None:
        """One call of the writer; now and then it dies, and another one takes over, on this machine or the next."""
        fate = self.draw(40)
        if fate == 0:
            self.saving = iter(())  # killed; its successor on the same machine knows which numbers were used
        elif fate == 1:
            self.saving = iter(())
            self._next_attempt()
        elif next(self.saving, "over") == "over":
            if self.draw(3) == 0 and self.writer.log.newest and self.writer.log.newest.checkpoint:
                prove(self.store, self.writer.log.newest.checkpoint)
            self.saving = self.writer.save(self.rand.sample("abcde", self.rand.randint(1, 4)), self.writer.known())
        assert not lost(self.store, self.reader)

    def _next_attempt(self) -> None:
        self.writer.log.refresh()
        newest = self.writer.log.newest
        self.writer = Writer(self.store, self.writer.epoch + 1)
        self.writer.grant(newest.checkpoint if newest else None)

    def before_collector(self) -> None:
        for _ in range(int(self.pace + self.rand.random())):
            self.step_writer()
        if self.draw(60) == 0:
            raise Killed

    def run(self) -> None:
        for _ in range(8):
            way = Interrupted(self.store, self.before_collector)
            collector, asked = a_collector(way), replace(ASKED, log=HeadLog(way, JOB))
            try:
                for _ in range(3):
                    collector.step(asked)
                    assert not lost(self.store, self.reader)
            except Killed:
                assert not lost(self.store, self.reader)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1 << 40))
def test_no_interleaving_loses_a_chunk(seed: int) -> None:
    race = Race(random.Random(seed))
    race.run()
    race.writer = Writer(race.store, race.writer.epoch + 1)
    race.writer.log.refresh()
    newest = race.writer.log.newest
    race.writer.grant(newest.checkpoint if newest else None)
    until_clean(a_collector(race.store))
    assert not lost(race.store, race.reader)
    named_now = set[str]()
    for listed in race.store.list(object_keys.checkpoints_prefix(JOB)):
        if listed.key.endswith("/MANIFEST"):
            named_now |= needs(race.store.get(listed.key) or b"")
    assert chunks(race.store) == named_now
