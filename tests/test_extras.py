"""A library that only an extra brings: the sentence, and the command in it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest
from spotsurfer_providers import cloud_secrets as secrets
from spotsurfer_providers.aws import make

from spotsurfer.common.plugins import install_command, needed_for
from spotsurfer.model.errors import HostUnfit
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.provider import ProviderHost
from spotsurfer.ssh.connection import _library

TABLE = {
    "region": "us-east-1",
    "subnets": {"us-east-1a": "subnet-0a1b2c3d"},
    "job_role_arn": "arn:aws:iam::123456789012:role/job",
    "instance_profile": "machine",
    "image": "ami-0a1b2c3d",
}


@pytest.mark.parametrize("extra", ["aws", "gcp", "ssh"])
def test_the_command_is_one_that_pip_understands(extra: str) -> None:
    """Asked of pip itself, which finds all of it here already."""
    words = shlex.split(install_command(extra))
    assert words[:4] == [sys.executable, "-m", "pip", "install"] and len(words) > 4
    done = subprocess.run([*words, "--no-index", "--dry-run"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("library", "use", "extra"),
    [
        ("paramiko", _library, "ssh"),
        ("boto3", lambda: secrets.aws("name"), "aws"),
        ("google", lambda: secrets.gcp("name"), "gcp"),
    ],
)
def test_who_needs_it_says_so(library: str, use: Callable[[], object], extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(HostUnfit, match=f"needs the extra '{extra}', which is not installed here: .* -m pip install "):
        use()


def test_the_provider_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in [n for n in sys.modules if n.startswith(("spotsurfer_providers.aws.", "boto3"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(HostUnfit, match="The provider aws needs the extra 'aws'"):
        make(TABLE, ProviderHost("f", tmp_path, "memory://", SystemClock()))  # type: ignore[arg-type]


def test_another_module_that_is_absent_is_a_mistake_of_ours() -> None:
    with pytest.raises(ModuleNotFoundError), needed_for("This", "aws"):
        import spotsurfer.no_such_module  # type: ignore[import-not-found]  # noqa: F401
