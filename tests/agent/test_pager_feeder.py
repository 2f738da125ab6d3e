"""How many fetches are in flight, and who may be where at the same time."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from spotsurfer_agent.restore.pager import feeder as feeder_module
from spotsurfer_agent.restore.pager.feeder import Feeder, Layout, Wanted
from spotsurfer_agent.restore.pager.page_fault_server import SharedLock
from spotsurfer_wire.store.port import StoreError

PROCESSORS = len(os.sched_getaffinity(0))
LIMIT = PROCESSORS + 4


class Clock(threading.local):
    """Each thread's own, which a fetch moves on: how busy this machine is does not count."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0


def most_at_once(monkeypatch: pytest.MonkeyPatch, seconds: float) -> int:
    """Fetches at once at most, from a store that takes so long for each."""
    clock = Clock()
    monkeypatch.setattr(feeder_module, "time", clock)
    layout: Any = SimpleNamespace(files={}, uses=lambda _: [])
    lock, now, most, left = threading.Lock(), 0, 0, 60
    over = threading.Event()

    def fetch(_: int) -> bytes:
        nonlocal now, most, left
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(seconds)
        clock.now += seconds
        with lock:
            now -= 1
            left -= 1
            if not left:
                over.set()
        return b""

    failures: list[Exception] = []
    feeder = Feeder(cast("Layout", layout), fetch, failures.append)
    feeder.start(LIMIT)
    for chunk in range(60):
        feeder.want(Wanted(chunk, "pages-1.img", 0))
    assert over.wait(30), failures
    feeder.stop()
    return most


def until_idle(feeder: Feeder) -> None:
    end = time.monotonic() + 10
    while not feeder.idle:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_fetch_that_fails_when_all_is_there_harms_nobody() -> None:
    """The job gave the memory up that it was for: whoever wanted it has gone."""
    layout: Any = SimpleNamespace(files={}, uses=lambda _: [])
    flies, fails = threading.Event(), threading.Event()

    def fetch(_: int) -> bytes:
        flies.set()
        fails.wait(10)
        raise StoreError("no answer")

    failures: list[Exception] = []
    feeder = Feeder(cast("Layout", layout), fetch, failures.append)
    feeder.start(1)
    feeder.want(Wanted(0, "pages-1.img", 0))
    assert flies.wait(10)
    feeder.stop()
    fails.set()
    until_idle(feeder)
    assert failures == []


class Place:
    """A process that lacks one page. Each time that it comes it is told, and waits until it is let."""

    def __init__(self, lets: int = 0) -> None:
        self.has, self.comes, self.lets = threading.Event(), threading.Semaphore(0), threading.Semaphore(lets)

    def misses(self, first: int, last: int) -> bool:
        return not self.has.is_set()

    def put(self, first: int, last: int, source: int) -> None:
        self.comes.release()
        assert self.lets.acquire(timeout=10)
        self.has.set()


def test_who_comes_when_a_chunk_in_flight_has_passed_his_file_gets_it_all_the_same() -> None:
    """CRIU hands processes over one by one, and those that were forked have pages in common."""
    early, late = Place(), Place(lets=9)
    uses = [SimpleNamespace(file=name, page=0, pages=1, skip=0) for name in ("late", "early")]
    layout: Any = SimpleNamespace(files={"early": None, "late": None}, uses=lambda _: uses)
    fetched, failures = list[int](), list[Exception]()

    def fetch(chunk: int) -> bytes:
        fetched.append(chunk)
        return bytes(4096)

    feeder = Feeder(cast("Layout", layout), fetch, failures.append)
    feeder.tasks["early"].append(early)
    feeder.start(1)
    feeder.want(Wanted(7, "early", 0))
    assert early.comes.acquire(timeout=10)  # what is waited for comes first
    early.lets.release()
    assert early.comes.acquire(timeout=10)  # then the whole chunk, file by file: nobody was there yet who lacked the other one
    feeder.tasks["late"].append(late)
    for name in ("early", "late"):
        feeder.want(Wanted(7, name, 0))
    early.lets.release(9)
    assert late.has.wait(10)
    until_idle(feeder)
    feeder.stop()
    assert failures == []
    assert fetched == [7, 7], "who had got it meanwhile costs no fetch"


def test_a_store_that_is_far_is_asked_for_more_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_at_once(monkeypatch, 0.05) == LIMIT


def test_a_store_that_is_near_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_at_once(monkeypatch, 0.0005) == PROCESSORS


@pytest.mark.parametrize("patient", [True, False])
def test_it_begins_with_a_thread_for_each_processor_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, patient: bool) -> None:
    layout: Any = SimpleNamespace(files={}, uses=lambda _: [])
    for processors, threads in ((3, 3), (12, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=processors: set(range(n)))
        feeder = Feeder(cast("Layout", layout), lambda _: b"", lambda *_: None, patient=patient)
        feeder.start(8)
        assert feeder.threads == threads
        feeder.stop()


def test_many_are_there_together_and_one_alone_is_let_in_first() -> None:
    turns, seen = SharedLock(), list[str]()
    two, done = threading.Barrier(3), threading.Event()

    def together() -> None:
        with turns.together():
            two.wait(5)  # both are in
            done.wait(5)

    def alone() -> None:
        with turns.alone():
            seen.append("alone")
            time.sleep(0.05)
            seen.append("still alone")

    def late() -> None:
        with turns.together():
            seen.append("late")

    first = [threading.Thread(target=together) for _ in range(2)]
    for thread in first:
        thread.start()
    two.wait(5)
    last = [threading.Thread(target=alone), threading.Thread(target=late)]
    for thread in last:
        thread.start()
        time.sleep(0.05)
    assert seen == [], "who wants to be alone waits for those who are there, and who comes later waits for him"
    done.set()
    for thread in first + last:
        thread.join(5)
    assert seen == ["alone", "still alone", "late"]
