"""What the agent relies on of a GPU driver, asked of the stand-in; with SPOTSURFER_TEST_CUDA=real, of this machine's driver.

Each answer was read off an H200 with driver 580.159.04 first; the stand-in is held to the same.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spotsurfer_agent.gpu import process_discovery
from spotsurfer_agent.gpu.driver_port import CALLS, Call, Driver, State
from spotsurfer_agent.gpu.sidecar import Sidecar, SidecarGone
from support import cuda_kit, cuda_standin
from support.cuda_kit import Program

Make = Callable[..., Program]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    if not cuda_kit.REAL:
        monkeypatch.setenv("CUDA_STANDIN", str(tmp_path / "cards"))
        monkeypatch.setattr(cuda_standin, "CARDS", tmp_path / "cards")
        cuda_standin.lay(tmp_path / "cards")
    return cuda_kit.driver()


@pytest.fixture
def start(driver: Driver) -> Iterator[Make]:
    begun: list[Program] = []

    def make(*arguments: object, **more: object) -> Program:
        begun.append(Program(*arguments, **more))  # type: ignore[arg-type]
        return begun[-1]

    yield make
    for p in begun:
        p.close()


def do(driver: Driver, call: Call, pid: int) -> str:
    calls: dict[Call, Callable[[], str]] = {
        Call.LOCK: lambda: driver.lock(pid, 2000),
        Call.CHECKPOINT: lambda: driver.checkpoint(pid),
        Call.RESTORE: lambda: driver.restore(pid, []),
        Call.UNLOCK: lambda: driver.unlock(pid),
    }
    return calls[call]()


def test_each_call_works_in_its_state_and_in_no_other(driver: Driver, start: Make) -> None:
    program = start()
    for right in (Call.LOCK, Call.CHECKPOINT, Call.RESTORE, Call.UNLOCK):
        needs, leads = CALLS[right]
        assert driver.state(program.pid) == ("SUCCESS", needs)
        for wrong in set(Call) - {c for c, (needed, _) in CALLS.items() if needed is needs}:
            assert do(driver, wrong, program.pid) == "ILLEGAL_STATE", (needs, wrong)
        assert do(driver, right, program.pid) == "SUCCESS"
        assert driver.state(program.pid) == ("SUCCESS", leads)
    assert program.goes_on()


def test_gpu_memory_is_the_same_after_it_was_out(driver: Driver, start: Make) -> None:
    ends = []
    for saves in (0, 2):
        program = start(turns=80)
        for _ in range(saves):
            for call in (Call.LOCK, Call.CHECKPOINT, Call.RESTORE, Call.UNLOCK):
                assert do(driver, call, program.pid) == "SUCCESS"
        program.wait("end")
        ends.append(program.text().splitlines()[-1])
    assert ends[0] == ends[1]


def test_while_it_is_out_the_cards_are_free_and_the_devices_closed(driver: Driver, start: Make) -> None:
    size = (2 << 30) if cuda_kit.REAL else 64 << 20
    free = driver.about().cards[0].free_bytes
    program = start(size)
    assert driver.about().cards[0].free_bytes <= free - size
    resident = process_discovery.resident_bytes([program.pid])
    for call in (Call.LOCK, Call.CHECKPOINT):
        assert do(driver, call, program.pid) == "SUCCESS"
    assert driver.about().cards[0].free_bytes >= free - (32 << 20)
    assert process_discovery.resident_bytes([program.pid]) - resident >= size
    assert process_discovery.holdings([program.pid]) == {}
    assert not program.goes_on(0.3)


def test_what_has_no_cuda_and_what_is_gone(driver: Driver, start: Make) -> None:
    other = subprocess.Popen(["sleep", "100"])
    assert driver.state(other.pid)[0] == driver.lock(other.pid, 300) == "NOT_INITIALIZED"
    other.kill()
    other.wait()
    assert driver.state(other.pid)[0] == driver.lock(other.pid, 300) == "OPERATING_SYSTEM"
    program = start()
    for call in (Call.LOCK, Call.CHECKPOINT):
        do(driver, call, program.pid)
    program.kill()
    assert driver.state(program.pid)[0] == driver.restore(program.pid, []) == "OPERATING_SYSTEM"


@pytest.mark.alone
def test_work_that_does_not_end_can_not_be_locked_and_is_not_harmed(driver: Driver, start: Make) -> None:
    program = start(mode="endless")
    began = time.monotonic()
    assert driver.lock(program.pid, 400) == "NOT_READY"
    assert 0.3 < time.monotonic() - began < 2
    assert driver.state(program.pid) == ("SUCCESS", State.RUNNING)
    assert program.goes_on()


def test_managed_memory_is_refused_and_the_program_can_go_on(driver: Driver, start: Make) -> None:
    program = start(mode="managed")
    assert do(driver, Call.LOCK, program.pid) == "SUCCESS"
    assert do(driver, Call.CHECKPOINT, program.pid) == "NOT_SUPPORTED"
    assert driver.state(program.pid) == ("SUCCESS", State.LOCKED)
    assert do(driver, Call.UNLOCK, program.pid) == "SUCCESS"
    assert program.goes_on()
    assert do(driver, Call.LOCK, program.pid) == "SUCCESS"
    assert do(driver, Call.CHECKPOINT, program.pid) in {"NOT_SUPPORTED", "UNKNOWN"}
    assert driver.state(program.pid) == ("SUCCESS", State.LOCKED)
    assert do(driver, Call.UNLOCK, program.pid) == "SUCCESS"
    assert program.goes_on()


def test_a_forked_child_has_no_cuda_of_its_own(driver: Driver, start: Make) -> None:
    program = start(mode="fork")
    assert driver.state(program.child())[0] == "NOT_INITIALIZED"
    for call in (Call.LOCK, Call.CHECKPOINT, Call.RESTORE, Call.UNLOCK):
        assert do(driver, call, program.pid) == "SUCCESS"
    subprocess.run(["kill", "-9", str(program.child())], check=True)


def test_the_map_must_name_the_cards_that_are_there(driver: Driver, start: Make) -> None:
    program = start()
    for call in (Call.LOCK, Call.CHECKPOINT):
        assert do(driver, call, program.pid) == "SUCCESS"
    there, none = [c.uuid for c in driver.about().cards], "11" * 16
    assert driver.restore(program.pid, [(u, none) for u in there]) == "INVALID_VALUE"
    assert driver.restore(program.pid, [(none, u) for u in there]) == "INVALID_VALUE"
    assert driver.state(program.pid) == ("SUCCESS", State.CHECKPOINTED)
    assert driver.restore(program.pid, [(u, u) for u in there]) == "SUCCESS"
    assert driver.unlock(program.pid) == "SUCCESS"
    assert program.goes_on()


def test_memory_that_another_program_took_means_that_this_one_is_lost(driver: Driver, start: Make) -> None:
    if not cuda_kit.REAL:
        cuda_standin.lay(cuda_standin.CARDS, total=64 << 20)
    total = driver.about().cards[0].total_bytes
    program = start(total // 8 + total // 64)
    for call in (Call.LOCK, Call.CHECKPOINT):
        assert do(driver, call, program.pid) == "SUCCESS"
    other = start(total // 8 * 7)
    assert do(driver, Call.RESTORE, program.pid) == "OUT_OF_MEMORY"
    assert driver.state(program.pid) == ("SUCCESS", State.CHECKPOINTED)
    other.kill()
    other.close()
    assert do(driver, Call.RESTORE, program.pid) == "OPERATING_SYSTEM"


@pytest.mark.parametrize("call", [Call.CHECKPOINT, Call.RESTORE])
def test_a_call_goes_on_when_its_caller_is_killed(driver: Driver, start: Make, tmp_path: Path, call: Call) -> None:
    """And asking for the state waits for its end."""
    program = start((8 << 30) if cuda_kit.REAL else 16 << 20)
    if not cuda_kit.REAL:
        cuda_standin.lay(cuda_standin.CARDS, slow=1.0)
    needs, leads = CALLS[call]
    before = [Call.LOCK] if call is Call.CHECKPOINT else [Call.LOCK, Call.CHECKPOINT]
    for c in before:
        assert do(driver, c, program.pid) == "SUCCESS"
    sidecar = Sidecar(cuda_kit.sidecar_argv(), tmp_path)
    assert sidecar.states([program.pid]) == {program.pid: needs}
    with ThreadPoolExecutor(1) as beside:
        under_way = beside.submit(sidecar.call, call, [program.pid], pairs=[])
        time.sleep(0.3)
        assert sidecar.pid is not None
        subprocess.run(["kill", "-9", str(sidecar.pid)], check=True)
        assert isinstance(under_way.exception(10), SidecarGone)
    assert driver.state(program.pid) == ("SUCCESS", leads)
    for c in [Call.RESTORE, Call.UNLOCK] if call is Call.CHECKPOINT else [Call.UNLOCK]:
        assert do(driver, c, program.pid) == "SUCCESS"
    assert program.goes_on()
    sidecar.close()
