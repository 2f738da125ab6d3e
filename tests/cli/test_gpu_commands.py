"""Jobs with GPUs at the command line, and what a job's own script tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.model.actions import Preview
from spotsurfer.model.market import Gpus, Market, Offer, Pool


def test_gpus_arrive_and_what_they_cost_is_told(controller: FakeService, call: Call) -> None:
    pool = Pool("aws", "us-east-1", "us-east-1a", "g5.12xlarge")
    four = Offer(pool, Market.SPOT, 31_000, 96_000, 48, 64 << 30, gpus=Gpus("a10g", 4, 22 << 30))
    controller.previewed = Preview([four], [], "")
    words = ("submit", "--name", "train", "--gpus", "4", "--gpu", "A10G")
    shown = call(*words, "--dry-run", "--", "x").out
    assert "4 a10g" in shown
    assert "3.5 instead of 292 GB/s" in shown
    assert "64 GiB of memory and 88 GiB on its GPUs" in " ".join(shown.split())
    result = call(*words, "--", "x")
    assert result.code == 0, result.err
    assert "NCCL goes by sockets" in result.err
    (status,) = controller.statuses.values()
    assert (status.job.spec.gpus, status.job.spec.gpu) == (4, "A10G")
    assert "NCCL" not in call("submit", "--name", "b", "--gpus", "4", "--env", "SPOTSURFER_NCCL=own", "--", "x").err


def test_hints_are_written_where_the_job_keeps_them(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTSURFER_HINTS", raising=False)
    assert "Nobody was told" in call("hint", "stage", "align").err
    monkeypatch.setenv("SPOTSURFER_HINTS", str(tmp_path))
    assert call("hint", "stage", "variant calling").err == ""
    assert call("hint", "checkpoint").code == 0
    assert (tmp_path / "stage").read_text() == "variant calling\n"
    assert (tmp_path / "checkpoint").exists()
