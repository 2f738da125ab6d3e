"""A controller in memory behind the real API, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.api import api
from support.fake_service import FakeService

from spotsurfer.cli.main import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Call = Callable[..., Result]


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="ss-") as path:  # short: a socket's path has 107 bytes
        yield Path(path)


@pytest.fixture
def controller(service: FakeService, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(folder))
    with api(service, folder / "api.sock"):
        yield service


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TZ", "UTC")
    for name in ("SPOTSURFER_URL", "SPOTSURFER_TOKEN", "SPOTSURFER_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def job(controller: FakeService, call: Call) -> str:
    assert call("submit", "--name", "asm", "--cpu", "2", "--mem", "4G", "--", "prog", "--json", "-x").code == 0
    return next(iter(controller.statuses))
