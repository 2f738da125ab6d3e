"""The doctor finds what is wrong, changes nothing, and breaks on nothing."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from spotsurfer_agent.host import preflight
from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.store.obstore import open_store
from support.api import api
from support.closed import close
from support.fake_service import FakeService

from spotsurfer.agent_runtime import base_layer, builder
from spotsurfer.agent_runtime.recipe import read, shipped
from spotsurfer.cli.main import main
from spotsurfer.config.settings import Settings
from spotsurfer.doctor import checks
from spotsurfer.doctor.checks import CHECKS, OF_BOXES, PAGE, Finding, examine, fail, ok
from spotsurfer.model.errors import RuntimeBuildError
from spotsurfer.state.db import new_family, open_database


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SPOTSURFER_RUNTIME__PATH", str(tmp_path / "runtime"))
    return Settings.model_validate({"controller": {"data_dir": tmp_path / "data"}})


def test_all_checks_run_and_make_nothing(settings: Settings, tmp_path: Path) -> None:
    findings = {f.check: f for f in examine(settings)}
    assert set(findings) == {name for name, _ in CHECKS}
    assert all(f.text for f in findings.values())
    assert all(f.remedy for f in findings.values() if f.level != "ok")
    assert not any("could not be checked" in f.text for f in findings.values())
    assert list(tmp_path.iterdir()) == []


def test_of_a_controller_it_tells_how_much_of_its_operators_limits_is_in_use() -> None:
    with TemporaryDirectory(prefix="ss-") as folder:  # short: a socket's path has 107 bytes
        settings = Settings.model_validate({"controller": {"data_dir": folder}})
        with api(FakeService(), settings.socket_path):
            found = checks.controller(settings)
    money = "0.0960 of 10.0000 USD an hour, 0.0012 USD spent"
    text = f"version 0.1.0, generation 1, 1 of 20 machines, {money}, 0 of 500 ports at 127.0.0.1"
    assert (found.level, found.text) == ("ok", text)


def test_what_another_user_owns_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a data folder that may not be entered it said to report a defect."""
    data = tmp_path / "data"
    data.mkdir()
    close(data, monkeypatch)
    monkeypatch.delenv("SPOTSURFER_RUNTIME__PATH", raising=False)
    names = ("CRIU", "store", "store's owner", "controller")
    settings = Settings.model_validate({"controller": {"data_dir": data}})
    for finding in examine(settings, [check for check in CHECKS if check[0] in names]):
        assert (finding.level, finding.remedy) == ("fail", "run as its owner (sudo)")
        assert finding.text.startswith(f"{data}/") and finding.text.endswith(" is closed to this user")


def test_without_a_runtime_it_says_how_to_build_one(settings: Settings) -> None:
    for check in (checks.runtime, checks.criu):
        found = check(settings)
        assert found.level == "fail"
        assert "agent-runtime build" in found.remedy


