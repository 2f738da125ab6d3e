"""The family's secret: made once, guarded, and told from another one before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_wire.store.obstore import open_store
from support.dict_store import DictStore

from spotsurfer.model.errors import ConfigError, StoreOwned, StoreUnwritable
from spotsurfer.store import master_key
from spotsurfer.store.leadership import claim_store


def test_it_is_made_once_and_for_us_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.key"
    key = master_key.load(path)
    assert master_key.load(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["store.key"]
    assert master_key.load(tmp_path / "other").master != key.master
    assert key.master.hex() not in repr(key) + key.fingerprint + key.secret_of("job")


def test_agents_and_controller_have_the_same_keys(tmp_path: Path) -> None:
    key = master_key.load(tmp_path / "store.key", encrypts=True)
    assert key.keys_of("a").encrypts
    assert key.keys_of("a") != key.keys_of("b")
    assert key.secret_of("a") != key.secret_of("b")


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "ab" * 31])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "store.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="64 hexadecimal digits: bring it back from a backup"):
        master_key.load(path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.key"
    master_key.load(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        master_key.load(path)


def test_a_place_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key_file"):
        master_key.load(tmp_path / "nowhere" / "store.key")


def test_a_store_tells_a_wrong_key_at_the_start() -> None:
    store = open_store("memory:///")
    claim_store(store, "family", "memory:///", "right")
    claim_store(store, "family", "memory:///", "right")
    with pytest.raises(StoreOwned, match="made with another key than this controller's: bring that key back"):
        claim_store(store, "family", "memory:///", "wrong")


class Overwrites(DictStore):
    """Speaks the protocol, and ignores the condition of a write."""

    def create(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


def test_a_store_that_overwrites_is_not_taken() -> None:
    """Else two families could claim it, and two machines a job."""
    with pytest.raises(StoreUnwritable, match="overwrites objects"):
        claim_store(Overwrites(), "family", "memory:///")
    store = DictStore()
    claim_store(store, "family", "memory:///")
    assert not [key for key in store.objects if key.startswith("proof")]


class AsksAgain(DictStore):
    """As a client that heard no answer to its first try: what it finds then is its own."""

    def create(self, key: str, data: bytes) -> bool:
        super().create(key, data)
        return super().create(key, data)


def test_a_store_whose_answers_were_lost_is_not_taken_for_one_that_overwrites() -> None:
    store = AsksAgain()
    claim_store(store, "family", "memory:///")
    with pytest.raises(StoreOwned, match="belongs to the controller family"):
        claim_store(store, "another", "memory:///")
