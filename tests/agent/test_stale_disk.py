"""A machine of an image that was made of a machine which ran an agent: what that one left is not taken for its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent import coding, objectkeys
from spotsurfer_agent.access import voucher, withheld
from spotsurfer_agent.protocol import AgentConfig
from spotsurfer_agent.storeport import StoreError
from support.dict_store import DictStore

OPENS = b"v" * 32
WHOLE = AgentConfig("job-1", 3, "s3://bucket", key="1e" * 32, access_secret="5e" * 32)
TOLD, KEPT = withheld.split(WHOLE, OPENS)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> DictStore:
    made = DictStore()
    monkeypatch.setattr(voucher, "open_store", lambda *_: made)
    return made


def leave(folder: Path, config: bytes) -> None:
    (folder / "agent.json").write_bytes(config)
    for name in ("host_key", "reported"):
        (folder / name).write_text("of the other machine")


@pytest.mark.parametrize("other", [{"job": "job-0"}, {"attempt": 2}, None])
def test_what_another_attempt_left_is_removed(store: DictStore, tmp_path: Path, other: dict[str, Any] | None) -> None:
    leave(tmp_path, b"cut of" if other is None else coding.encode(replace(WHOLE, **other)))
    with pytest.raises(StoreError, match="not there"):
        voucher.redeem(TOLD, tmp_path)
    assert list(tmp_path.iterdir()) == [], "also while there is nothing else yet"
    store.objects[objectkeys.voucher_key("job-1", 3)] = withheld.sealed(KEPT, OPENS, "job-1", 3)
    voucher.redeem(TOLD, tmp_path)
    assert coding.decode(AgentConfig, (tmp_path / "agent.json").read_bytes()) == WHOLE
    assert [p.name for p in tmp_path.iterdir()] == ["agent.json"]


def test_what_this_attempt_has_is_kept_and_not_asked_for(store: DictStore, tmp_path: Path) -> None:
    """A machine that starts again: by then the object is gone from the store."""
    leave(tmp_path, coding.encode(WHOLE))
    voucher.redeem(TOLD, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"agent.json", "host_key", "reported"}
