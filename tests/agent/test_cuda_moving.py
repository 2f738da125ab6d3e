"""Taking GPU memory out and back, with a side-car that does as it is told: which calls are made in which order, and the end."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.gpu import driver_port, process_discovery, suspend_resume
from spotsurfer_agent.gpu.driver_port import BACK, CALLS, OK, Call, State
from spotsurfer_agent.gpu.process_discovery import Holding
from spotsurfer_agent.gpu.sidecar import SidecarGone
from spotsurfer_agent.gpu.suspend_resume import CantBringBack, CantTakeOut, Mover
from spotsurfer_agent.prepare import environment
from spotsurfer_wire import gpu_facts
from spotsurfer_wire.gpu_facts import About, Card
from spotsurfer_wire.linux import procfs

A, B = os.getpid(), 1  # processes that are there, to the end


class Sidecar:
    """States of two processes. `waits`: B's work waits for A, so B comes to rest only while A still runs."""

    def __init__(self, *, waits: bool = False, dies: int = 0, fails: dict[Call, str] | None = None) -> None:
        self.now = {A: State.RUNNING, B: State.RUNNING}
        self.waits, self.dies, self.fails = waits, dies, fails or {}
        self.calls: list[tuple[Call, tuple[int, ...]]] = []

    def about(self) -> About:
        return About("580.1", 13000, (Card("aa" * 16, "chip", 100, 100),))

    def states(self, pids: Sequence[int]) -> dict[int, State]:
        return {p: self.now[p] for p in pids}

    def call(self, call: Call, pids: Sequence[int], **_: Any) -> dict[int, str]:
        self.calls.append((call, tuple(pids)))
        told = {pid: self._one(call, pid, pids) for pid in pids}
        self.now |= {pid: CALLS[call][1] for pid, result in told.items() if result == OK}
        if self.dies and call is not Call.LOCK:
            self.dies -= 1
            raise SidecarGone("the GPU side-car died")
        return told

    def _one(self, call: Call, pid: int, pids: Sequence[int]) -> str:
        if self.now[pid] is not CALLS[call][0]:
            return driver_port.ILLEGAL_STATE
        if call is Call.LOCK and self.waits and pid == B and (A in pids or self.now[A] is State.LOCKED):
            return driver_port.NOT_READY
        return self.fails.get(call, OK)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspend_resume, "LOCK_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(suspend_resume, "LOCK_SECONDS", 0.2)


def settle(pid: int, registers: object) -> None:
    raise AssertionError("nobody was forked")


def mover(sidecar: Sidecar, folder: Path) -> Mover:
    return Mover(sidecar, folder)  # type: ignore[arg-type]


def test_who_did_not_come_to_rest_goes_first_at_the_next_try(tmp_path: Path) -> None:
    sidecar = Sidecar(waits=True)
    mover(sidecar, tmp_path).out([A, B], list, settle)
    locks = [pids for call, pids in sidecar.calls if call is Call.LOCK]
    assert locks == [(A, B), (B,), (A,)]
    assert set(sidecar.now.values()) == {State.CHECKPOINTED}


MAPPED = procfs.Mapping(0x7000, 0x8000, "rw-s", 5, "/dev/nvidiactl")


@pytest.mark.parametrize(
    ("child", "forked"),
    [
        (Holding({7: "/dev/nvidia0"}, (MAPPED, MAPPED._replace(start=0x9000, end=0xA000))), True),
        (Holding({}, (MAPPED,)), True),
        (Holding({7: "/dev/nvidia0"}), False),
        (Holding({7: "/dev/nvidia0"}, (MAPPED._replace(start=0x9000),)), False),
        (Holding({7: "/dev/nvidia0"}, (MAPPED,), draws=True), False),
    ],
)
def test_a_child_is_of_a_fork_if_it_maps_a_device_where_its_parent_does(child: Holding, forked: bool) -> None:
    assert child.is_inherited([Holding(), Holding({7: "/dev/nvidia0", 8: "/dev/nvidia-uvm"}, (MAPPED,))]) is forked


def test_a_process_that_keeps_a_device_is_named_and_all_runs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = {99: Holding({9: "/dev/nvidia0"})}
    monkeypatch.setattr(process_discovery, "holdings", lambda pids: {p: h for p, h in stranger.items() if p in list(pids)})
    sidecar = Sidecar()
    with pytest.raises(CantTakeOut, match="process 99 holds /dev/nvidia0 and has no CUDA of its own"):
        mover(sidecar, tmp_path).out([A, B], lambda: [A, B, 99], settle)
    assert set(sidecar.now.values()) == {State.RUNNING}


@pytest.mark.parametrize(("call", "error"), [(Call.LOCK, driver_port.NOT_READY), (Call.CHECKPOINT, driver_port.NOT_SUPPORTED)])
def test_what_does_not_go_out_runs_on_and_no_mark_stays(tmp_path: Path, call: Call, error: str) -> None:
    sidecar = Sidecar(fails={call: error})
    with pytest.raises(CantTakeOut, match=error):
        mover(sidecar, tmp_path).out([A, B], list, settle)
    assert set(sidecar.now.values()) == {State.RUNNING}
    assert list(tmp_path.iterdir()) == []


