"""The output in the order in which it was printed: over moves, while it grows and is merged, by time and lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotsurfer_agent.control.log_upload import Logs
from spotsurfer_wire import messages, object_keys
from spotsurfer_wire.log_pieces import Row
from support.dict_store import DictStore

from spotsurfer.model.errors import Conflict
from spotsurfer.ports.service import LogAsk, LogFound, LogPart, LogPlace
from spotsurfer.store import job_output
from spotsurfer.store.job_output import Output, Printed, earlier_runs

JOB = "job-1"
STREAMS = ("out", "err")


class Job:
    """Prints; its machine keeps a row a write. `told` is what it printed, in order."""

    def __init__(self, records: bool = True) -> None:
        self.streams = {"times": b"", "out": b"", "err": b""}
        self.told: list[tuple[str, bytes]] = []
        self.now, self.records = 1000.0, records
        self.row()

    def row(self) -> None:
        if self.records:
            now = 0 if not self.streams["times"] and self.told else int(self.now * 1000)
            self.streams["times"] += Row(now, len(self.streams["out"]), len(self.streams["err"])).packed()

    def write(self, stream: str, data: bytes) -> None:
        self.streams[stream] += data
        self.told.append((stream, data))
        self.row()

    def read(self, stream: str, offset: int, limit: int) -> bytes:
        return self.streams[stream][offset : offset + limit]

    def positions(self) -> dict[str, int]:
        return {s: len(data) for s, data in self.streams.items() if self.records or s != "times"}

    def back_to(self, positions: dict[str, int], told: int) -> None:
        """A restore from a checkpoint."""
        self.streams = {s: data[: positions.get(s, 0)] for s, data in self.streams.items()}
        self.told = self.told[:told]
        self.row()


def uploader(store: DictStore, job: Job, attempt: int, full: int = 64) -> Logs:
    made = Logs(store, job.read, JOB, attempt, full, lambda _: None)
    made.begin(job.positions())
    return made


def fresh(store: DictStore, job: Job, attempt: int = 1, full: int = 64) -> Logs:
    made = Logs(store, job.read, JOB, attempt, full, lambda _: None)
    made.begin({})
    return made


def read(store: DictStore, ask: LogAsk = LogAsk(), attempts: tuple[int, ...] = (1,)) -> tuple[list[LogPart], LogPlace]:  # noqa: B008 - frozen
    seen = Printed(store, store.list(object_keys.log_prefix(JOB)), attempts)
    return job_output.pick(seen, replace(ask, place=job_output.begin(seen, ask)))


def whole(store: DictStore, ask: LogAsk = LogAsk(), attempts: tuple[int, ...] = (1,)) -> list[LogPart]:  # noqa: B008 - frozen
    """All of it, answer by answer."""
    found: list[LogPart] = []
    while True:
        parts, place = read(store, ask, attempts)
        found += parts
        ask = replace(ask, place=place, since=None, tail=None)
        if not parts:
            return found


def joined(told: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Neighbours of one stream are one."""
    out: list[tuple[str, bytes]] = []
    for stream, data in told:
        if out and out[-1][0] == stream:
            out[-1] = (stream, out[-1][1] + data)
        elif data:
            out.append((stream, data))
    return out


def plain(parts: list[LogPart]) -> list[tuple[str, bytes]]:
    return joined([(p.stream, p.data) for p in parts])


def printed(lines: int = 30) -> tuple[DictStore, Job]:
    store, job = DictStore(), Job()
    for n in range(lines):
        job.now += 10
        job.write("err" if n % 3 == 2 else "out", b"line %d\n" % n)
    fresh(store, job, full=512).push()
    return store, job


@pytest.mark.parametrize("limit", [1, 7, 8, 100, 1 << 20])
def test_both_streams_as_they_were_printed(limit: int) -> None:
    store, job = printed()
    assert plain(whole(store, LogAsk(limit=limit))) == joined(job.told)
    for stream in STREAMS:
        assert plain(whole(store, LogAsk((stream,), limit=limit))) == [(stream, job.streams[stream])]


def test_each_part_says_when() -> None:
    store, _ = printed(3)
    assert [(p.stream, p.seconds, p.recorded) for p in whole(store)] == [
        ("out", 1010.0, True),
        ("out", 1020.0, True),
        ("err", 1030.0, True),
    ]


