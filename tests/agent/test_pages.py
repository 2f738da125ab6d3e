"""Pages of an image on their way to chunks: nothing lost, nothing at the wrong place, known ones not sent again."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import random
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotsurfer_agent.chunks.fingerprints import NOTHING, Bases, Index, Printer, pairs, refs
from spotsurfer_agent.chunks.writer import Table
from spotsurfer_agent.save import memory_reserve
from spotsurfer_agent.save import pages as pages_module
from spotsurfer_agent.save.memory_reserve import Reserve, wanted
from spotsurfer_agent.save.pages import WINDOW_BYTES, Pages, compact
from spotsurfer_wire import object_keys
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Extents, Stored, encode
from support.chunks import Store
from support.dict_store import DictStore
from support.page_saves import BLOCK, NAME, content, feed, manifest, save
from support.saves import JOB, KEYS, a_manifest, named

numbers = st.lists(st.integers(0, 60), max_size=300)


@settings(max_examples=60, deadline=None)
@given(
    numbers,
    numbers,
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 400)), max_size=30),
    st.sampled_from([4, 400]),
    st.booleans(),
)
def test_what_comes_out_is_what_went_in_and_known_pages_are_not_sent(first, other, changes, blocks, compares):
    store = Store()
    images = {NAME: content(*first), "pages-2.img": content(*other)}
    with small_windows():
        check_round(store, images, (first, other), changes, blocks, compares)


def check_round(store, images, kinds_of, changes, blocks, compares):
    first, other = kinds_of
    entries, index = save(store, images, blocks=blocks)
    assert [store.read(e) for e in entries] == list(images.values())
    kinds = list(first)
    for at, kind in changes:
        if kind < 300:
            kinds[at : at + kind % 2] = [kind]
        elif kinds:
            del kinds[at % len(kinds)]
    moved = {NAME: content(*kinds, *other), "pages-7.img": content(*first)}
    store.sent = 0
    again, _ = save(store, moved, index, blocks=blocks, compares=compares)
    assert [store.read(e) for e in again] == list(moved.values())
    offered = {bytes(index.prints[i * 16 : i * 16 + 16]) for i in range(len(index))}
    of_pages = Printer(store.keys.prints).of_pages
    new = sum(of_pages(memoryview(content(k))) not in offered for k in kinds if k)
    withheld = not pairs(bytes(index.prints))[index.refs[:, 0] >= 0].any(axis=1).all()
    assert store.sent <= new * PAGE + withheld * len(first + other) * PAGE


def test_a_tenth_changed_sends_a_tenth_and_chunks_with_little_left_are_written_anew():
    store, rng = Store(), random.Random(1)
    kinds = list(range(1, 2001))
    _, index = save(store, {NAME: content(*kinds)})
    fresh, sent = 10_000, []
    for _ in range(12):
        for at in rng.sample(range(2000), 200):
            fresh += 1
            kinds[at] = fresh
        store.sent = 0
        entries, index = save(store, {NAME: content(*kinds)}, index)
        sent.append(store.sent // PAGE)
        assert store.read(entries[0]) == content(*kinds)
        live = sum(c.size for c in store.table.rows)
        assert live <= 2.6 * len(kinds) * PAGE  # what is kept alive stays bounded
    assert sent[0] == 200
    assert all(200 <= n < 1200 for n in sent)
    assert max(sent) > 200


def test_pages_that_moved_are_found():
    store = Store()
    _, index = save(store, {NAME: content(*range(1, 600))})
    store.sent = 0
    _, _ = save(store, {NAME: content(9000, 9001, *range(1, 300), 9002, *range(300, 600))}, index)
    assert store.sent == 3 * PAGE


def test_a_base_is_kept_whole_or_not_at_all(tmp_path):
    store = Store()
    entries, index = save(store, {NAME: content(*range(1, 400)), "pages-2.img": content(0, 0, 5, 0)})
    index.save(tmp_path / "kept")
    image = manifest(entries, store.table.rows)
    loaded = Index.load(tmp_path / "kept", image)
    assert loaded is not None
    assert loaded.prints == index.prints
    data = bytearray((tmp_path / "kept").read_bytes())
    data[-1] ^= 1
    (tmp_path / "kept").write_bytes(data)
    assert Index.load(tmp_path / "kept", image) is None
    assert Index.load(tmp_path / "absent", image) is None


def test_a_save_builds_on_the_checkpoint_that_was_asked_for_and_no_other(tmp_path):
    store, right, other = DictStore(), "000001-000001", "000001-000002"
    data = encode(a_manifest(right, ["a", "b"]), KEYS)
    store.objects = {object_keys.manifest_key(JOB, name): data for name in (right, other)}  # an older one in the other's place
    bases = Bases(tmp_path, store, JOB, KEYS)
    assert set(bases.of(right).known) == {named("a").digest, named("b").digest}
    assert bases.of(other) is NOTHING


def test_pages_that_are_cut_in_pieces_are_not_offered():
    image = Extents.of([(0, PAGE, 0, 0), (PAGE, 100, 1, 0), (2 * PAGE, 2 * PAGE, 1, PAGE)])
    assert refs(image, 5).tolist() == [[0, 0], [-1, -2], [1, 1], [1, 2], [-2, -2]]


def test_short_memory_sends_while_the_job_stands_still_and_counts_the_wait():
    store = Store()
    memory = Reserve(0, 4 * BLOCK, BLOCK)
    pages = Pages(memory, store, None)
    data = content(*range(1, 64 * 12))
    feed(pages.sink(NAME), data)  # never released
    pages.finish()
    assert memory.held_bytes == 4 * BLOCK
    (entry,) = pages.entries()
    assert store.read(entry) == data


def test_while_the_job_runs_memory_that_comes_back_is_taken_before_new_one(monkeypatch):
    monkeypatch.setattr(memory_reserve, "USED_FIRST_BYTES", 2 * BLOCK)
    monkeypatch.setattr(memory_reserve, "USED_FIRST_SECONDS", 30.0)
    memory = Reserve(0, 8 * BLOCK, BLOCK)
    memory.prefer_used(True)
    spans = [memory.take(), memory.take()]
    for _ in range(5):
        sent = threading.Timer(0.01, memory.give, [spans.pop()])
        sent.start()
        spans.append(memory.take())
        sent.join()
    assert memory.held_bytes == 2 * BLOCK
    monkeypatch.setattr(memory_reserve, "USED_FIRST_SECONDS", 0.001)
    spans += [memory.take() for _ in range(6)]  # a store that is too slow for that is waited for only so often
    assert memory.held_bytes == 8 * BLOCK
    assert memory._used_first == 0
    assert memory.waited_seconds == 0.0


@pytest.mark.parametrize("based", [False, True])
def test_a_failure_of_the_writer_reaches_readers_that_wait_for_memory(based):
    _, base = save(Store(), {NAME: content(1)})
    memory = Reserve(0, 4 * BLOCK, BLOCK)
    pages = Pages(memory, Store(fails_after=2), base if based else None)
    with pytest.raises(memory_reserve.Closed):
        feed(pages.sink(NAME), content(*range(1, 64 * 12)))
    with pytest.raises(OSError, match="no such luck"):
        pages.finish()
    pages.abandon()


def test_a_window_is_filled_while_the_one_before_is_compared(monkeypatch):
    """A job that stands still waits for who reads its memory, and not for fingerprints."""
    store, data = Store(), content(*range(1, 1900))
    _, base = save(store, {NAME: data})
    memory, compare, of_pages = Reserve(0, 16 * BLOCK, BLOCK), threading.Event(), Printer.of_pages
    monkeypatch.setattr(Printer, "of_pages", lambda self, view: compare.wait(5) and of_pages(self, view))
    pages = Pages(memory, store, base)
    sink, at = pages.sink(NAME), 0
    while at < len(data):
        room = sink.room()
        room[:PAGE] = data[at : at + PAGE]
        at += PAGE
        if at == 3 * WINDOW_BYTES - PAGE:
            assert not compare.is_set()
            compare.set()
        sink.filled(PAGE)
    sink.end()
    pages.finish()
    (entry,) = pages.entries()
    memory.close()
    assert store.read(entry) == data


class Stuck(Store):
    def add(self, data, done=None):
        future: Future[Stored] = Future()
        return future  # never done


@contextlib.contextmanager
def small_windows():
    """Several of them for a test's few pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages_module, "WINDOW_BYTES", 16 * PAGE)
        yield