@pytest.mark.parametrize(("found", "level"), [(None, "ok"), (preflight.Trouble("no memory is counted", "boot well"), "fail")])
def test_under_v2_a_group_of_our_own_is_tried_for_a_list_says_little(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: preflight.Trouble | None, level: str
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    monkeypatch.setattr(checks, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(preflight, "try_cgroup", lambda _python: found)
    finding = checks.control_groups(settings)
    assert finding.level == level
    assert (finding.text, finding.remedy) == (
        (found.what, found.remedy) if found else ("version 2, with cpu, freezer, memory", "")
    )


def test_a_broken_check_is_a_finding(settings: Settings) -> None:
    def broken(_: Settings) -> object:
        raise OSError("no /proc")

    found = examine(settings, [("odd", broken), ("fine", lambda _: ok("yes"))])  # type: ignore[list-item]
    assert [(f.check, f.level) for f in found] == [("odd", "fail"), ("fine", "ok")]
    assert "no /proc" in found[0].text


def test_a_store_is_tried_and_left_as_it_was(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "store"
    folder.mkdir(parents=True)
    assert checks.store(settings).level == "ok"
    assert list(folder.iterdir()) == []


def test_a_store_that_can_not_be_reached_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings.model_validate({"store": {"url": "s3://bucket", "options": {"bogus_option": "1"}}})
    found = checks.store(settings)
    assert found.level == "fail"
    assert "[store]" in found.remedy


def test_a_strangers_store_is_named(settings: Settings, tmp_path: Path) -> None:
    store = open_store(settings.store_url)
    assert checks.owner(settings).text == "nobody's yet"
    store.create(object_keys.store_key(), json_codec.encode(messages.StoreInfo("stranger")))
    assert checks.owner(settings).level == "warn"
    engine = open_database(tmp_path / "data" / "state.db")
    family = new_family(engine)
    engine.dispose()
    found = checks.owner(settings)
    assert found.level == "fail"
    assert "stranger" in found.text
    assert family in found.text
    store.put(object_keys.store_key(), json_codec.encode(messages.StoreInfo(family)))
    assert checks.owner(settings).level == "ok"


def test_a_runtime_of_other_versions_is_named(settings: Settings, tmp_path: Path) -> None:
    lock = json.loads(Path(checks.__file__).parent.parent.joinpath("agent_runtime", "runtime.lock").read_text())
    current = tmp_path / "runtime" / "current"
    current.mkdir(parents=True)
    inputs = builder._inputs(base_layer.folder(tmp_path / "runtime", read(shipped())))
    (tmp_path / "runtime" / "latest.json").write_text(json.dumps({"sha256": "ab", "agent_version": "1", "inputs": inputs}))
    (tmp_path / "runtime" / "ab.tar.gz").write_text("")
    (current / "RUNTIME.json").write_text(json.dumps(lock))
    assert checks.runtime(settings).level == "ok"
    lock["packages"][0]["version"] = "0"
    (current / "RUNTIME.json").write_text(json.dumps(lock))
    found = checks.runtime(settings)
    assert found.level == "warn"
    assert lock["packages"][0]["name"] in found.text


def test_without_root_it_says_so(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.os, "geteuid", lambda: 1000)
    assert checks.root(settings).level == "fail"
    assert checks.provider(settings).level == "fail"


def test_the_provider_reads_its_own_table(tmp_path: Path) -> None:
    table = {"provider": {"name": "local", "local": {"disk_bytes": 1}}, "controller": {"data_dir": tmp_path}}
    found = checks.provider(Settings.model_validate(table))
    assert found.level == "fail"
    assert "provider.local.disk_bytes must be at least" in found.text


def test_a_provider_that_there_is_not_is_named_with_those_there_are() -> None:
    found = checks.provider(Settings.model_validate({"provider": {"name": "awz"}}))
    assert (found.level, "aws, " in found.remedy and "local" in found.remedy) == ("fail", True)


def test_where_machines_are_elsewhere_this_host_needs_nothing_of_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.os, "geteuid", lambda: 1000)
    of_boxes = [c for c in CHECKS if c[0] in OF_BOXES]
    found = examine(Settings.model_validate({"provider": {"name": "aws"}}), of_boxes)
    assert {f.text for f in found} == {"not needed: machines are those of aws"}
    assert len(found) == len(OF_BOXES)


def test_missing_tools_come_with_their_packages(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.shutil, "which", lambda _: None)
    assert checks.tools(settings).remedy.startswith("apt-get install iproute2")
    assert "btrfs-progs" in checks.btrfs(settings).remedy


@pytest.mark.parametrize(("free", "level"), [(1 << 20, "fail"), (5 << 30, "warn"), (50 << 30, "ok")])
def test_room_on_the_disk(settings: Settings, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    @dataclass
    class Usage:
        free: int

    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: Usage(free))
    assert checks.disk(settings).level == level


def test_on_a_host_that_is_not_debian_a_mirror_is_asked_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_release", lambda _: "fedora")
    monkeypatch.delenv("SPOTSURFER_DEBIAN_MIRROR", raising=False)
    found = checks.mirror(settings)
    assert found.level == "fail"
    assert "[runtime] mirror" in found.remedy


def test_the_command_builds_the_runtime_only_where_nothing_else_is_missing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the runtime's CRIU can say whether the kernel will do; on a host that is unfit anyway nothing is fetched."""
    tried: list[Path] = []
    other = [fail("no", "mend it")]

    def built(settings: Settings, say: object) -> None:
        tried.append(settings.runtime_dir)
        if len(tried) == 1:
            raise RuntimeBuildError("no network: check it")

    def runtime(_: Settings) -> Finding:
        return ok("there") if len(tried) > 1 else fail("not there", "build it")

    checks = [("runtime", runtime), ("CRIU", runtime), ("tools", lambda _: other[0])]
    monkeypatch.setattr("spotsurfer.doctor.checks.examine", lambda s: examine(s, checks))
    monkeypatch.setattr("spotsurfer.agent_runtime.provision.ready", built)
    monkeypatch.setenv("SPOTSURFER_RUNTIME__PATH", str(tmp_path))
    assert (main(["doctor", "--json"]), tried) == (7, [])
    other[0] = ok("all")
    assert main(["doctor"]) == 7
    assert "no network: check it" in capfd.readouterr().err
    assert main(["doctor"]) == 0
    assert tried == [tmp_path, tmp_path]


def test_the_command_ends_with_7_when_something_is_missing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("spotsurfer.doctor.checks.examine", lambda s: examine(s, [("b", lambda _: fail("bad", "mend it"))]))
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(tmp_path))
    assert main(["doctor", "--json"]) == 7
    out, err = capfd.readouterr()
    found = {"level": "fail", "text": "bad", "remedy": "mend it", "check": "b", "page": PAGE}
    assert json.loads(out) == {"fit": False, "findings": [found]}
    assert "1 of 1 checks failed: b" in err
    assert main(["doctor"]) == 7
    assert "bad → mend it" in capfd.readouterr().out
