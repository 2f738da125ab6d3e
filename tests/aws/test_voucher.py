"""A machine trades its voucher for what its user-data leaves out: once, with its own role."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent.__main__ import main
from spotsurfer_agent.store import credentials
from spotsurfer_wire import crypto, json_codec, object_keys, sealed_objects
from spotsurfer_wire.messages import AgentConfig
from spotsurfer_wire.sealed_objects import BadHandout
from spotsurfer_wire.store.port import StoreError
from support.role_store import ROLE_TOKEN, RoleStore

pytestmark = pytest.mark.real

MASTER = b"m" * 32
OPENS = crypto.voucher(MASTER, "job-1", 3)
HOST = "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.fixture
def cloud() -> Iterator[RoleStore]:
    with RoleStore() as made:
        yield made


def whole(cloud: RoleStore) -> AgentConfig:
    given: dict[str, Any] = {"store_options": cloud.options, "metadata_url": cloud.url}
    inputs = {"s3://lab/": {"access_key_id": "AKIA", "secret_access_key": "of the lab"}}
    return AgentConfig("job-1", 3, "s3://bucket", key="1e" * 32, access_secret="5e" * 32, input_options=inputs, **given)


def lay(cloud: RoleStore, opens: bytes = OPENS, **more: str) -> None:
    _, kept = sealed_objects.withhold_secrets(whole(cloud), opens)
    cloud.objects[object_keys.voucher_key("job-1", 3)] = sealed_objects.seal_withheld({**kept, **more}, opens, "job-1", 3)


def test_it_gets_all_that_was_left_out_and_keeps_it_for_root(cloud: RoleStore, tmp_path: Path) -> None:
    told, kept = sealed_objects.withhold_secrets(whole(cloud), OPENS)
    said = json_codec.encode(told).decode()
    assert not [v for v in ("1e" * 32, "5e" * 32, "of the lab") if v in said]
    assert set(kept) == {"key", "access_secret", "input_options"}
    lay(cloud, host_key=HOST)
    credentials.redeem(told, tmp_path)
    assert json_codec.decode(AgentConfig, (tmp_path / "agent.json").read_bytes()) == whole(cloud)
    assert (tmp_path / "host_key").read_text() == HOST
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {0o600}
    assert {p.name for p in tmp_path.iterdir()} == {"agent.json", "host_key"}
    assert {token for _, _, token in cloud.log} == {ROLE_TOKEN}, "by the machine's own role: it has nothing else yet"


def test_when_it_is_gone_the_voucher_opens_nothing(cloud: RoleStore, tmp_path: Path) -> None:
    told, _ = sealed_objects.withhold_secrets(whole(cloud), OPENS)
    lay(cloud)
    credentials.redeem(told, tmp_path)
    del cloud.objects[object_keys.voucher_key("job-1", 3)]
    before = (tmp_path / "agent.json").read_bytes()
    credentials.redeem(told, tmp_path)
    assert (tmp_path / "agent.json").read_bytes() == before, "what is here already is not asked for"
    (tmp_path / "agent.json").unlink()
    with pytest.raises(StoreError):
        credentials.redeem(told, tmp_path)


def test_it_opens_nothing_else(cloud: RoleStore, tmp_path: Path) -> None:
    """Neither what another attempt is to have, nor the credentials that this one is handed later."""
    told, _ = sealed_objects.withhold_secrets(whole(cloud), OPENS)
    for opens in (crypto.voucher(MASTER, "job-1", 4), crypto.access_secret(MASTER, "job-1", 3)):
        lay(cloud, opens)
        with pytest.raises(BadHandout):
            credentials.redeem(told, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_program_says_whether_it_has_it(cloud: RoleStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told, _ = sealed_objects.withhold_secrets(whole(cloud), OPENS)
    path = tmp_path / "agent.json.new"
    path.write_bytes(json_codec.encode(told))
    words = ["--redeem", "--config", str(path), "--base", str(tmp_path)]
    assert main(words) == 1 and not (tmp_path / "agent.json").exists()
    lay(cloud)
    assert main(words) == 0
    assert whole(cloud) == json_codec.decode(AgentConfig, (tmp_path / "agent.json").read_bytes())