@pytest.mark.parametrize("fails", ["memory", "prints", "unseen"])
def test_after_a_window_that_failed_nobody_waits_for_memory_and_none_is_kept(monkeypatch, fails):
    """A frozen job waits until a failed save has let go of it."""
    _, base = save(Store(), {NAME: content(*range(1, 100))})
    memory, made = Reserve(0, 4 * BLOCK, BLOCK), []
    monkeypatch.setattr(memory_reserve, "PATIENCE_SECONDS", 0.5)
    of_pages = Printer.of_pages

    def third_fails(self, view):
        made.append(len(view))
        if fails != "memory" and len(made) == 3:
            raise MemoryError
        return of_pages(self, view)

    monkeypatch.setattr(Printer, "of_pages", third_fails)
    gc.collect()
    gc.disable()
    try:
        with small_windows():
            pages = Pages(memory, Stuck(), base)
        sink = pages.sink(NAME)
        if fails == "unseen":  # the reader has another reason to end
            for _ in range(3):
                sink.filled(len(sink.room()))
            comparing: Any = sink
            until(lambda: comparing._failed)
            del comparing
        else:
            with contextlib.suppress(memory_reserve.Exhausted, MemoryError):
                feed(sink, content(*range(1000, 3000)))
                pytest.fail("it did not fail")
        began = time.monotonic()
        sink.abort()
        assert time.monotonic() - began < 0.3
        memory.close()
        pages.abandon()
        kept = weakref.ref(pages)
        del pages, sink
        assert kept() is None
    finally:
        gc.enable()


