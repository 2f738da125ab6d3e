"""`submit --home` and `home`: a folder is sent, and what a job made of it is brought, by commands."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from cli.conftest import Call
from spotsurfer_wire.home_tree import FILE, HomeEntry
from support.fake_service import FakeService

from spotsurfer.home import courier
from spotsurfer.model.job import JobState


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The couriers that would be started."""
    started: list[list[str]] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(courier.subprocess, "Popen", lambda words, **_: started.append(words))
    return started


def submitted(call: Call, wf: Path) -> str:
    done = call("submit", "--home", str(wf), "--json", "--name", "wf", "--", "make")
    assert done.code == 0, done.err
    return str(json.loads(done.out)["id"])


def test_a_folder_goes_and_comes_home(controller: FakeService, call: Call, tmp_path: Path, state: list[list[str]]) -> None:
    wf = tmp_path / "wf"
    wf.mkdir()
    (wf / "Makefile").write_text("all:")
    job = submitted(call, wf)
    spec = controller.statuses[job].job.spec
    assert spec.home == str(wf)
    assert {data for (_, home, _), data in controller.home_files.items() if home == str(wf)} >= {b"all:"}
    assert spec.home_tree in {sha256 for _, _, sha256 in controller.home_files}
    assert len(state) == 1
    told = call("home")
    assert job in told.out, told
    assert json.loads(call("home", "--json").out)[0]["state"] == "awaited"
    made = HomeEntry("out", FILE, 0o640, 10**18, 6, hashlib.sha256(b"result").hexdigest())
    controller.home_made[job] = {made: b"result"}
    controller.end(job, JobState.SUCCEEDED, 0)
    assert "Nothing is awaited" in call("home", "--wait").out
    assert (wf / "out").read_bytes() == b"result"
    assert json.loads(call("home", job, "--json").out) == [
        {"job": job, "state": "home", "home": str(wf), "stdout": "", "stderr": "", "told": [], "trouble": ""}
    ]


def test_a_job_that_is_not_awaited_here_is_not_known(controller: FakeService, call: Call) -> None:
    done = call("home", "other-1")
    assert done.code == 13
    assert "Nothing of other-1 is awaited on this host" in done.err


def test_a_folder_on_a_shared_file_system_is_not_sent(controller: FakeService, call: Call) -> None:
    done = call("submit", "--home", "/shared/wf", "--json", "--", "make")
    assert done.code == 0, done.err
    assert controller.home_files == {}


def test_a_folder_that_is_not_there_is_said_before_anything_is_submitted(controller: FakeService, call: Call) -> None:
    done = call("submit", "--home", "absent/wf", "--", "make")
    assert done.code == 4
    assert "absent/wf is not there" in done.err
    assert controller.statuses == {}
