"""Nobody else on the host reads what the controller keeps."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotsurfer.agent_runtime import provision
from spotsurfer.common import private_files
from spotsurfer.config.settings import Settings
from spotsurfer.controller import wiring


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_to_all() -> Iterator[None]:
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
def test_a_runtime_that_comes_first_does_not_open_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`spotsurfer doctor` builds it before there is anything else."""
    monkeypatch.setattr(provision, "build", lambda out, **_: out.mkdir(parents=True))
    monkeypatch.delenv("SPOTSURFER_RUNTIME__PATH", raising=False)
    provision.ready(Settings(controller={"data_dir": str(tmp_path / "data")}), print)  # type: ignore[arg-type]
    assert mode(tmp_path / "data") == 0o700


@pytest.mark.usefixtures("open_to_all")
def test_what_an_earlier_release_left_open_is_closed(tmp_path: Path) -> None:
    made(tmp_path)
    data = tmp_path / "data"
    for path, was in ((data, 0o755), (data / "state.db", 0o644), (tmp_path / "store", 0o755)):
        path.chmod(was)
    assert private_files.close(data) == [data, data / "state.db"]
    made(tmp_path)
    assert mode(data) == mode(tmp_path / "store") == 0o700
    assert mode(data / "state.db") == 0o600
    assert private_files.close(data) == []


FILES = {
    "state.db": 0o666,
    "state.db-wal": 0o644,
    "state.db-shm": 0o604,
    "store.key": 0o640,
    "token": 0o620,
    "notes.txt": 0o644,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with each kind of wrong mode, and a file in it that is no secret."""
    made = tmp_path / "data"
    made.mkdir()
    for name, wrong in FILES.items():
        (made / name).write_bytes(b"x")
        (made / name).chmod(wrong)
    made.chmod(0o775)
    return made


def modes(folder: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in folder.iterdir()}


def test_each_wrong_mode_is_mended_and_its_owners_rights_stay(folder: Path) -> None:
    (folder / "state.db").chmod(0o466)
    assert private_files.close(folder) == [folder, *(folder / name for name in private_files.SECRET)]
    assert mode(folder) == 0o700
    secrets = dict.fromkeys(private_files.SECRET, 0o600)
    assert modes(folder) == {**secrets, "state.db": 0o400, "notes.txt": 0o644}, "in a folder that is closed nobody reads it"


def test_what_belongs_to_somebody_else_is_told_and_not_touched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root runs a controller on the folder of a user, or of a group: their rights are not ours to take."""
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    assert private_files.close(folder) == []
    assert (mode(folder), modes(folder)) == (0o775, FILES)
    assert private_files.open_to_others(folder)
    folder.chmod(0o700)
    assert not private_files.open_to_others(folder), "it is closed as it is"


def test_a_store_in_a_shared_place_keeps_it_open_and_closes_its_secrets(folder: Path) -> None:
    """`/tmp`, or a folder that everybody writes to: other programs need it."""
    folder.chmod(0o1777)
    assert private_files.close(folder) == [folder / name for name in private_files.SECRET]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert private_files.open_to_others(folder)


def test_the_root_of_a_file_system_is_left_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda self: self == folder)
    assert folder not in private_files.close(folder)
    assert mode(folder) == 0o775 and private_files.open_to_others(folder)


def test_a_link_is_closed_where_it_leads(folder: Path, tmp_path: Path) -> None:
    """To keep the folder, or the key, on another disk is usual. A link that leads nowhere is no trouble."""
    key = tmp_path / "elsewhere.key"
    (folder / "store.key").rename(key)
    (folder / "store.key").symlink_to(key)
    (folder / "token").unlink()
    (folder / "token").symlink_to(tmp_path / "nowhere")
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert link / "store.key" in private_files.close(link)
    assert mode(folder) == 0o700 and mode(key) == mode(folder / "state.db") == 0o600
    assert not private_files.open_to_others(link)


def test_a_folder_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    assert private_files.close(tmp_path / "none") == []
    assert not private_files.open_to_others(tmp_path / "none")
