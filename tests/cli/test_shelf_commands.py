"""Checkpoints, copies, rehearsals and the store, from the command line over the real API."""

from __future__ import annotations

import json

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.cli import follow
from spotsurfer.model.errors import RehearsalFailed, StoreDamaged


def test_a_list_says_what_is_proven_and_why_kept(job: str, call: Call) -> None:
    lines = call("checkpoints", "asm").out.splitlines()
    assert lines[0].split()[:4] == ["CHECKPOINT", "WHEN", "KIND", "SIZE"]
    assert "4.8 MiB" in lines[1]
    assert lines[1].rstrip().endswith("no: old")
    assert "left behind; attempt 2 could not restore it; torn" in lines[2]
    assert len(json.loads(call("checkpoints", job, "--json").out)["checkpoints"]) == 2


def test_going_back(controller: FakeService, job: str, call: Call) -> None:
    assert "goes back to checkpoint 3" in call("resume", "asm", "--from", "3").out
    rewind = controller.statuses[job].job.rewind
    assert rewind is not None
    assert rewind.checkpoint == "000001-000003"
    assert call("resume", "asm", "--from", "9").code == 13


def test_protection(controller: FakeService, job: str, call: Call) -> None:
    assert "000001-000003" in call("protect", "asm", "3").out
    assert controller.protected == {(job, "3")}
    assert call("unprotect", "asm", "3", "--json").code == 0
    assert controller.protected == set()


def test_a_copy(job: str, call: Call) -> None:
    assert json.loads(call("fork", "asm", "--from", "3", "--name", "other", "--json").out) == {
        "job": "copy-1",
        "name": "other",
        "parent": job,
        "checkpoint": "3",
    }
    assert call("fork", "asm").out.startswith("copy-1 is a copy of ")


def test_a_rehearsal_prints_its_times_and_fails_with_its_code(controller: FakeService, job: str, call: Call) -> None:
    out = call("rehearse", "asm").out
    assert "came to life" in out
    assert "4.50 s of CPU, 12 bytes printed" in out
    controller.work_fails["rehearse"] = RehearsalFailed("the restore failed")
    result = call("rehearse", "asm")
    assert (result.code, result.err.strip()) == (RehearsalFailed.exit_code, f"the restore failed. See {RehearsalFailed.page}.")


CHECKED = {"jobs": 1, "checkpoints": 2, "objects": 3, "bytes": 4_000}


def test_a_sound_store(controller: FakeService, call: Call) -> None:
    controller.store_results["check"] = {**CHECKED, "damage": []}
    assert call("store", "check", "--read").out == "1 job, 2 checkpoints, 3 chunks and packs, 3.9 KiB verified.\n"


def test_a_damaged_store_has_its_exit_code(controller: FakeService, call: Call) -> None:
    damage = {"job": "j", "checkpoint": "c", "what": "chunk x is missing"}
    controller.store_results["check"] = {**CHECKED, "damage": [damage]}
    result = call("store", "check")
    assert result.code == StoreDamaged.exit_code
    assert result.out.startswith("j c: chunk x is missing\n")
    assert json.loads(call("store", "check", "--json").out)["damage"] == [damage]


def test_stats(controller: FakeService, call: Call) -> None:
    kinds = {"chunks": 2_000, "results": 5}
    one = {"kinds": kinds, "stored_bytes": 2_005, "checkpoints": 2, "image_bytes": 8_000}
    figures = {**one, "dedup_ratio": 2.0, "compression_ratio": None}
    controller.store_results["stats"] = {"jobs": [{"job": "j", **figures}], "total": figures}
    lines = call("store", "stats").out.splitlines()
    assert lines[1].split() == ["j", "2.0", "KiB", "2.0", "KiB", "5", "B", "0", "B", "0", "B", "2", "7.8", "KiB", "2.00", "-"]


def test_a_dry_collection(controller: FakeService, call: Call) -> None:
    step = {
        "job": "j",
        "verdicts": [{"id": "c", "keep": False, "why": "d is newer and proven"}],
        "dropped": ["c"],
        "condemned": 2,
        "condemned_bytes": 3_000,
        "deleted": 0,
        "waits": "",
    }
    controller.store_results["gc"] = {"jobs": [step]}
    assert call("store", "gc", "--dry-run").out.splitlines() == [
        "j: checkpoint c would be dropped: d is newer and proven",
        "j: 2 chunks (2.9 KiB) would be removed",
    ]


def test_progress_is_told_and_ctrl_c_calls_it_off(
    controller: FakeService, job: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "QUIET_SECONDS", 0.0)
    controller.looks_needed = 3
    assert "fork: reading 1 of 9 …" in call("fork", "asm").err

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow.Meter, "count", interrupted)
    controller.looks = 0
    assert call("fork", "asm").code == 130
    assert controller.called_off == ["fork"]
