"""Cromwell's calls by our configuration: `sbatch --wrap`, `squeue -j`, `scancel`, and the file `rc`, on played machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.cromwell_calls import Call, Cromwell
from slurm.ours import programs
from slurm.played import Server


@pytest.fixture
def cromwell(tmp_path: Path) -> Iterator[Cromwell]:
    server = Server(tmp_path / "api.sock")
    try:
        yield Cromwell(programs(tmp_path / "bin", tmp_path / "api.sock"))
    finally:
        server.close()


def test_a_call_reads_its_inputs_and_leaves_its_results(cromwell: Cromwell, tmp_path: Path) -> None:
    (tmp_path / "reads.fq").write_text("reads\n")
    cwd = tmp_path / "cromwell-executions" / "wf" / "1" / "call-align"
    command = f"tr a-z A-Z < {cwd}/inputs/1/reads.fq > out.sam; mkdir empty; echo said"
    call = Call(cwd, command, {"reads.fq": tmp_path / "reads.fq"}, {"cpu": 2, "memory_mb": 500, "runtime_minutes": 30})
    job = cromwell.submit(call)
    assert cromwell.wait(call, job) == 0
    assert (cwd / "execution" / "out.sam").read_text() == "READS\n"
    assert (cwd / "execution" / "stdout").read_text() == "said\n"


def test_a_call_that_fails_and_one_that_is_aborted(cromwell: Cromwell, tmp_path: Path) -> None:
    failing = Call(tmp_path / "a", "exit 7")
    assert cromwell.wait(failing, cromwell.submit(failing)) == 7
    endless = Call(tmp_path / "b", "sleep 1000")
    job = cromwell.submit(endless)
    while not (endless.cwd / "execution" / "stdout").exists():
        assert cromwell.alive(endless, job)
        time.sleep(0.1)
    cromwell.kill(endless, job)
    until = time.monotonic() + 30
    while cromwell.alive(endless, job):
        assert time.monotonic() < until
        time.sleep(0.1)
