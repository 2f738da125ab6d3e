"""`init` writes what an operator begins with, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.tree import ROOT

from spotsurfer.cli.main import main
from spotsurfer.config.settings import Settings, load_settings
from spotsurfer.model.errors import ConfigError, ControllerRunning, StoreOwned, Superseded, UsageError

AWS = '[provider]\nname = "aws"\n[controller]\ndata_dir = "/srv/100% of it"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one to stand in; this user's and this host's own configuration are out of sight."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("spotsurfer.config.paths.CONFIG_SYSTEM", str(tmp_path / "etc" / "config.toml"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in [n for n in os.environ if n.startswith("SPOTSURFER_")]:
        monkeypatch.delenv(name)
    return tmp_path


def test_the_configuration_comes_where_every_command_finds_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    path = folder / "home" / "spotsurfer" / "config.toml"
    assert path.read_bytes() == (ROOT / "config.example.toml").read_bytes()
    assert f"spotsurfer doctor --config {path}" in capfd.readouterr().out
    assert load_settings() == Settings()


def test_roots_is_the_systems(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["init"]) == 0
    assert (folder / "etc" / "config.toml").is_file()


def test_what_is_there_stays_unless_told(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "c.toml").write_text("mine")
    assert main(["init", "c.toml", "--terraform", "infra"]) == 2
    assert "c.toml is there already: --force overwrites it" in capfd.readouterr().err
    assert (folder / "c.toml").read_text() == "mine"
    assert not (folder / "infra").exists(), "all or nothing"
    assert main(["init", "c.toml", "--force"]) == 0
    assert (folder / "c.toml").read_text() != "mine"


def test_terraforms_modules_come_alone_and_whole(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--terraform", "infra", "--json"]) == 0
    written = {Path(p).relative_to(folder / "infra") for p in json.loads(capfd.readouterr().out)["written"]}
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "terraform"], capture_output=True, text=True, check=False).stdout
    if tracked:
        assert {str(Path("terraform") / p) for p in written} == set(tracked.split())
    assert all((folder / "infra" / p).read_bytes() == (ROOT / "terraform" / p).read_bytes() for p in written)
    assert not (folder / "home").exists()


def test_files_for_monitoring_come_alone_and_whole(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--monitoring", "watch"]) == 0
    written = {p.name: p.read_bytes() for p in (folder / "watch").iterdir()}
    assert written == {p.name: p.read_bytes() for p in (ROOT / "monitoring").iterdir()}
    assert "import" in capfd.readouterr().out
    assert not (folder / "home").exists()


def test_each_cloud_has_an_example_to_begin_with(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--terraform", "infra"]) == 0
    begins = re.findall(r"begin with (\S+); (\S+) says how\.", capfd.readouterr().out)
    assert {Path(example).parts[-3] for example, _ in begins} == {
        p.parent.name for p in (folder / "infra").glob("*/variables.tf")
    }
    assert all((Path(example) / "main.tf").is_file() and Path(page).is_file() for example, page in begins)


def test_a_unit_for_boxes_is_roots_and_ends_no_box(folder: Path) -> None:
    """Taking rights from it would take them from the boxes; and `systemctl restart` must not kill jobs."""
    assert main(["init", "c.toml", "--systemd", "."]) == 0
    unit = (folder / "spotsurfer.service").read_text()
    for line in ("KillMode=process", "Restart=on-failure", "KillSignal=SIGTERM", "Delegate=yes"):
        assert f"\n{line}\n" in unit
    assert "RequiresMountsFor=/var/lib/spotsurfer-controller\n" in unit, "the service's data, not that of who writes the unit"
    assert f" serve --config {folder}/c.toml\n" in unit
    (reload,) = [line for line in unit.splitlines() if line.startswith("ExecReload=")]
    assert reload.endswith(f"spotsurfer --config {folder}/c.toml reload")
    for word in ("User=", "NoNewPrivileges", "Protect", "Private", "Restrict"):
        assert word not in unit
    assert not list(folder.glob("*.d"))
    _verify(folder / "spotsurfer.service")


def test_a_unit_for_machines_elsewhere_has_next_to_no_rights(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "spotsurfer.toml").write_text(AWS)
    assert main(["init", "--systemd", "surf.service"]) == 0
    unit = (folder / "surf.service").read_text()
    assert 'RequiresMountsFor="/srv/100%% of it"\n' in unit
    drop_in = (folder / "surf.service.d" / "unprivileged.conf").read_text()
    assert "User=spotsurfer\n" in drop_in and 'ReadWritePaths="/srv/100%% of it"\n' in drop_in
    said = capfd.readouterr().out
    assert "useradd --system" in said and "chown -R spotsurfer: /srv/100% of it" in said
    assert (folder / "spotsurfer.toml").read_text() == AWS
    _verify(folder / "surf.service")


def test_a_controller_that_was_superseded_is_not_started_again(folder: Path) -> None:
    """Each start takes the lead: two hosts would depose each other for ever."""
    assert main(["init", "c.toml", "--systemd", "."]) == 0
    unit = (folder / "spotsurfer.service").read_text()
    found = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert found is not None
    assert {int(code) for code in found[1].split()} == {
        kind.exit_code for kind in (UsageError, ConfigError, StoreOwned, ControllerRunning, Superseded)
    }


def test_config_is_for_reading(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "c.toml", "init"]) == 2
    assert "to write one: spotsurfer init c.toml" in capfd.readouterr().err


def _verify(unit: Path) -> None:
    """As systemd reads it, where it is."""
    if analyze := shutil.which("systemd-analyze"):
        environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{unit.parent}:"}
        done = subprocess.run([analyze, "verify", unit.name], env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_without_any_configuration_a_unit_brings_one(folder: Path) -> None:
    assert main(["init", "--systemd", "."]) == 0
    config = folder / "home" / "spotsurfer" / "config.toml"
    assert config.is_file()
    assert f"--config {config}\n" in (folder / "spotsurfer.service").read_text()


def test_a_place_that_can_not_be_written_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("")
    assert main(["init", "file/c.toml"]) == 2
    assert "file can't be made" in capfd.readouterr().err


def test_a_unit_is_a_file_that_systemd_takes_for_one(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a folder that is not there it made a file of that name."""
    assert main(["init", "c.toml", "--systemd", "sysd"]) == 2
    said = "--systemd sysd is neither a folder that is there nor a unit file: name one that ends in .service.\n"
    assert capfd.readouterr() == ("", said)
    assert list(folder.iterdir()) == []
    assert main(["init", "--systemd", "made/surf.service"]) == 0
    assert "systemctl enable --now surf.service\n" in capfd.readouterr().out
