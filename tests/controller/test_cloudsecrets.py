"""Secrets of the clouds, against moto and against a fake that is held to Google's description of its API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from spotsurfer_providers.cloud_secrets import aws, gcp
from support.gcp_secrets import GcpSecrets, gcp_secrets

from spotsurfer.model import errors as e

VALUE = b"canary-5d1b8c"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "NO_GCE_CHECK": "true",
        "CLOUDSDK_CONFIG": str(tmp_path),
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


# ---------------------------------------------------------------- AWS


@pytest.fixture
def manager() -> Iterator[object]:
    with mock_aws():
        client = boto3.client("secretsmanager")
        client.create_secret(Name="prod/token", SecretString=VALUE.decode())
        client.create_secret(Name="prod/key", SecretBinary=b"\0" + VALUE)
        client.create_secret(Name="prod/db", SecretString='{"user": "u", "password": "p", "port": 5432}')
        yield client


def test_aws_by_name_arn_and_key(manager, monkeypatch) -> None:
    assert aws("prod/token") == VALUE
    assert aws("prod/key") == b"\0" + VALUE
    assert (aws("prod/db#password"), aws("prod/db#port")) == (b"p", b"5432")
    arn = manager.describe_secret(SecretId="prod/token")["ARN"]
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")  # the ARN knows better
    assert aws(arn) == VALUE


def test_aws_what_is_not_there(manager) -> None:
    with pytest.raises(e.InputMissing, match=r"aws-secretsmanager:absent is not there.*ResourceNotFoundException"):
        aws("absent")
    for place in ("prod/token#password", "prod/db#absent"):
        with pytest.raises(e.InputMissing, match="no JSON object with that key") as found:
            aws(place)
        assert "canary" not in str(found.value)
    manager.create_secret(Name="going", SecretString="x")
    manager.delete_secret(SecretId="going")
    with pytest.raises(e.InputMissing, match="is not there, or not any more"):
        aws("going")


def test_aws_without_credentials_or_a_service(monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(e.InputMissing, match="check the controller's credentials"):
        aws("prod/token")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(e.InputMissing, match=r"Unable to locate credentials.*check the controller's credentials"):
        aws("prod/token")


def test_aws_denied(manager, monkeypatch) -> None:
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    def denied(*_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": VALUE.decode()}}, "GetSecretValue")

    with monkeypatch.context() as m, pytest.raises(e.Denied, match="may not read it") as found:
        m.setattr(BaseClient, "_make_api_call", denied)
        aws("prod/token")
    assert "canary" not in str(found.value)


# ---------------------------------------------------------------- Google


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpSecrets]:
    versions: dict[str, bytes | int] = {
        "projects/p1/secrets/token/versions/latest": VALUE,
        "projects/p1/secrets/token/versions/2": b"old",
        "projects/p2/secrets/db/versions/latest": b'{"password": "p"}',
        "projects/p1/secrets/closed/versions/latest": 403,
        "projects/p1/secrets/token/versions/1": 400,
        "projects/p1/secrets/busy/versions/latest": 429,
    }
    with gcp_secrets(versions) as server:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(server.key_file(tmp_path / "key.json", "p1")))
        yield server


def test_google_by_name_version_project_and_key(google: GcpSecrets) -> None:
    assert gcp("token", google.url) == VALUE
    assert gcp("projects/p1/secrets/token/versions/2", google.url) == b"old"
    assert gcp("projects/p2/secrets/db#password", google.url) == b"p"
    assert google.asked[0] == "projects/p1/secrets/token/versions/latest"


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("absent", e.InputMissing, r"gcp-secret:absent is not there.*\(404\)"),
        ("closed", e.Denied, r"may not read it \(403\)"),
        ("projects/p1/secrets/token/versions/1", e.InputMissing, r"not any more \(400\)"),
        ("busy", e.InputMissing, r"can't be read now \(429\); submit again later"),
        ("a/b", e.InputMissing, r"is not there.*\(400\)"),
        ("token#password", e.InputMissing, "no JSON object with that key"),
    ],
)
def test_google_what_is_not_there(google: GcpSecrets, place: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as found:
        gcp(place, google.url)
    assert "canary" not in str(found.value)


def test_google_without_credentials_or_a_service(google: GcpSecrets, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(e.InputMissing, match=r"ConnectionError.*check the controller's credentials"):
        gcp("token", "http://127.0.0.1:9")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    with pytest.raises(e.InputMissing, match=r"DefaultCredentialsError.*check the controller's credentials"):
        gcp("token", google.url)
