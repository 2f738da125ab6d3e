"""Under control groups v2 a job's group has its controllers, wherever the processes are that would be in their way."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from spotsurfer_agent.host.cgroup import CgroupError, JobCgroup
from spotsurfer_agent.host.preflight import COUNTED, WRITABLE, Trouble, tried, try_cgroup
from spotsurfer_agent.host.usage import Meters
from spotsurfer_agent.shim import oom_guard
from spotsurfer_wire.linux import cgroups, procfs
from spotsurfer_wire.linux.cgroups import UNIFIED
from support import usage_trees
from support.kernel_v2 import KernelV2

GUARD, AGENT, SHIM = 1, 20, 30


@pytest.fixture
def top(tmp_path):
    return tmp_path / "cgroup"


@pytest.fixture
def kernel(top, monkeypatch):
    return KernelV2(top, "cpu io memory pids", monkeypatch)


def group_of(scope: Path) -> JobCgroup:
    return JobCgroup({UNIFIED: str(cgroups.home(scope) / "job")})


def test_the_shim_goes_into_a_leaf_of_its_scope_and_the_job_is_guarded(kernel, top):
    scope = top / "spotsurfer.slice/job.scope"
    scope.mkdir(parents=True)
    kernel.enter(scope, SHIM, SHIM + 1)
    group = group_of(scope)
    group.create()
    kernel.sync()
    assert kernel.pids(scope) == []
    assert kernel.pids(scope / cgroups.LEAF) == [SHIM, SHIM + 1]
    assert cgroups.lacking(scope / "job") == []
    assert oom_guard.kernel_guard(group.folders) is not None
    assert sorted((scope / "cgroup.subtree_control").read_text().split()) == ["cpu", "io", "memory", "pids"]


def test_from_its_leaf_the_same_place_is_seen_and_nothing_moves_again(kernel, top):
    scope = top / "job.scope"
    scope.mkdir()
    kernel.enter(scope, SHIM)
    group_of(scope).create()
    again = group_of(scope / cgroups.LEAF)
    again.create()
    assert again == group_of(scope)
    assert kernel.pids(scope / cgroups.LEAF) == [SHIM]
    assert not (scope / cgroups.LEAF / cgroups.LEAF).exists()


def test_a_machine_that_is_a_container_is_its_own_top(top, monkeypatch):
    kernel = KernelV2(top, "cpu io memory pids", monkeypatch, real_top=False)
    kernel.enter(top, GUARD, AGENT, SHIM)
    group_of(top).create()
    kernel.sync()
    assert kernel.pids(top / cgroups.LEAF) == [GUARD, AGENT, SHIM]
    assert cgroups.lacking(top / "job") == []


def test_the_top_of_a_machine_keeps_its_processes(kernel, top):
    kernel.enter(top, GUARD, AGENT)
    group_of(top).create()
    kernel.sync()
    assert kernel.pids(top) == [GUARD, AGENT]
    assert cgroups.lacking(top / "job") == []


def test_strangers_above_are_left_where_they_are(top, monkeypatch):
    kernel = KernelV2(top, "memory", monkeypatch)
    scope = top / "theirs/ours"
    scope.mkdir(parents=True)
    kernel.enter(top / "theirs", 7)
    kernel.enter(scope, SHIM)
    group = group_of(scope)
    group.create()
    kernel.sync()
    assert kernel.pids(top / "theirs") == [7]
    assert "memory.high" in cgroups.lacking(scope / "job")


def test_who_cannot_be_seen_cannot_be_moved_and_is_named(kernel, top):
    scope = top / "outer"
    scope.mkdir()
    kernel.enter(scope, SHIM)
    kernel.unseen.add(scope)
    with pytest.raises(CgroupError, match="a process of another pid namespace is in it"):
        group_of(scope).create()


def test_a_process_that_never_goes_ends_the_wait(kernel, top, monkeypatch):
    scope = top / "outer"
    scope.mkdir()
    kernel.enter(scope, SHIM)
    writes = cgroups.write
    monkeypatch.setattr(cgroups, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(cgroups, "write", lambda file, value: None if value == str(SHIM) else writes(file, value))
    with pytest.raises(CgroupError, match="processes 30 can't be moved into its leaf"):
        group_of(scope).create()


def test_usage_is_measured_once_the_controllers_are_there(kernel, top):
    scope = top / "job.scope"
    scope.mkdir()
    kernel.enter(scope, SHIM)
    group = group_of(scope)
    group.create()
    kernel.sync()
    for name, text in usage_trees.V2.items():
        if (file := scope / "job" / Path(name).name).exists():
            file.write_text(text)
    sample = Meters(group.folders).sample()
    assert sample is not None
    assert sample.memory_bytes == 640167936


# ---------------------------------------------------------------- the look


def answers(group: JobCgroup, kernel: KernelV2) -> JobCgroup:
    """A group whose kernel freezes as it is told, and lets go of an empty folder."""
    made = Path(group.freezer)

    class Answering(JobCgroup):
        def freeze(self) -> None:
            kernel.sync()

        def thaw(self) -> None: ...

        def remove(self) -> None:
            for file in made.iterdir():
                file.unlink()
            made.rmdir()

    return Answering(group.folders)


def test_a_look_leaves_nothing_and_finds_nothing_wrong(kernel, top):
    assert tried(answers(group_of(top), kernel)) is None
    assert not (top / "job").exists()


def test_where_memory_is_not_counted_the_look_says_what_and_why(top, monkeypatch):
    kernel = KernelV2(top, "cpu io pids", monkeypatch)
    found = tried(answers(group_of(top), kernel))
    lacks = "memory.high, memory.current, memory.stat, memory.events"
    assert found == Trouble(
        f"control groups don't count memory, so its end would end the job (groups in {top} lack {lacks})", COUNTED
    )
    assert not (top / "job").exists()


def test_a_group_that_cannot_be_made_is_said(top):
    found = tried(JobCgroup({UNIFIED: str(top / "gone/job")}))
    assert found is not None
    assert found.what.startswith(f"control groups can't be used (can't make the control group {top}/gone/job: ")
    assert found.remedy == WRITABLE


def test_a_look_that_says_nothing_is_said(tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho once; echo no such module >&2; exit 1\n")
    program.chmod(0o755)
    assert try_cgroup([str(program)]) == Trouble("control groups could not be tried (no such module)", WRITABLE)
    found = try_cgroup([str(tmp_path / "gone")])
    assert found is not None
    assert found.what.startswith("control groups could not be tried (")


@pytest.mark.real
def test_this_machine_passes_the_look():
    assert try_cgroup([sys.executable]) is None


@pytest.fixture
def real_scope(tmp_path):
    """A group of the kernel's own v2 hierarchy, which is there on a v1 host, too."""
    found = cgroups.places("0::/\n", procfs.text("self", "mountinfo"))
    top = found[UNIFIED][0] if UNIFIED in found else tmp_path / "v2"
    if UNIFIED not in found:
        top.mkdir()
        subprocess.run(["mount", "-t", "cgroup2", "none", str(top)], check=True)
    scope = top / f"spotsurfer-test-{uuid.uuid4().hex[:8]}"
    scope.mkdir()
    yield scope
    for folder in (scope / "job", scope / cgroups.LEAF, scope):
        if folder.exists():
            folder.rmdir()
    if UNIFIED not in found:
        subprocess.run(["umount", str(top)], check=True)


@pytest.mark.real
def test_the_kernel_itself_refuses_and_hands_on(real_scope, monkeypatch):
    """With controllers that v1 left to v2; where it left none, processes move all the same."""
    left = (real_scope.parent / "cgroup.controllers").read_text().split()
    free = tuple(c for c in ("memory", "hugetlb") if c in left)[:1]
    monkeypatch.setattr(cgroups, "CONTROLLERS", free)
    group = group_of(real_scope)
    with subprocess.Popen(["/bin/sleep", "600"]) as sleeper:
        try:
            (real_scope / "cgroup.procs").write_text(str(sleeper.pid))
            cgroups.delegate(real_scope.parent)
            for name in free:
                with pytest.raises(OSError, match="busy"):
                    (real_scope / "cgroup.subtree_control").write_text(f"+{name}")
            group.create()
            if not free:
                cgroups.settle(real_scope)
            assert (real_scope / cgroups.LEAF / "cgroup.procs").read_text().split() == [str(sleeper.pid)]
            assert all(list((real_scope / "job").glob(f"{name}.*")) for name in free)
            group.freeze()
            group.thaw()
        finally:
            sleeper.kill()
