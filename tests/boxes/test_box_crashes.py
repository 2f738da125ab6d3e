"""Kill -9 of anything at any moment: nothing of a box is left, and what is reported gone is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from spotsurfer_providers.local.box.records import Home
from support.boxes import Yard, yard

from spotsurfer.ports.provider import InstanceState

pytestmark = pytest.mark.real

BUSY = "(while :; do :; done) & setsid sleep 1000 & echo busy; sleep 1000"
# Seconds after the launch; a box is up after about 0.3, so that these fall in every step of its start and some behind it.
MOMENTS = [0.0, 0.02, 0.05, 0.08, 0.11, 0.14, 0.17, 0.2, 0.24, 0.3, 0.5]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Yard]:
    with yard(tmp_path) as y:
        yield y


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _dead(pid: int) -> bool:
    """Gone, or a zombie that its new parent has not reaped yet."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_supervisor_dies(here: Yard) -> None:
    box = here.launch(BUSY)
    here.wait_console(box.id, "busy")
    inner = here.inner_pid(box.id)
    _kill(here.supervisor(box.id))
    gone = here.wait_gone(box.id, 5)
    assert (gone.reclaimed, here.reason(box.id)) == (False, "its supervisor died")
    assert _dead(inner)
    here.assert_clean()


def test_process_1_dies(here: Yard) -> None:
    box = here.launch(BUSY)
    here.wait_console(box.id, "busy")
    _kill(here.inner_pid(box.id))
    assert not here.wait_gone(box.id, 5).reclaimed
    assert here.reason(box.id) == "crashed (-9)"
    here.assert_clean()


def test_supervisor_is_told_to_stop(here: Yard) -> None:
    box = here.launch(BUSY)
    os.kill(here.supervisor(box.id), signal.SIGTERM)
    assert not here.wait_gone(box.id, 5).reclaimed
    assert here.reason(box.id) == "its supervisor was told to stop"
    here.assert_clean()


@pytest.mark.parametrize("moment", MOMENTS)
def test_supervisor_dies_while_it_starts(here: Yard, moment: float) -> None:
    plan = here.plan(f"#!/bin/bash\n{BUSY}\n")
    view = here.provider.launch(plan)
    supervisor = here.supervisor(view.id)
    time.sleep(moment)
    _kill(supervisor)
    here.wait_gone(view.id, 5)
    here.assert_clean()
    assert here.provider.launch(plan).state is InstanceState.GONE
    assert manual_control.clean(here.path) == []


@pytest.mark.parametrize("moment", [0.0, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.05, 0.2])
def test_launcher_dies(here: Yard, moment: float) -> None:
    """Either the box is there and lives on, or there is none and the token still works."""
    plan = here.plan(f"#!/bin/bash\n{BUSY}\n")
    child = os.fork()
    if child == 0:
        os.setsid()
        here.provider.launch(plan)
        time.sleep(60)
    time.sleep(moment)
    _kill(child)
    os.waitpid(child, 0)
    before = here.provider.describe().instances
    after = here.provider.launch(plan)
    assert [v.id for v in before] in ([], [after.id])
    if after.state is not InstanceState.GONE:
        here.wait_for(lambda: here.view(after.id).state is not InstanceState.PENDING, "start")
        assert here.view(after.id).state is InstanceState.RUNNING


def test_clean_ends_a_living_box_only_when_told(here: Yard) -> None:
    box = here.launch(BUSY)
    assert manual_control.clean(here.path) == []
    assert here.view(box.id).state is InstanceState.RUNNING
    removed = manual_control.clean(here.path, end_living=True)
    assert removed == [f"box {box.id}"]
    assert here.view(box.id).state is InstanceState.GONE
    here.assert_clean()


def test_clean_finds_what_crashes_left(here: Yard) -> None:
    """A half-made folder, a torn record, a forgotten control group with a process in it, a half-written object."""
    home = Home(here.path)
    half = home.boxes / ".new-abc"
    box = here.launch(BUSY)
    half.mkdir()
    os.utime(half, (1, 1))
    torn = home.boxes / "box-0123456789ab"
    torn.mkdir()
    (torn / "box.json").write_text('{"id": "box-')
    staged = here.store / ".staged" / f"{home.group_name(box.id)}#0"
    staged.mkdir(parents=True, exist_ok=True)
    assert not here.provider.describe().complete
    half.mkdir(exist_ok=True)
    os.utime(half, (1, 1))
    supervisor = here.supervisor(box.id)
    _kill(supervisor)
    os.waitpid(supervisor, 0)  # the kernel is done with it, and its lock is free
    removed = "\n".join(manual_control.clean(here.path))
    for part in ("half-made folder .new-abc", "torn folder box-0123456789ab", "control group", "half-written objects"):
        assert part in removed
    here.assert_clean()
    assert here.provider.describe().complete


def test_other_data_folders_are_left_alone(tmp_path: Path) -> None:
    with yard(tmp_path / "a") as a, yard(tmp_path / "b") as b:
        plan = a.plan(f"#!/bin/bash\n{BUSY}\n")
        first, second = a.provider.launch(plan), b.provider.launch(plan)
        assert first.id == second.id  # the same token in two folders
        a.wait_for(lambda: b.view(second.id).state is InstanceState.RUNNING, "start")
        manual_control.clean(a.path, end_living=True)
        assert b.view(second.id).state is InstanceState.RUNNING
