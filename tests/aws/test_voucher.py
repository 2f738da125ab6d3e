"""A machine trades its voucher for what its user-data leaves out: once, with its own role."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent import coding, objectkeys
from spotsurfer_agent.__main__ import main
from spotsurfer_agent.access import voucher, withheld
from spotsurfer_agent.access.handout import BadHandout
from spotsurfer_agent.chunks import keys
from spotsurfer_agent.protocol import AgentConfig
from spotsurfer_agent.storeport import StoreError
from support.role_store import ROLE_TOKEN, RoleStore

pytestmark = pytest.mark.real

MASTER = b"m" * 32
OPENS = keys.voucher(MASTER, "job-1", 3)
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
    _, kept = withheld.split(whole(cloud), opens)
    cloud.objects[objectkeys.voucher_key("job-1", 3)] = withheld.sealed({**kept, **more}, opens, "job-1", 3)


def test_it_gets_all_that_was_left_out_and_keeps_it_for_root(cloud: RoleStore, tmp_path: Path) -> None:
    told, kept = withheld.split(whole(cloud), OPENS)
    said = coding.encode(told).decode()
    assert not [v for v in ("1e" * 32, "5e" * 32, "of the lab") if v in said]
    assert set(kept) == {"key", "access_secret", "input_options"}
    lay(cloud, host_key=HOST)
    voucher.redeem(told, tmp_path)
    assert coding.decode(AgentConfig, (tmp_path / "agent.json").read_bytes()) == whole(cloud)
    assert (tmp_path / "host_key").read_text() == HOST
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {0o600}
    assert {p.name for p in tmp_path.iterdir()} == {"agent.json", "host_key"}
    assert {token for _, _, token in cloud.log} == {ROLE_TOKEN}, "by the machine's own role: it has nothing else yet"


def test_when_it_is_gone_the_voucher_opens_nothing(cloud: RoleStore, tmp_path: Path) -> None:
    told, _ = withheld.split(whole(cloud), OPENS)
    lay(cloud)
    voucher.redeem(told, tmp_path)
    del cloud.objects[objectkeys.voucher_key("job-1", 3)]
    before = (tmp_path / "agent.json").read_bytes()
    voucher.redeem(told, tmp_path)
    assert (tmp_path / "agent.json").read_bytes() == before, "what is here already is not asked for"
    (tmp_path / "agent.json").unlink()
    with pytest.raises(StoreError):
        voucher.redeem(told, tmp_path)


def test_it_opens_nothing_else(cloud: RoleStore, tmp_path: Path) -> None:
    """Neither what another attempt is to have, nor the credentials that this one is handed later."""
    told, _ = withheld.split(whole(cloud), OPENS)
    for opens in (keys.voucher(MASTER, "job-1", 4), keys.access_secret(MASTER, "job-1", 3)):
        lay(cloud, opens)
        with pytest.raises(BadHandout):
            voucher.redeem(told, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_program_says_whether_it_has_it(cloud: RoleStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told, _ = withheld.split(whole(cloud), OPENS)
    path = tmp_path / "agent.json.new"
    path.write_bytes(coding.encode(told))
    words = ["--redeem", "--config", str(path), "--base", str(tmp_path)]
    assert main(words) == 1 and not (tmp_path / "agent.json").exists()
    lay(cloud)
    assert main(words) == 0
    assert whole(cloud) == coding.decode(AgentConfig, (tmp_path / "agent.json").read_bytes())
