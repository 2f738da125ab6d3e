"""Where the job finds its folder: a part of its scratch, under the path that it has at home."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_agent.host.root_fs import Mount
from spotsurfer_agent.prepare import home_mount
from spotsurfer_wire.messages import Share, Spec

from spotsurfer.jobspec.sections import home_problems
from spotsurfer.model.job import JobSpec, SharedMount


def spec(home: str, *shares: str) -> Spec:
    return Spec("j", ["x"], home=home, shares=[Share("s", "bind", t, t) for t in shares])


@pytest.mark.parametrize(
    ("home", "cover"),
    [
        ("/home/ada/wf", "/home/ada"),
        ("/home/ada/deep/wf", "/home/ada"),
        ("/home/ada", ""),
        ("/root/wf", "/root"),
        ("/data/ada/wf", ""),
        ("/tmp/wf", ""),
    ],
)
def test_it_is_seen_under_its_path_and_a_closed_home_folder_is_covered(home: str, cover: str) -> None:
    *above, own = home_mount.mounts(spec(home), "/base")
    assert own == Mount("home", "/base/job/scratch/work", home)
    assert [(m.target, m.read_only) for m in above] == ([(cover, True)] if cover else [])


def test_a_folder_on_a_shared_file_system_is_not_mounted_a_second_time() -> None:
    assert home_mount.mounts(spec("/shared/wf", "/shared"), "/base") == []
    assert home_mount.mounts(spec("/shared", "/shared/"), "/base") == []
    assert home_mount.mounts(spec("/sharedx/wf", "/shared"), "/base") != []
    assert home_mount.mounts(spec(""), "/base") == []


def test_mount_points_are_made_where_anybody_may_enter(tmp_path: Path) -> None:
    home_mount.make_points(Spec("j", ["x"], home="/home/ada/deep/wf", image="docker://i"), tmp_path)
    cover = tmp_path / "job" / home_mount.COVER
    assert (cover / "deep/wf").is_dir()
    assert all(p.stat().st_mode & 0o777 == 0o755 for p in (cover, cover / "deep", cover / "deep/wf"))
    home_mount.make_inner_point(spec("/tmp/deep/wf"), tmp_path / "scratch")
    assert (tmp_path / "scratch/tmp/deep/wf").is_dir()


@pytest.mark.parametrize(
    ("home", "good"),
    [
        ("/home/ada/wf", True), ("/data/x", True), ("/tmp/x", True), ("/shared/x", True), ("/home/ada", True),
        ("relative", False), ("/home/../etc/x", False), ("/", False), ("/home", False), ("/usr/x", False), ("/etc/x", False),
        ("/var/lib/x", False), ("/proc/x", False), ("//home/x", False), ("/home/ada/", False), ("/run/x/y", False),
    ],
)  # fmt: skip
def test_homes_that_a_job_may_have(home: str, good: bool) -> None:
    assert (not list(home_problems(JobSpec("j", ("x",), home=home)))) is good


def test_what_makes_no_sense_without_a_home_is_said() -> None:
    assert [key for key, _ in home_problems(JobSpec("j", ("x",), home_files=("a",)))] == ["home_files"]
    assert [key for key, _ in home_problems(JobSpec("j", ("x",), stdout="out"))] == ["stdout"]
    shared = SharedMount("m", "bind", "/d/x", "/d/x")
    assert [key for key, _ in home_problems(JobSpec("j", ("x",), home="/d/x", mounts=(shared,)))] == []