def test_a_cause_that_is_named_once_is_told_again_where_the_next_error_names_none(tmp_path: Path) -> None:
    sidecar = Sidecar(fails={Call.CHECKPOINT: driver_port.NOT_SUPPORTED})
    job = mover(sidecar, tmp_path)
    for error in (driver_port.NOT_SUPPORTED, "UNKNOWN"):
        sidecar.fails[Call.CHECKPOINT] = error
        with pytest.raises(CantTakeOut, match="managed"):
            job.out([A, B], list, settle)
    job.forget()  # another job may have the number
    with pytest.raises(CantTakeOut, match="UNKNOWN"):
        job.out([A, B], list, settle)


def test_a_mark_is_there_as_long_as_something_may_be_out_and_a_successor_follows_it(tmp_path: Path) -> None:
    sidecar = Sidecar()
    mover(sidecar, tmp_path).out([A, B], list, settle)
    assert (tmp_path / suspend_resume.MARKER).exists()
    mover(sidecar, tmp_path).recover()
    assert set(sidecar.now.values()) == {State.RUNNING}
    assert list(tmp_path.iterdir()) == []


@given(a=st.sampled_from(sorted(BACK)), b=st.sampled_from(sorted(BACK)), dies=st.integers(0, 3))
def test_the_way_back_ends_from_every_state_however_often_the_side_car_dies(
    tmp_path_factory: pytest.TempPathFactory, a: State, b: State, dies: int
) -> None:
    sidecar = Sidecar(dies=dies)
    sidecar.now = {A: a, B: b}
    mover(sidecar, tmp_path_factory.mktemp("job")).back([A, B])
    assert set(sidecar.now.values()) == {State.RUNNING}
    unlocked = [i for i, (call, _) in enumerate(sidecar.calls) if call is Call.UNLOCK]
    restored = [i for i, (call, _) in enumerate(sidecar.calls) if call is Call.RESTORE]
    assert not unlocked or not restored or max(restored) < min(unlocked), "nobody runs before all have their memory"


def test_what_can_not_come_back_is_said(tmp_path: Path) -> None:
    sidecar = Sidecar(fails={Call.RESTORE: driver_port.OUT_OF_MEMORY})
    sidecar.now = {A: State.CHECKPOINTED, B: State.CHECKPOINTED}
    with pytest.raises(CantBringBack, match="another program uses it") as caught:
        mover(sidecar, tmp_path).back([A, B])
    assert caught.value.for_want_of_room
    sidecar.now = {A: State.FAILED, B: State.RUNNING}
    with pytest.raises(CantBringBack, match="gave process"):
        mover(sidecar, tmp_path).back([A, B])
    with pytest.raises(CantBringBack, match="side-car died"):
        sidecar = Sidecar(dies=100)
        sidecar.now = {A: State.CHECKPOINTED, B: State.CHECKPOINTED}
        sidecar._one = lambda *_: "UNKNOWN"  # type: ignore[method-assign]
        mover(sidecar, tmp_path).back([A, B])


def test_every_state_that_a_call_leads_to_has_a_way_back() -> None:
    assert {leads for _, leads in CALLS.values()} | {needs for needs, _ in CALLS.values()} == set(BACK)
    for state, call in BACK.items():
        assert call is None or CALLS[call][0] is state


def test_all_gpus_are_mapped_in_order_or_none() -> None:
    then = {gpu_facts.UUIDS: "aa bb"}
    here = About("1", 1, (Card("bb", "chip", 1, 1), Card("aa", "chip", 1, 1)))
    assert gpu_facts.pairs(then, here) == []
    other = About("1", 1, (Card("cc", "chip", 1, 1), Card("bb", "chip", 1, 1)))
    assert gpu_facts.pairs(then, other) == [("aa", "cc"), ("bb", "bb")]


def test_nccl_goes_by_sockets_only_where_that_was_asked_for() -> None:
    assert environment.nccl_environment({}) == {} == environment.nccl_environment({environment.ASKED: "0"})
    assert environment.nccl_environment({environment.ASKED: environment.SOCKETS})["NCCL_P2P_DISABLE"] == "1"
    assert environment.nccl_environment({}, 1) == {} == environment.nccl_environment({environment.ASKED: "own"}, 2)
    assert environment.nccl_environment({}, 2) == environment.SETTINGS


def test_the_drivers_version_is_read_off_the_kernel_module(tmp_path: Path) -> None:
    said = tmp_path / "version"
    said.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  (x)\nGCC version: 14.2.0\n")
    assert gpu_facts.driver_here(said) == "580.159.04"
    assert gpu_facts.driver_here(tmp_path / "none") == ""


def test_programs_that_would_die_of_it_are_known_by_a_library(tmp_path: Path) -> None:
    assert process_discovery.frail_library(A) is None
    library = tmp_path / "xla_cuda_plugin.so"
    library.write_bytes(bytes(4096))
    with library.open("rb") as f, mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ):
        frail = process_discovery.frail_library(A)
        assert frail is not None
        assert frail.name == "JAX"
    found = gpu_facts.against(About(), {}, {"process 2": "JAX"}, shared=True)
    assert ["JAX" in found[0], "MPS" in found[1]] == [True, True]
