"""Output in pieces: complete, in order, exactly once, whatever fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.control.log_upload import DENIED_PUSHES, Logs
from spotsurfer_wire import log_pieces, object_keys
from spotsurfer_wire.log_pieces import Piece
from spotsurfer_wire.store.port import Listed, StoreDenied, StoreError
from support.agent_world import JOB, AgentKilled, DictStore, stitched


class Spool:
    """Grows; offsets are absolute, and what is before `begin` was made on another machine."""

    def __init__(self, begin: int = 0) -> None:
        self.begin, self.data = begin, b""

    def write(self, count: int) -> None:
        end = self.begin + len(self.data)
        self.data += bytes((end + i) % 251 for i in range(count))

    def read(self, stream: str, offset: int, limit: int) -> bytes:
        if stream != "out":
            return b""
        assert offset >= self.begin
        return self.data[offset - self.begin :][:limit]


def stored(store: DictStore, begin: int = 0) -> bytes:
    at, data = stitched(store, JOB, 2, "out")
    assert at == begin or not data
    return data


def logs(store: DictStore, spool: Spool, limit: int = 10) -> Logs:
    return Logs(store, spool.read, JOB, 2, limit, wait=lambda _: None)


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
    assert stored(store, 100) == spool.data


def test_flush_waits_for_lines_that_are_on_their_way_to_the_disk():
    store, spool = DictStore(), Spool()
    uploader = Logs(store, spool.read, JOB, 2, wait=lambda _: spool.write(1))
    uploader.begin({})
    uploader.flush({"out": 3})
    assert stored(store) == spool.data
    assert len(spool.data) == 3


def test_flush_reaches_the_position_or_says_that_it_does_not():
    store, spool = DictStore(), Spool()
    uploader = logs(store, spool)
    uploader.begin({})
    spool.write(15)
    uploader.flush({"out": 12, "err": 0})
    assert len(stored(store)) >= 12
    with pytest.raises(StoreError, match="15 of 16"):
        uploader.flush({"out": 16})


def test_one_push_does_not_go_on_for_ever():
    store = DictStore()
    uploader = Logs(store, lambda stream, offset, limit: b"x" * limit if stream == "out" else b"", JOB, 2, 10)
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
    assert stored(store, 7) == spool.data


def test_a_piece_of_err_is_no_piece_of_out():
    store = DictStore()
    uploader = Logs(store, lambda stream, offset, limit: stream.encode()[offset : offset + limit], JOB, 2)
    uploader.begin({})
    uploader.push()
    again = Logs(store, lambda stream, offset, limit: b"", JOB, 2)
    again.resume({})
    again.push()
    assert again._positions == {"out": 3, "err": 3, "times": 5}


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
                assert stored(store, 50) == spool.data
            else:
                uploader.push()
        except StoreError:
            assert word in ("down", "lost")
    store.before = store.after = lambda verb, key: None
    uploader.push()
    assert stored(store, 50) == spool.data


# ---------------------------------------------------------------- merging


def pieces_of(store: DictStore) -> list[Piece]:
    return [
        found[2] for x in store.list(object_keys.attempt_log_prefix(JOB, 2)) if (found := log_pieces.parse_piece(x)) is not None
    ]


def test_hours_of_short_lines_are_a_handful_of_pieces():
    """Each push was an object of its own: 28,800 a day and stream."""
    store, spool, most = DictStore(), Spool(), 0
    uploader = logs(store, spool, 4 << 20)
    uploader.begin({})
    sent = 0
    for _ in range(3000):
        spool.write(20)
        before = len(store.writes)
        uploader.push()
        sent += sum(len(store.objects[key]) for _, key in store.writes[before:])
        most = max(most, len(store.objects))
    assert most <= 24
    assert stored(store) == spool.data
    assert sent < 25 * len(spool.data), "a byte is sent again only when what it is part of has grown by half"


@given(st.lists(st.integers(1, 200), max_size=150))
def test_the_number_of_pieces_is_bounded_by_size(sizes):
    full = 64
    store, spool = DictStore(), Spool()
    uploader = logs(store, spool, full)
    uploader.begin({})
    for size in sizes:
        spool.write(size)
        uploader.push()
        assert len(store.objects) <= 2 * len(spool.data) / full + 8
    assert stored(store) == spool.data


def killed_at(number: int):
    """Raises at the `number`th point around a write or removal."""
    count = 0

    def trip(verb: str, key: str) -> None:
        nonlocal count
        if verb in ("put", "delete"):
            count += 1
            if count == number:
                raise AgentKilled

    return trip


class Watched(DictStore):
    """Calls `before` and `after` around each removal, too, and looks each time whether all is there that ever was."""

    whole = 0

    def delete(self, keys):
        for key in keys:
            self.before("delete", key)
            super().delete([key])
            self.look()
            self.after("delete", key)

    def put(self, key, data):
        self.before("put", key)
        self.objects[key] = data
        self.look()
        self.after("put", key)

    def look(self):
        count = len(stitched(self, JOB, 2, "out")[1])
        assert count >= self.whole, "output that was there is not there any more"
        self.whole = count


@pytest.mark.parametrize("number", range(1, 100))
def test_a_kill_between_any_two_writes_loses_and_doubles_nothing(number):
    store, spool = Watched(), Spool(50)
    uploader = logs(store, spool, 32)
    uploader.begin({"out": 50})
    store.before = store.after = killed_at(number)
    for size in (3, 5, 9, 1, 40, 2, 2, 2, 70, 6, 6, 12, 1, 1):
        spool.write(size)
        try:
            uploader.push()
        except AgentKilled:
            store.before = store.after = lambda verb, key: None
            uploader = logs(store, spool, 32)
            uploader.resume({"out": 50})
    uploader.push()
    assert stored(store, 50) == spool.data
    assert len(pieces_of(store)) <= 2 * len(spool.data) / 32 + 8, "what a killed agent left behind is removed"


def test_a_request_that_arrives_late_takes_nothing_away():
    """An agent was killed while it removed pieces; its request is carried out when its successor has merged more."""
    store, spool, late = DictStore(), Spool(), []
    uploader = logs(store, spool)
    uploader.begin({})
    spool.write(3)
    uploader.push()
    remove = store.delete
    store.delete = lambda keys: late.extend(keys)
    spool.write(4)
    uploader.push()
    store.delete = remove
    assert late
    second = logs(store, spool)
    second.resume({})
    for _ in range(5):
        spool.write(2)
        second.push()
    store.delete(late)
    assert stored(store) == spool.data


def test_who_may_not_remove_goes_on_without_merging():
    store, spool = DictStore(), Spool()
    uploader = logs(store, spool, 1000)

    def denied(keys):
        if list(keys):
            asked.append(1)
            raise StoreDenied("403")

    asked, store.delete = [], denied
    uploader.begin({})
    for _ in range(DENIED_PUSHES):
        spool.write(2)
        uploader.push()
    assert len(asked) == 1
    assert sum(len(x) for x in store.objects.values()) <= 2 * len(spool.data), "nothing is sent again in vain"
    assert stored(store) == spool.data


def test_a_commit_waits_for_no_merging():
    store, spool = DictStore(), Spool()
    uploader = logs(store, spool, 1000)
    uploader.begin({})
    for _ in range(3):
        spool.write(10)
        uploader.flush({"out": len(spool.data)})
    assert [(p.start, p.end) for p in pieces_of(store)] == [(0, 10), (10, 20), (20, 30)]
    spool.write(10)
    uploader.push()
    assert [(p.start, p.end) for p in pieces_of(store)] == [(0, 40)]


def test_what_this_machine_does_not_have_on_disk_is_not_merged():
    store, spool = DictStore(), Spool()
    uploader = logs(store, spool)
    uploader.begin({})
    spool.write(5)
    uploader.push()
    gone = logs(store, Gone(spool, 5))
    gone.resume({})
    spool.write(5)
    gone.push()
    assert stored(store) == spool.data


class Gone(Spool):
    """A disk that has lost what was before `first`."""

    def __init__(self, of: Spool, first: int) -> None:
        self.of, self.first = of, first

    def read(self, stream: str, offset: int, limit: int) -> bytes:
        return self.of.read(stream, offset, limit) if offset >= self.first else b""


def test_pieces_of_older_agents_and_odd_names():
    parse = log_pieces.parse_piece
    assert parse(Listed("jobs/j/log/000002/out-0000000000000007", 3, "")) == (
        2,
        "out",
        Piece(7, 10, "jobs/j/log/000002/out-0000000000000007"),
    )
    for name in ("out-7-11", "out-x", "out", "out-1-4-4", "out--3", ".tmp"):
        assert parse(Listed(f"jobs/j/log/000002/{name}", 3, "")) is None
    assert parse(Listed("jobs/j/log/x/out-7", 3, "")) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=12))
def test_cover_takes_each_byte_once_and_every_byte_that_there_is(drawn):
    pieces = [Piece(start, start + size, str(n)) for n, (start, size) in enumerate(drawn)]
    there = {at for p in pieces for at in range(p.start, p.end)}
    found = log_pieces.cover(pieces)
    assert [at for s in found for at in range(s.start, s.end)] == sorted(there)
    assert all(pieces[int(s.key)].start + s.skip == s.start and s.end <= pieces[int(s.key)].end for s in found)
