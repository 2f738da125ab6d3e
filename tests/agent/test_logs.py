"""Output in pieces: complete, in order, exactly once, whatever fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent import protocol
from spotsurfer_agent.logs import LogPlace, Logs
from spotsurfer_agent.store import StoreError
from support.agent_world import JOB, DictStore


class Spool:
    """Grows; offsets are absolute, and what is before `begin` was made on another machine."""

    def __init__(self, begin: int = 0) -> None:
        self.begin, self.data = begin, b""

    def write(self, count: int) -> None:
        end = self.begin + len(self.data)
        self.data += bytes((end + i) % 251 for i in range(count))

    def read(self, stream: str, offset: int, limit: int) -> bytes:
        if stream == "err":
            return b""
        assert offset >= self.begin
        return self.data[offset - self.begin :][:limit]


def stitched(store: DictStore, begin: int = 0) -> bytes:
    named = protocol.log_key(JOB, 2, "out", 0).rpartition("-")[0] + "-"
    data = b""
    for key in sorted(k for k in store.objects if k.startswith(named)):
        assert int(key[len(named) :]) == begin + len(data), "no gap, no overlap"
        data += store.objects[key]
    return data


def logs(store: DictStore, spool: Spool, limit: int = 10) -> Logs:
    return Logs(store, spool.read, LogPlace(JOB, 2), limit, wait=lambda _: None)


def test_nothing_is_uploaded_before_its_place_is_known():
    store, spool = DictStore(), Spool()
    spool.write(5)
    uploader = logs(store, spool)
    assert not uploader.push()
    with pytest.raises(StoreError, match="not known"):
        uploader.flush({"out": 1})
    assert store.objects == {}


def test_pieces_are_bounded_and_go_on_at_the_restored_position():
    store, spool = DictStore(), Spool(100)
    uploader = logs(store, spool)
    uploader.begin({"out": 100})
    spool.write(25)
    assert uploader.push()
    assert not uploader.push()
    assert [len(v) for v in store.objects.values()] == [10, 10, 5]
    assert stitched(store, 100) == spool.data


def test_flush_waits_for_lines_that_are_on_their_way_to_the_disk():
    store, spool = DictStore(), Spool()
    uploader = Logs(store, spool.read, LogPlace(JOB, 2), wait=lambda _: spool.write(1))
    uploader.begin({})
    uploader.flush({"out": 3})
    assert stitched(store) == spool.data
    assert len(spool.data) == 3


def test_flush_reaches_the_position_or_says_that_it_does_not():
    store, spool = DictStore(), Spool()
    uploader = logs(store, spool)
    uploader.begin({})
    spool.write(15)
    uploader.flush({"out": 12, "err": 0})
    assert len(stitched(store)) >= 12
    with pytest.raises(StoreError, match="15 of 16"):
        uploader.flush({"out": 16})


def test_one_push_does_not_go_on_for_ever():
    store = DictStore()
    uploader = Logs(store, lambda stream, offset, limit: b"x" * limit if stream == "out" else b"", LogPlace(JOB, 2), 10)
    uploader.begin({})
    uploader.push()
    assert len(store.objects) < 100


def test_resume_asks_the_store_when_it_can():
    store, spool = DictStore(), Spool(7)
    first = logs(store, spool)
    first.begin({"out": 7})
    spool.write(30)
    first.push()
    second = logs(store, spool)
    second.resume({"out": 7})
    spool.write(3)

    def down(verb, key):
        raise StoreError("unreachable")

    store.before = down
    with pytest.raises(StoreError):
        second.push()
    store.before = lambda verb, key: None
    second.push()
    assert stitched(store, 7) == spool.data


def test_a_piece_of_err_is_no_piece_of_out():
    store = DictStore()
    uploader = Logs(store, lambda stream, offset, limit: stream.encode()[offset : offset + limit], LogPlace(JOB, 2))
    uploader.begin({})
    uploader.push()
    again = Logs(store, lambda stream, offset, limit: b"", LogPlace(JOB, 2))
    again.resume({})
    again.push()
    assert again.positions() == {"out": 3, "err": 3}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 40)),
            st.tuples(st.sampled_from(["push", "restart", "lost", "down", "flush"]), st.just(0)),
        ),
        max_size=40,
    )
)
def test_exactly_once_across_restarts_and_lost_answers(script):
    store, spool = DictStore(), Spool(50)
    uploader = logs(store, spool)
    uploader.begin({"out": 50})

    def fail(verb, key):
        if verb == "put":
            raise StoreError("connection reset")

    for word, count in script:
        store.before = fail if word == "down" else lambda verb, key: None
        store.after = fail if word == "lost" else lambda verb, key: None
        if word == "write":
            spool.write(count)
            continue
        if word == "restart":
            uploader = logs(store, spool)
            uploader.resume({"out": 50})
        try:
            if word == "flush":
                uploader.flush({"out": 50 + len(spool.data)})
                assert stitched(store, 50) == spool.data
            else:
                uploader.push()
        except StoreError:
            assert word in ("down", "lost")
    store.before = store.after = lambda verb, key: None
    uploader.push()
    assert stitched(store, 50) == spool.data
