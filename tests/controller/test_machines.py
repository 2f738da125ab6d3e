"""What user-data says, and what it must not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spotsurfer_wire import json_codec
from spotsurfer_wire.messages import AgentConfig
from spotsurfer_wire.sealed_objects import unseal_handout
from support.builders import JOB, POOL, a_job, an_attempt

from spotsurfer.config.settings import Settings
from spotsurfer.controller.machines.bootstrap import Login
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.controller.machines.user_data import Machines
from spotsurfer.ports.provider import BillingRule, BootBucket, Capabilities, StoreAccess
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database
from spotsurfer.store.master_key import StoreKey

KEY = StoreKey(b"m" * 32)
HOST_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nof the machine\n-----END OPENSSH PRIVATE KEY-----\n"
INPUTS = {"s3://lab/": {"access_key_id": "AKIA", "secret_access_key": "of-the-lab"}}


def clouds(access: StoreAccess) -> Clouds:
    """One cloud, with such access to the store."""
    abilities = Capabilities(120.0, "aws", (BillingRule(),))
    provider: Any = SimpleNamespace(name=POOL.provider, capabilities=abilities, store_access=lambda *_: access)
    return Clouds([provider], access.url)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    engine: Any = open_database(tmp_path / "state.db")
    with engine.begin() as c:
        rows.add_job(c, a_job())
    access = StoreAccess("s3://bucket", {"region": "us-east-1"}, renewed=True)
    logins: Any = SimpleNamespace(of_user_data=lambda _: Login("admin", "ssh-ed25519 AAAA x", HOST_KEY))
    settings = Settings(inputs={"options": INPUTS})  # type: ignore[arg-type]
    return Machines(settings, engine, clouds(access), KEY, "0" * 64, logins)


def test_user_data_holds_no_secret_but_a_voucher_and_is_the_same_each_time(machines: Machines) -> None:
    """Whoever may describe machines reads it as long as they run."""
    attempt = an_attempt(1)
    text = machines.user_data(attempt)
    secrets = (KEY.secret_of(JOB), KEY.access_secret_of(JOB, 1).hex(), "of the machine", "of-the-lab", KEY.master.hex())
    assert not [s for s in secrets if s in text]
    assert KEY.voucher_of(JOB, 1).hex() in text and "ssh-ed25519 AAAA x" in text
    assert machines.user_data(attempt) == text


def test_a_machine_of_another_cloud_begins_in_a_bucket_of_its_own(machines: Machines) -> None:
    boot = BootBucket("gs://boot", {}, {"base_url": "http://google"})
    access = StoreAccess("s3://bucket", {"region": "us-east-1"}, renewed=True)
    provider: Any = SimpleNamespace(name=POOL.provider, capabilities=Capabilities(30.0, "gcp", stores=("gs",)), boot=boot)
    keeper: Any = SimpleNamespace(name="keeper", capabilities=Capabilities(120.0, "aws", stores=("s3",)))
    keeper.store_access = lambda *_: access
    machines.clouds = Clouds([provider, keeper], "s3://bucket")
    text = machines.user_data(an_attempt(1))
    config = json_codec.decode(AgentConfig, next(line for line in text.splitlines() if line.startswith("{")).encode())
    assert (config.store_url, config.store_options) == ("s3://bucket", {"region": "us-east-1"})
    assert (config.boot_url, config.boot_options) == ("gs://boot", {"base_url": "http://google"})
    assert (config.metadata_dialect, config.notice_window_seconds) == ("gcp", 30.0)
    assert f"url=http://google/boot/runtime/{'0' * 64}.tar.gz" in text and "rights=bearer" in text


def test_what_it_leaves_out_opens_by_the_voucher(machines: Machines) -> None:
    kept = unseal_handout(machines.left_out(an_attempt(1)), KEY.voucher_of(JOB, 1), JOB, 1).values
    assert kept["key"] == KEY.secret_of(JOB) and kept["access_secret"] == KEY.access_secret_of(JOB, 1).hex()
    assert kept["host_key"] == HOST_KEY and "of-the-lab" in kept["input_options"]


def test_a_machine_without_a_role_is_told_all(machines: Machines) -> None:
    """A box: its user-data lies in the controller's own folder, and it has no way to trade a voucher."""
    machines.clouds = clouds(StoreAccess("s3://b", {"region": "x"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spotsurfer.controller.machines.bootstrap.presigned_get", lambda *_: "https://b/x")
        text = machines.user_data(an_attempt(1))
    assert KEY.secret_of(JOB) in text and KEY.voucher_of(JOB, 1).hex() not in text