def test_letting_the_memory_go_frees_a_reader_that_waits():
    memory = Reserve(0, 4 * BLOCK, BLOCK)
    pages = Pages(memory, Stuck(), None)
    ended, data = [], content(*range(1, 64 * 12))

    def read():
        try:
            feed(pages.sink(NAME), data)
        except memory_reserve.Closed:
            ended.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    change: Any = memory._change
    until(lambda: change._waiters)
    memory.close()
    thread.join(5)
    pages.abandon()
    assert ended == [True]
    assert memory.waited_seconds > 0


def test_a_file_that_ends_within_a_page_is_refused():
    pages = Pages(Reserve(0, 4 * BLOCK, BLOCK), Store(), None)
    with pytest.raises(OSError, match="middle of a page"):
        feed(pages.sink(NAME), bytes(PAGE + 1))
    pages.abandon()


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_compact_keeps_order(keep):
    view = memoryview(bytearray(np.repeat(np.arange(len(keep), dtype=np.uint8), PAGE).tobytes()))
    kept = np.flatnonzero(keep)
    compact(view, kept)
    assert [view[i * PAGE] for i in range(len(kept))] == kept.tolist()


@pytest.mark.parametrize(
    ("image", "share", "allowed", "final", "touched"),
    [
        (4 << 30, None, 16 << 30, False, (4 << 30) + (64 << 20)),
        (4 << 30, None, 1 << 30, False, 1 << 30),
        (4 << 30, 0.1, 16 << 30, False, int((4 << 30) * 0.15000000000000002) + (64 << 20)),
        (4 << 30, None, 16 << 30, True, memory_reserve.FINAL_BYTES),
        (1 << 20, None, 16 << 30, True, 65 << 20),
        (4 << 30, 0.9, 16 << 30, False, (4 << 30) + (64 << 20)),
    ],
)
def test_how_much_memory_is_taken(image, share, allowed, final, touched):
    limit = memory_reserve.FINAL_BYTES if final else allowed
    assert wanted(image, share, allowed, final=final) == (touched, limit)


@pytest.mark.parametrize("how", [memory_reserve.image_bytes, memory_reserve.guessed_bytes])
@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
def test_how_large_an_image_will_be(how, flags):
    """Private memory and shared memory, of which the kernel tells in different places."""
    before, me = how([os.getpid()]), os.getpid()
    with mmap.mmap(-1, 64 << 20, flags=flags | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, len(memory), PAGE):
            memory[at] = 1
        assert abs(how([me]) - before - len(memory)) < 8 << 20
    assert how([0]) == 0


@pytest.mark.parametrize("name", [b"caf\xe9", b"\x0bRssShmem: x", b"RssAnon: 9 kB"])
def test_a_process_may_have_any_name(name):
    comm = Path("/proc/self/comm")
    before = comm.read_bytes()
    plain = memory_reserve.guessed_bytes([os.getpid()])
    try:
        comm.write_bytes(name)
        assert abs(memory_reserve.guessed_bytes([os.getpid()]) - plain) < 8 << 20
    finally:
        comm.write_bytes(before)


def test_patience_with_a_store_that_takes_nothing_ends(monkeypatch):
    monkeypatch.setattr(memory_reserve, "PATIENCE_SECONDS", 0.05)
    memory = Reserve(0, 4 * BLOCK, BLOCK)
    for _ in range(4):
        memory.take()
    with pytest.raises(memory_reserve.Exhausted, match="nothing of the image was sent"):
        memory.take()


def test_rests_of_spans_serve_the_next_and_blocks_come_back_whole():
    memory = Reserve(0, 8 << 20, 8 << 20)
    first = memory.take()
    memory.rest(first, 2 << 20)
    second = memory.take()
    assert (first.size, second.size, memory.held_bytes) == (2 << 20, 6 << 20, 8 << 20)
    memory.rest(second, 1 << 20)
    memory.give(first)
    memory.give(second)
    assert memory.take().size == 8 << 20


def test_no_chunk_is_made_while_it_is_held():
    """A job that stands still waits for the readers alone; memory that gets short is a reason to send all the same."""
    store, memory = Store(), Reserve(8 * BLOCK, 8 * BLOCK, BLOCK)
    store.table = Table()
    pages = Pages(memory, store, None)
    pages.release()
    sink = pages.sink(NAME)
    feed_some(sink, 1)
    until(lambda: store.sent)
    pages.hold()
    before = store.sent
    feed_some(sink, 2)
    time.sleep(0.05)
    assert store.sent == before
    feed_some(sink, 6)
    until(lambda: store.sent > before)
    sink.end()
    pages.finish()
    memory.close()


def feed_some(sink, blocks):
    for _ in range(blocks * BLOCK // PAGE):
        room = sink.room()
        room[:PAGE] = random.randbytes(PAGE)
        sink.filled(PAGE)


def until(what):
    end = time.monotonic() + 5
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize(("wanted_blocks", "made"), [(0, 0), (3, 3), (100, 8)])
def test_memory_is_touched_beforehand_as_far_as_allowed(wanted_blocks, made):
    memory = Reserve(0, 8 * BLOCK, BLOCK)
    memory.touch(wanted_blocks * BLOCK)
    memory.touch(wanted_blocks * BLOCK)
    assert memory.held_bytes == made * BLOCK
    memory.close()
