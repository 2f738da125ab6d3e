"""The head log of one job under readers at once: a controller's tick and its web requests share one."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.head_log import Appended, HeadLog, Unfinished
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Head, HeadKind
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from spotsurfer_wire.store.port import ObjectStore

GRANT = Head(1, HeadKind.GRANT, 1, None, 0, False, None, 0.0, "n1", "2026-01-01T00:00:00+00:00")


class Meeting(ObstoreStore):
    """A store in which two readers of the same entry always meet: each has read it before either goes on."""

    def __init__(self, inner: ObjectStore, entry: str) -> None:
        self._inner, self._entry, self._meet = inner, entry, threading.Barrier(2)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        data = self._inner.get_range(key, start, length)
        if key == self._entry:
            self._meet.wait(10)
        return data

    def list(self, prefix: str, after: str | None = None):  # type: ignore[no-untyped-def]
        return self._inner.list(prefix, after)

    def create(self, key: str, data: bytes) -> bool:
        return self._inner.create(key, data)


def test_two_threads_that_read_at_once_learn_each_entry_once() -> None:
    store = open_store("memory:///")
    writer = HeadLog(store, "j")
    assert writer.append(GRANT) is Appended.OURS
    reader = HeadLog(Meeting(store, object_keys.head_key("j", 2)), "j")
    reader.entries.append(GRANT)
    second = replace(GRANT, number=2, kind=HeadKind.COMMIT, checkpoint="000001-000001", sequence=1, nonce="n2")
    writer.append(second)
    threads = [threading.Thread(target=reader.refresh) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert [e.number for e in reader.entries] == [1, 2]
    assert reader.append(replace(GRANT, number=3, epoch=2, nonce="n3")) is Appended.OURS


def test_who_lost_the_answer_knows_its_own_entry_again() -> None:
    """A controller that did not would take its grant for another's, and never start the job."""
    log = HeadLog(open_store("memory:///"), "j")
    log.append(GRANT)
    assert log.append(GRANT) is Appended.OURS
    assert log.append(replace(GRANT, nonce="n2")) is Appended.LOST
    assert log.entries == [GRANT]


def test_an_entry_under_a_wrong_number_is_refused() -> None:
    store = open_store("memory:///")
    store.put(object_keys.head_key("j", 1), json_codec.encode(replace(GRANT, number=2)))
    with pytest.raises(ProtocolError, match="entry 1 says"):
        HeadLog(store, "j").refresh()


def test_a_log_that_lost_its_beginning_is_not_an_empty_one() -> None:
    """It would be granted anew from the beginning, beside whoever owns the job."""
    store = open_store("memory:///")
    writer = HeadLog(store, "j")
    for number in (1, 2, 3):
        writer.append(replace(GRANT, number=number, epoch=number, nonce=f"n{number}"))
    store.delete([object_keys.head_key("j", 1)])
    with pytest.raises(ProtocolError, match="lost what came before"):
        HeadLog(store, "j").refresh()


def test_who_reads_some_entries_at_once_never_takes_a_stale_one_for_the_newest() -> None:
    store = open_store("memory:///")
    writer, reader = HeadLog(store, "j"), HeadLog(store, "j")
    for number in range(1, 13):
        writer.append(replace(GRANT, number=number, epoch=number, nonce=f"n{number}"))
    for known in (5, 10):
        with pytest.raises(Unfinished):
            reader.refresh(5)
        assert len(reader.entries) == known
    newest = reader.refresh(5)
    assert newest is not None and newest.number == 12
    writer.append(replace(GRANT, number=13, epoch=13, nonce="n13"))
    newest = reader.refresh(1)
    assert newest is not None and newest.number == 13, "as many as were to be read are not too many"
