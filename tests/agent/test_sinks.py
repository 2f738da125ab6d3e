"""Page files with a base: one window fills while another is compared, and nothing counts before it was compared."""

from __future__ import annotations

import random
import threading

import pytest
from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.chunks.prints import of_each, of_pages
from spotsurfer_agent.engines import reserve, sinks
from spotsurfer_agent.engines.fingerprints import Follower
from spotsurfer_agent.engines.pages import Pages
from spotsurfer_agent.engines.reserve import Reserve
from support.page_files import BLOCK, NAME, Store, content, feed, save

WINDOW = 8 * PAGE
SECONDS = 5.0


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    monkeypatch.setattr(sinks, "WINDOW_BYTES", WINDOW)


@pytest.fixture
def base():
    store = Store()
    _, index = save(store, {NAME: content(*range(1, 200))})
    return store, index


def test_many_windows_give_what_went_in_and_only_new_pages_are_sent(base):
    store, index = base
    kinds, rng = list(range(1, 200)), random.Random(3)
    for at in rng.sample(range(199), 40):
        kinds[at] = 1000 + at
    kinds[100:100] = [0, 7, 5000]
    store.sent = 0
    (entry,), _ = save(store, {NAME: content(*kinds)}, index)
    assert store.read(entry) == content(*kinds)
    assert store.sent == 41 * PAGE


@pytest.fixture
def slow(monkeypatch):
    """Comparing waits until `go` is set; `comparing` says that it has begun."""
    go, comparing, plain = threading.Event(), threading.Event(), Follower.match

    def match(self, prints):
        comparing.set()
        assert go.wait(SECONDS)
        return plain(self, prints)

    monkeypatch.setattr(Follower, "match", match)
    yield go, comparing
    go.set()


def fill(sink, data: bytes) -> None:
    """A whole window."""
    room = sink.room()
    room[:] = data
    sink.filled(len(room))


def test_a_window_fills_while_another_is_compared_and_the_third_waits(base, slow):
    store, index = base
    go, comparing = slow
    pages = Pages(Reserve(0, 8 * BLOCK, BLOCK), store, index)
    sink = pages.sink(NAME)
    for first in (1, 9):
        fill(sink, content(*range(first, first + 8)))
    assert comparing.wait(SECONDS)
    third = threading.Thread(target=sink.room)
    third.start()
    third.join(0.2)
    assert third.is_alive()  # it must not be given a window that is yet to be compared
    go.set()
    third.join(SECONDS)
    assert not third.is_alive()
    sink.end()
    pages.finish()
    assert pages.read_bytes == 16 * PAGE


def test_a_file_has_not_ended_before_all_of_it_was_compared(base, slow):
    store, index = base
    go, comparing = slow
    pages = Pages(Reserve(0, 8 * BLOCK, BLOCK), store, index)
    sink = pages.sink(NAME)
    fill(sink, content(*range(1, 9)))
    ending = threading.Thread(target=sink.end)
    ending.start()
    assert comparing.wait(SECONDS)
    ending.join(0.2)
    assert ending.is_alive()
    go.set()
    ending.join(SECONDS)
    assert not ending.is_alive()
    pages.finish()
    (entry,) = pages.entries()
    assert store.read(entry) == content(*range(1, 9))


def test_what_comparing_meets_reaches_the_reader(base):
    store, index = base
    memory = Reserve(0, 4 * BLOCK, BLOCK)
    pages = Pages(memory, store, index)
    memory.close()
    sink = pages.sink(NAME)
    with pytest.raises(reserve.Closed):
        feed(sink, content(*range(5000, 5200)))
    sink.abort()
    pages.abandon()
    assert not [t for t in threading.enumerate() if t.name == "page windows"]


def test_a_failure_in_the_last_window_is_told_at_the_end(base):
    store, index = base
    memory = Reserve(0, 4 * BLOCK, BLOCK)
    pages = Pages(memory, store, index)
    memory.close()
    sink = pages.sink(NAME)
    fill(sink, content(*range(5000, 5008)))
    with pytest.raises(reserve.Closed):
        sink.end()
    pages.abandon()


def test_giving_up_ends_the_thread(base):
    store, index = base
    pages = Pages(Reserve(0, 4 * BLOCK, BLOCK), store, index)
    sink = pages.sink(NAME)
    fill(sink, content(*range(1, 9)))
    sink.abort()
    assert not [t for t in threading.enumerate() if t.name == "page windows"]
    pages.abandon()


@pytest.mark.parametrize("size", [PAGE + 1, WINDOW + PAGE + 1])
def test_a_file_that_ends_within_a_page_is_refused(base, size):
    store, index = base
    pages = Pages(Reserve(0, 4 * BLOCK, BLOCK), store, index)
    with pytest.raises(OSError, match="middle of a page"):
        feed(pages.sink(NAME), bytes(size))
    pages.abandon()


def test_pages_one_by_one_have_the_same_fingerprints():
    data = memoryview(content(1, 0, 2, 3))
    assert of_each(data[at : at + PAGE] for at in range(0, len(data), PAGE)) == of_pages(data)