def test_what_older_agents_printed_comes_stream_by_stream_and_says_so() -> None:
    store, job = DictStore(), Job(records=False)
    job.write("err", b"first\n")
    job.write("out", b"second\n")
    fresh(store, job).push()
    for key in list(store.objects):  # their names have no end
        store.objects[key.rpartition("-")[0]] = store.objects.pop(key)
    assert [(p.stream, p.data, p.recorded) for p in whole(store)] == [("out", b"second\n", False), ("err", b"first\n", False)]
    assert whole(store, LogAsk(in_order=True)) == whole(store), "nothing is held back for rows that never come"
    assert plain(whole(store, LogAsk(tail=1))) == [("err", b"first\n")]
    with pytest.raises(Conflict, match="older agent"):
        read(store, LogAsk(since=1.0))
    job.records = True  # the next machine's agent is a newer one
    job.row()
    second = uploader(store, job, 2)
    second.begin({"out": 7, "err": 6})
    job.now = 2000.0
    job.write("err", b"third\n")
    job.write("out", b"fourth\n")
    second.push()
    parts = whole(store, attempts=(1, 2))
    assert [(p.data, p.recorded) for p in parts] == [
        (b"second\n", False),
        (b"first\n", False),
        (b"third\n", True),
        (b"fourth\n", True),
    ]
    assert plain(whole(store, LogAsk(since=1.0), attempts=(1, 2))) == [("err", b"third\n"), ("out", b"fourth\n")]


words = st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(1, 9)), max_size=25)
few = settings(max_examples=40, deadline=None)


def by_lines(told: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [(stream, line) for stream, data in told for line in data.splitlines(keepends=True)]


@few
@given(words, st.integers(0, 30))
def test_the_last_lines(script: list[tuple[str, int]], lines: int) -> None:
    store, job = DictStore(), Job()
    for n, (stream, size) in enumerate(script):
        job.write(stream, b"%d" % n + b"x" * size + b"\n")
    fresh(store, job).push()
    every = by_lines(job.told)
    assert plain(whole(store, LogAsk(tail=lines))) == joined(every[len(every) - min(lines, len(every)) :])
    for stream in STREAMS:
        mine = [x for x in every if x[0] == stream]
        assert plain(whole(store, LogAsk((stream,), tail=lines))) == joined(mine[len(mine) - min(lines, len(mine)) :])


def test_the_last_lines_of_a_long_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_output, "BLOCK_ROWS", 4)
    monkeypatch.setattr(job_output, "BEHIND_BYTES", 16)
    store, job = printed(300)
    for lines in (1, 5, 50, 299, 1000):
        assert plain(whole(store, LogAsk(tail=lines))) == joined(job.told[-lines:])


def test_an_unfinished_last_line_is_a_line() -> None:
    store, job = DictStore(), Job()
    job.write("out", b"one\ntwo\nthr")
    fresh(store, job).push()
    assert plain(whole(store, LogAsk(tail=1))) == [("out", b"thr")]
    assert plain(whole(store, LogAsk(tail=2))) == [("out", b"two\nthr")]


@pytest.mark.parametrize("block", [2, 2048])
def test_since_a_time(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_output, "BLOCK_ROWS", block)
    store, job = printed()
    for since in range(990, 1320, 5):
        wanted = [x for n, x in enumerate(job.told) if 1010 + 10 * n >= since]
        assert plain(whole(store, LogAsk(since=float(since)))) == joined(wanted)
        assert plain(whole(store, LogAsk(since=float(since), tail=2))) == joined(wanted[-2:])


def test_a_part_ends_where_it_is_told_to() -> None:
    store, job = printed(6)
    until = LogPlace(len(b"line 0\nline 1\n"), 3)
    assert plain(whole(store, LogAsk(until=until))) == [("out", b"line 0\nline 1\n"), ("err", b"lin")]
    assert plain(whole(store, LogAsk(place=until))) == [("err", b"e 2\n"), *joined(job.told)[2:]]


@few
@given(st.data())
def test_over_moves_and_losses_each_line_once_and_in_order(data: st.DataObject) -> None:
    store, job, attempts = DictStore(), Job(), [1]
    mine = fresh(store, job)
    saved, told = job.positions(), 0
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["write", "write", "write", "push", "save", "move", "lose", "restart"])):
            case "write":
                job.write(data.draw(st.sampled_from(STREAMS)), b"%d by %d\n" % (len(job.told), attempts[-1]))
            case "push":
                mine.push()
            case "restart":
                mine = Logs(store, job.read, JOB, attempts[-1], 64, lambda _: None)
                mine.resume(saved if attempts != [1] else {})
                mine.push()
            case "save":
                saved, told = job.positions(), len(job.told)
                mine.flush(saved)
            case word:
                if word == "move":
                    saved, told = job.positions(), len(job.told)
                    mine.flush(saved)
                attempts.append(attempts[-1] + 1)
                mine = Logs(store, job.read, JOB, attempts[-1], 64, lambda _: None)
                mine.begin(saved if word == "move" or told else {})
                if word == "move" or told:
                    job.back_to(saved, told)
                else:
                    return  # it begins anew: another life
    job.write("out", b"the\n")
    job.write("err", b"end\n")
    mine.push()
    assert plain(whole(store, attempts=tuple(attempts))) == joined(job.told)


