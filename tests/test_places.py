"""Where things lie: root's with the system's, another user's where the XDG specification says, 0.1.0's where they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.closed import close

from spotsurfer.config import paths
from spotsurfer.config.paths import client_socket, find_config, usual_data_dir
from spotsurfer.config.settings import Settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's, who is not root and may write no folder of the system's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", *(n for n in os.environ if n.startswith("SPOTSURFER_"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(paths, "DATA_SYSTEM", str(tmp_path / "system"))
    monkeypatch.setattr(paths, "CONFIG_SYSTEM", str(tmp_path / "etc.toml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_roots_data_folder_is_that_of_0_1_0(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert paths.DATA_SYSTEM == "/var/lib/spotsurfer-controller"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert usual_data_dir() == Path("/var/lib/spotsurfer-controller")


def test_a_user_has_a_data_folder_in_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usual_data_dir() == home / ".local/share/spotsurfer"
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/data")
    assert usual_data_dir() == Path("/srv/data/spotsurfer")
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert usual_data_dir() == home / ".local/share/spotsurfer", "relative ones do not count"


def test_the_user_of_a_service_keeps_the_systems(home: Path) -> None:
    """As the Terraform module of 0.1.0 set one up: it names no data_dir."""
    (home / "system").mkdir()
    assert usual_data_dir() == home / "system"


def test_controller_and_client_look_at_the_same_place(home: Path) -> None:
    settings = Settings()
    assert settings.runtime_dir == home / ".local/share/spotsurfer/runtime"
    assert settings.socket_path == client_socket() == home / ".local/share/spotsurfer/api.sock"


def test_a_user_without_a_controller_asks_the_systems(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told whom to run as: its socket is root's."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    system, own = home / "system", home / ".local/share/spotsurfer"
    system.mkdir()
    assert usual_data_dir() == own
    assert client_socket() == system / "api.sock"
    own.mkdir(parents=True)
    (own / "api.sock").touch()
    assert client_socket() == own / "api.sock"
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", "/srv/mine")
    assert client_socket() == Path("/srv/mine/api.sock")


def test_a_user_whose_data_folder_is_closed_asks_the_systems(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sudo -u` does that keeps XDG_DATA_HOME."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    (home / "system").mkdir()
    close(home / ".local", monkeypatch)
    assert client_socket() == home / "system" / "api.sock"


def test_the_nearest_configuration_wins(home: Path) -> None:
    assert find_config() is None
    for path in (home / "etc.toml", home / ".config/spotsurfer/config.toml", home / "spotsurfer.toml"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        assert find_config() == (path if path.parent != home or path.name == "etc.toml" else Path("spotsurfer.toml"))
