"""Which control group trees are used and what is written there, on a host of either kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_providers.local.box.cgroups import PIDS_MAX, BoxGroup, hierarchies
from spotsurfer_wire.linux.cgroups import LEAF, lacking
from support.kernel_v2 import KernelV2

from spotsurfer.model.errors import HostUnfit

LIMITS = (1.5, 1 << 30)


def v1(root: Path, *groups: str) -> str:
    lines = []
    for i, options in enumerate(groups):
        folder = root / options.replace("name=", "")
        folder.mkdir(parents=True)
        lines.append(f"{30 + i} 29 0:{i} / {folder} rw,relatime - cgroup cgroup rw,{options}")
    return "".join(f"{line}\n" for line in ["22 27 0:21 / /proc rw - proc proc rw", *lines])


def v2(root: Path, controllers: str) -> str:
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text(controllers)
    return f"40 29 0:9 / {root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_a_tree_for_each_controller(tmp_path: Path) -> None:
    table = v1(tmp_path, "cpu", "cpuacct", "memory", "freezer", "pids", "devices", "name=systemd")
    trees = hierarchies(table + v2(tmp_path / "unified", ""))
    assert [t.controllers for t in trees] == [("cpu",), ("cpuacct",), ("memory",), ("freezer",), ("pids",)]
    group = BoxGroup(trees, "box-1")
    group.create(*LIMITS)
    assert (tmp_path / "cpu/spotsurfer/box-1/cpu.cfs_quota_us").read_text() == "150000"
    assert (tmp_path / "memory/spotsurfer/box-1/memory.limit_in_bytes").read_text() == str(1 << 30)
    assert (tmp_path / "pids/spotsurfer/box-1/pids.max").read_text() == str(PIDS_MAX)
    assert not (tmp_path / "devices/spotsurfer").exists()


def test_controllers_mounted_together_share_a_folder(tmp_path: Path) -> None:
    trees = hierarchies(v1(tmp_path, "cpu,cpuacct", "memory", "pids"))
    assert [t.options for t in trees] == ["cpu,cpuacct", "memory", "pids"]
    group = BoxGroup(trees, "box-1")
    group.create(*LIMITS)
    assert len(group.folders()) == 3


@pytest.mark.parametrize("of_a_container", [False, True])
def test_the_unified_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_a_container: bool) -> None:
    kernel = KernelV2(tmp_path, "cpu io memory pids", monkeypatch, real_top=not of_a_container)
    kernel.enter(tmp_path, 4, 5)
    trees = hierarchies(v2(tmp_path, "cpuset cpu io memory pids"))
    assert [(t.unified, t.controllers) for t in trees] == [(True, ("memory", "cpu", "io", "pids"))]
    BoxGroup(trees, "box-1").create(*LIMITS)
    box = tmp_path / "spotsurfer/box-1"
    assert (box / "cpu.max").read_text() == "150000 100000"
    assert (box / "memory.max").read_text() == str(1 << 30)
    kernel.sync()
    assert (box / "memory.high").exists()
    assert kernel.pids(tmp_path / LEAF if of_a_container else tmp_path) == [4, 5]


def test_a_job_in_a_box_has_controllers_and_process_1_a_leaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KernelV2(tmp_path, "cpu io memory pids", monkeypatch)
    group = BoxGroup(hierarchies(v2(tmp_path, "cpu io memory pids")), "box-1")
    group.create(*LIMITS)
    box = tmp_path / "spotsurfer/box-1"
    kernel.enter(box, 70)
    group.delegate()
    (box / "job").mkdir()
    kernel.sync()
    assert kernel.pids(box / LEAF) == [70]
    assert lacking(box / "job") == []
    kernel.unseen.add(box)
    (box / "cgroup.subtree_control").write_text("")
    with pytest.raises(HostUnfit, match="hand on controllers to a box"):
        group.delegate()


@pytest.mark.parametrize("groups", [(), ("cpu", "memory"), ("name=systemd",)])
def test_a_host_without_limits_is_unfit(tmp_path: Path, groups: tuple[str, ...]) -> None:
    with pytest.raises(HostUnfit, match="mount control groups"):
        hierarchies(v1(tmp_path, *groups) + v2(tmp_path / "unified", ""))


def test_a_tree_that_can_not_be_written_is_unfit(tmp_path: Path) -> None:
    trees = hierarchies(v1(tmp_path, "cpu", "memory", "pids"))
    (tmp_path / "cpu/spotsurfer").write_text("in the way")
    with pytest.raises(HostUnfit, match="writable /sys/fs/cgroup"):
        BoxGroup(trees, "box-1").create(*LIMITS)


def test_processes_are_found_below_too(tmp_path: Path) -> None:
    group = BoxGroup(hierarchies(v1(tmp_path, "cpu", "memory", "pids")), "box-1")
    group.create(*LIMITS)
    inner = tmp_path / "cpu/spotsurfer/box-1/jobs"
    inner.mkdir()
    (inner / "cgroup.procs").write_text("0\n7\n")
    (tmp_path / "pids/spotsurfer/box-1/cgroup.procs").write_text("5\n7\n")
    assert group.pids() == {5, 7}