class Slow(DictStore):
    """`meanwhile` is called after each change, as if somebody looked just then."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self.meanwhile()

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            super().delete([key])
            self.meanwhile()


class Follower:
    """What `logs -f` asks for, look by look."""

    def __init__(self, output: Output) -> None:
        self.output, self.ask, self.seen = output, LogAsk(in_order=True), list[tuple[str, bytes]]()

    def look(self, old_seconds: float = 0.0) -> int:
        found = self.output.with_look(JOB, [1], self.use, old_seconds)
        self.seen += [(p.stream, p.data) for p in found.parts]
        self.ask = replace(self.ask, place=found.place)
        return len(found.parts)

    def use(self, seen: Printed) -> LogFound:
        return LogFound(*job_output.pick(seen, self.ask))


@few
@given(words, st.integers(1, 5))
def test_who_follows_sees_the_order_whenever_he_looks(script: list[tuple[str, int]], every: int) -> None:
    store, job = Slow(), Job()
    follower = Follower(Output(store))
    mine = fresh(store, job, full=32)
    store.meanwhile = follower.look
    for n, (stream, size) in enumerate(script):
        job.write(stream, b"%d" % n + b"x" * size + b"\n")
        if n % every == 0:
            mine.push()
    mine.push()
    follower.look()
    assert joined(follower.seen) == joined(job.told)


def test_pieces_that_are_merged_under_a_readers_eyes() -> None:
    """Between its listing and its request the agent merges the piece with others and removes it."""
    store, job = DictStore(), Job()
    mine = fresh(store, job)
    job.write("out", b"one\n")
    mine.push()
    merges = 3

    def now(verb: str, key: str) -> None:
        nonlocal merges
        if verb == "get" and merges:
            merges -= 1
            job.write("out", b"more\n")
            mine.push()

    store.before = now
    assert Output(store).read(JOB, "out", [1], 0, 100).startswith(b"one\n")
    assert merges == 0


def test_a_listing_that_saw_neither_the_small_pieces_nor_the_large_one_is_made_again() -> None:
    store, job = DictStore(), Job()
    mine = fresh(store, job)
    for n in range(3):
        job.write("out", b"line %d\n" % n)
        mine.flush(job.positions())
    gone = object_keys.log_key(JOB, 1, "out", 7, 14)
    data = store.objects.pop(gone)
    told: list[str] = []

    def there_again(verb: str, key: str) -> None:
        told.append(verb)
        if told.count("list") == 2:
            store.objects[gone] = data

    store.before = there_again
    assert Output(store).read(JOB, "out", [1], 0, 100) == job.streams["out"]
    assert told.count("list") == 2


def test_the_cost_of_following() -> None:
    """Nothing new: one listing in so long, however many look. News: one request for a new piece of each stream."""
    store, job, now = DictStore(), Job(), 0.0
    asked: list[str] = []
    mine = fresh(store, job, full=1 << 20)
    output = Output(store, lambda: now)
    followers = [Follower(output) for _ in range(5)]
    for n in range(200):
        job.write("out", b"line %d\n" % n)
        job.write("err", b"talk %d\n" % n)
        mine.push()
    for f in followers:
        f.look(1.0)
    store.before = lambda verb, key: asked.append(verb)
    for _ in range(10):
        for f in followers:
            assert f.look(1.0) == 0
    assert asked == []
    now += 2.0
    for f in followers:
        f.look(1.0)
    assert asked == ["list"]
    job.write("out", b"news\n")
    job.write("err", b"news\n")
    mine.push()
    now, asked[:] = now + 2.0, []
    assert followers[0].look(1.0) > 0
    assert sorted(asked) == ["get"] * 3 + ["list"]
    assert joined(followers[0].seen) == joined(job.told)


def head(number: int, kind: str, epoch: int, checkpoint: str | None = None, code: int | None = None) -> messages.Head:
    done = messages.Done(code, "exited") if kind == "done" else None
    return messages.Head(number, messages.HeadKind(kind), epoch, checkpoint, 0, False, done, 0.0, "", "")


def test_runs_before_the_present_one_are_named() -> None:
    first = [head(1, "grant", 1), head(2, "done", 1, code=3)]
    assert earlier_runs(first) == set()
    again = [*first, head(3, "grant", 2)]
    assert earlier_runs(again) == {1}
    moved = [*again, head(4, "commit", 2, "c"), head(5, "grant", 3, "c"), head(6, "done", 3, "c", code=1), head(7, "grant", 4)]
    assert earlier_runs(moved) == {1, 3}
    assert earlier_runs([head(1, "grant", 1), head(2, "grant", 2)]) == {1}, "lost before its first checkpoint"
