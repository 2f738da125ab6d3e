"""A machine of an image that was made of a machine which ran an agent: what that one left is not taken for its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent.store import credentials
from spotsurfer_wire import json_codec, object_keys, sealed_objects
from spotsurfer_wire.messages import AgentConfig
from spotsurfer_wire.store.port import StoreError
from support.dict_store import DictStore

OPENS = b"v" * 32
WHOLE = AgentConfig("job-1", 3, "s3://bucket", key="1e" * 32, access_secret="5e" * 32)
TOLD, KEPT = sealed_objects.withhold_secrets(WHOLE, OPENS)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> DictStore:
    made = DictStore()
    monkeypatch.setattr(credentials, "open_store", lambda *_: made)
    return made


def leave(folder: Path, config: bytes) -> None:
    (folder / "agent.json").write_bytes(config)
    for name in ("host_key", "reported"):
        (folder / name).write_text("of the other machine")


@pytest.mark.parametrize("other", [{"job": "job-0"}, {"attempt": 2}, None])
def test_what_another_attempt_left_is_removed(store: DictStore, tmp_path: Path, other: dict[str, Any] | None) -> None:
    leave(tmp_path, b"cut of" if other is None else json_codec.encode(replace(WHOLE, **other)))
    with pytest.raises(StoreError, match="not there"):
        credentials.redeem(TOLD, tmp_path)
    assert list(tmp_path.iterdir()) == [], "also while there is nothing else yet"
    store.objects[object_keys.voucher_key("job-1", 3)] = sealed_objects.seal_withheld(KEPT, OPENS, "job-1", 3)
    credentials.redeem(TOLD, tmp_path)
    assert json_codec.decode(AgentConfig, (tmp_path / "agent.json").read_bytes()) == WHOLE
    assert [p.name for p in tmp_path.iterdir()] == ["agent.json"]


def test_what_this_attempt_has_is_kept_and_not_asked_for(store: DictStore, tmp_path: Path) -> None:
    """A machine that starts again: by then the object is gone from the store."""
    leave(tmp_path, json_codec.encode(WHOLE))
    credentials.redeem(TOLD, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"agent.json", "host_key", "reported"}
