"""Nobody else on the host reads what the controller keeps."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from spotsurfer import privacy, wiring
from spotsurfer.settings import Settings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_to_all() -> None:
    """The umask that most users have."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def made(folder: Path) -> None:
    wiring.build(Settings(controller={"data_dir": str(folder / "data")}, store={"url": (folder / "store").as_uri()})).stop()  # type: ignore[arg-type]


@pytest.mark.usefixtures("open_to_all")
def test_what_it_makes_is_its_owners_alone(tmp_path: Path) -> None:
    made(tmp_path)
    assert mode(tmp_path / "data") == mode(tmp_path / "store") == 0o700
    for name in ("state.db", "store.key"):
        assert mode(tmp_path / "data" / name) == 0o600


@pytest.mark.usefixtures("open_to_all")
def test_what_an_earlier_release_left_open_is_closed(tmp_path: Path) -> None:
    made(tmp_path)
    data = tmp_path / "data"
    for path, was in ((data, 0o755), (data / "state.db", 0o644), (tmp_path / "store", 0o755)):
        path.chmod(was)
    assert privacy.close(data) == [data, data / "state.db"]
    made(tmp_path)
    assert mode(data) == mode(tmp_path / "store") == 0o700
    assert mode(data / "state.db") == 0o600
    assert privacy.close(data) == []
