"""The controller reaches its store with the credentials that it asks AWS with: a person's profile, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import ReadOnlyCredentials
from spotsurfer_providers.aws.store_access import Chain
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError
from support.ec2.client import KEYS, REGION, TestEC2

from spotsurfer.config.settings import Settings
from spotsurfer.doctor import checks
from spotsurfer.model.errors import ConfigError
from spotsurfer.store.open_store import open_for, rights

pytestmark = pytest.mark.real

ROLE = "arn:aws:iam::123456789012:role/spotsurfer-controller"
BUCKET = "of-a-profile"
PROFILES = f"""\
[profile base]
aws_access_key_id = {KEYS["aws_access_key_id"]}
aws_secret_access_key = {KEYS["aws_secret_access_key"]}
[profile surf]
role_arn = {ROLE}
source_profile = base
region = {REGION}
"""


@pytest.fixture
def person(cloud: TestEC2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing but profiles in a file, one of which takes a role."""
    (tmp_path / "config").write_text(PROFILES)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.endpoint)
    cloud.client("s3").create_bucket(Bucket=BUCKET)
    return monkeypatch


def settings(cloud: TestEC2, path: Path, profile: str | None = None, **options: str) -> Settings:
    reached = {"region": REGION, "endpoint": cloud.endpoint, "allow_http": "true", "virtual_hosted_style_request": "false"}
    provider: dict[str, Any] = {"name": "aws", "aws": {"profile": profile} if profile else {}}
    store = {"url": f"s3://{BUCKET}/store", "options": {**reached, **options}}
    return Settings.model_validate({"controller": {"data_dir": path}, "store": store, "provider": provider})


@pytest.mark.parametrize("named", ["environment", "configuration"])
def test_a_profile_that_takes_a_role(cloud: TestEC2, person: pytest.MonkeyPatch, tmp_path: Path, named: str) -> None:
    if named == "environment":
        person.setenv("AWS_PROFILE", "surf")
    found = settings(cloud, tmp_path, "surf" if named == "configuration" else None)
    cloud.order("log")
    assert checks.store(found).level == "ok"
    store = open_for(found)
    store.put("x", b"1")
    assert store.get("x") == b"1"
    assert {c["principal"].get("role") for c in cloud.log() if c["service"] == "s3"} == {ROLE}


def test_each_request_asks_whether_there_are_newer_ones(cloud: TestEC2, person: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    class Changing:
        """In place of botocore's, which renew themselves."""

        def get_credentials(self) -> Changing:
            return self

        def get_frozen_credentials(self) -> Any:
            asked.append(f"AKIA{len(asked)}")
            return ReadOnlyCredentials(asked[-1], "secret", None)

    found = settings(cloud, tmp_path)
    store = open_store(found.store_url, found.store.options, Chain(Changing()))
    cloud.order("log")
    for data in (b"1", b"2", b"3"):
        store.put("x", data)
    assert [c["principal"]["key"] for c in cloud.log("s3:PutObject")] == asked


def place(found: Settings) -> tuple[Settings, str, Mapping[str, str]]:
    return found, found.store_url, found.store.options


def test_credentials_in_the_options_win(cloud: TestEC2, tmp_path: Path) -> None:
    assert rights(*place(settings(cloud, tmp_path, **KEYS))) is None
    assert rights(*place(settings(cloud, tmp_path, skip_signature="true"))) is None
    assert rights(*place(Settings.model_validate({"controller": {"data_dir": tmp_path}}))) is None


def test_no_credentials_and_no_such_profile_are_told(cloud: TestEC2, person: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no AWS credentials: set AWS_PROFILE"):
        open_for(settings(cloud, tmp_path)).get("x")
    with pytest.raises(ConfigError, match="nobody"):
        open_for(settings(cloud, tmp_path, "nobody"))
    found = checks.store(settings(cloud, tmp_path, "nobody"))
    assert (found.level, "nobody" in found.text) == ("fail", True)
