"""What a whole head log says of its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from simulation.objects import Objects
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Done, Head, HeadKind
from spotsurfer_wire.store.port import Listed, StoreError
from support.saves import a_head

from spotsurfer.store import head_logs as heads_of
from spotsurfer.store.head_logs import HeadLogs, summary

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAILED, WELL, CANCELLED = Done(7, "exited"), Done(0, "exited"), Done(None, "cancelled")


def log(*ends: Done | None) -> Sequence[Head]:
    """One attempt after the other, each with a checkpoint; None = the cloud took its machine."""
    entries: list[Head] = []
    for epoch, done in enumerate(ends, 1):
        checkpoint = f"00000{epoch}-000001"
        entries.append(a_head(len(entries) + 1, HeadKind.GRANT, epoch, None, epoch))
        entries.append(a_head(len(entries) + 1, HeadKind.COMMIT, epoch, checkpoint, epoch))
        if done is not None:
            entries.append(a_head(len(entries) + 1, HeadKind.DONE, epoch, checkpoint, epoch, done=done))
    return entries


@pytest.mark.parametrize(
    ("ends", "failures"),
    [
        ([None, None, None], 0),
        ([None, FAILED, None, FAILED], 2),
        ([None, WELL], 0),
        ([replace(WELL, undelivered="no file matched the outputs *.fa")], 1),
        ([FAILED, CANCELLED], 1),
    ],
)
def test_only_an_end_of_the_command_itself_counts_as_a_failure(ends: list[Done | None], failures: int) -> None:
    assert summary(log(*ends)).failures == failures


class Ticking(Objects):
    """A store in which a tick of the controller falls into each listing."""

    heads: HeadLogs

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        self.heads.keep([], NOW)
        return super().list(prefix, after)


def test_a_tick_does_not_forget_the_log_of_an_ended_job_while_it_is_read() -> None:
    store = Ticking()
    store.heads = heads = HeadLogs(store)
    for entry in log(WELL):
        store.put(object_keys.head_key("old", entry.number), json_codec.encode(entry))
    assert heads.seen("old", NOW, fresh=True).done
    assert [e.number for e in heads.log("old").entries] == [1, 2, 3]


def test_nothing_is_told_of_a_log_that_was_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it would say who owned the job a while ago, and that a job that went back had ended."""
    monkeypatch.setattr(heads_of, "ENTRIES_AT_ONCE", 5)
    store = Objects()
    heads, writer = HeadLogs(store), HeadLog(store, "job")
    entries = log(*[None] * 6)
    writer.append(entries[0])
    assert heads.seen("job", NOW, fresh=True).number == 1
    for e in entries[1:]:
        writer.append(e)
    for _ in range(2):
        with pytest.raises(StoreError, match="read on"):
            heads.seen("job", NOW, fresh=len(heads.log("job").entries) == 1)
    assert heads.seen("job", NOW, fresh=False).number == 12
