"""What a rule of Snakemake becomes, and which files go and come. Values and a folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from snakemake_executor_plugin_spotsurfer import carried_files, rule_request
from snakemake_executor_plugin_spotsurfer.rule_request import Unfit

from spotsurfer.jobspec.validate import checked
from spotsurfer.model.job import JobSpec


@pytest.mark.parametrize(
    ("wanted", "threads", "spec"),
    [
        ({}, 1, {"cpus": 1}),
        ({"mem_mb": 600, "disk_mb": 1000, "tmpdir": "/tmp"}, 4, {"cpus": 4, "memory_bytes": 600_000_000}),
        ({"mem_mb_per_cpu": 500}, 4, {"cpus": 4, "memory_bytes": 2_000_000_000}),
        ({"mem_mb": 1}, 0, {"cpus": 1, "memory_bytes": 16 << 20}),
        ({"runtime": 90}, 1, {"cpus": 1, "time_limit_seconds": 5400.0}),
        ({"gpu": 2, "gpu_model": "H100"}, 1, {"cpus": 1, "gpus": 2, "gpu": "H100"}),
        ({"nvidia_gpu": 1}, 1, {"cpus": 1, "gpus": 1}),
        ({"instance_types": "m6i.* c6i.*"}, 1, {"cpus": 1, "instance_types": ("m6i.*", "c6i.*")}),
    ],
)  # fmt: skip
def test_resources(wanted: dict[str, Any], threads: int, spec: dict[str, Any]) -> None:
    assert rule_request.resources(wanted, threads) == spec


@pytest.mark.parametrize(("word", "market"), [("", "spot-first"), ("spot", "spot"), ("cheap", None)])
def test_markets(word: str, market: str | None) -> None:
    if market is None:
        with pytest.raises(Unfit, match="expected one of"):
            rule_request.market_of(word)
    else:
        assert rule_request.market_of(word) == market


@pytest.mark.parametrize("wanted", [{"mem_mb": "much"}, {"runtime": -1}, {"gpu": True}])
def test_resources_that_no_job_can_have(wanted: dict[str, Any]) -> None:
    with pytest.raises(Unfit, match=next(iter(wanted))):
        rule_request.resources(wanted, 1)


@pytest.mark.parametrize("rule", ["bwa", "_hidden", "a" * 90, "a.über:x", "___"])
def test_names_are_those_of_jobs(rule: str) -> None:
    checked(JobSpec(rule_request.named(rule), ("true",)))


def test_tags_name_the_rule_and_what_it_reads() -> None:
    assert rule_request.tags("r1", "bwa", "sample=s01", 7) == {
        "workflow": "r1", "rule": "bwa", "input_bytes": "7", "wildcards": "sample=s01",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name"), [("a/b", "a/b"), ("./a//b", "a/b"), ("a/../b", "b"), ("{}/c", "c"), ("../x", None), ("/etc/passwd", None)]
)
def test_only_the_working_directory_is_seen(tmp_path: Path, path: str, name: str | None) -> None:
    path = path.format(tmp_path)
    if name is None:
        with pytest.raises(Unfit, match="lies outside"):
            carried_files.below(path, tmp_path, "input")
    else:
        assert carried_files.below(path, tmp_path, "input") == name


@pytest.mark.parametrize("name", ["a[1].txt", "b*", "c?", "plain/d.txt"])
def test_a_name_is_a_pattern_of_itself_alone(tmp_path: Path, name: str) -> None:
    for x in (name, "a1.txt", "bb", "cc", "plain/e.txt"):
        (tmp_path / x).parent.mkdir(exist_ok=True)
        (tmp_path / x).touch()
    (pattern,) = carried_files.names([name, f"./{name}"], tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.glob(pattern)] == [name]
    with pytest.raises(Unfit, match="is not there"):
        carried_files.names(["nothing"], tmp_path)


def test_sizes_count_what_folders_hold(tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_text("12345")
    (tmp_path / "g").write_text("123")
    assert carried_files.size(["d", "g", "nothing"], tmp_path) == 8
