"""Options, values, names of files and the start of a job: pure, judged by what the real Slurm printed."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from slurm.transcripts import TRUTH

from spotsurfer.common.units import ranges
from spotsurfer.slurm.batch_options import Batch, directives
from spotsurfer.slurm.dependencies import read_dependency
from spotsurfer.slurm.files import Names, file_name, usual
from spotsurfer.slurm.options import Refused
from spotsurfer.slurm.programs import run
from spotsurfer.slurm.site import Site
from spotsurfer.slurm.start_script import COMMAND, START, Start, exported, slurm_variables
from spotsurfer.slurm.values import (
    JobIds,
    exit_words,
    raw_id,
    read_ids,
    read_limit,
    read_memory,
    read_tasks,
    read_time,
    show_clock,
    show_duration,
    show_memory,
)
from spotsurfer.web.client import Client

NOW = datetime(2026, 3, 4, 12, 30, 15, tzinfo=UTC)


def site(folder: Path) -> Site:
    return Site(nobody, NOW, {}, str(folder), {"main": "spot-first"})


def time_forms() -> list[tuple[str, list[str]]]:
    parts = re.split(r"^<(.*)>\n", (TRUTH / "21-time.txt").read_text(), flags=re.M)[1:]
    return [(form, said.splitlines()) for form, said in zip(parts[::2], parts[1::2], strict=True)]


@pytest.mark.parametrize(("form", "said"), time_forms())
def test_a_time_limit_is_what_the_real_slurm_takes_it_for(form: str, said: list[str]) -> None:
    if said[0] != "submit [0]":
        with pytest.raises(ValueError):
            read_limit(form)
        return
    limit = read_limit(form)
    minutes = "UNLIMITED" if limit is None else str(limit // 60)
    assert [show_duration(limit), f"{show_clock(limit)}|{minutes}"] == said[1:]


@pytest.mark.parametrize(
    ("form", "shown"),
    [("100", "100M"), ("1G", "1G"), ("1024K", "1M"), ("1023K", "1M"), ("2g", "2G"), ("100MB", "100M"), ("0", "0")],
)
def test_sizes(form: str, shown: str) -> None:
    assert show_memory(read_memory(form)) == shown


@pytest.mark.parametrize("form", ["1.5G", "x", "", "1Q", "-1"])
def test_sizes_that_are_none(form: str) -> None:
    with pytest.raises(ValueError):
        read_memory(form)


def calls() -> list[tuple[str, str]]:
    """Calls of the scripts about wrong calls, and what they print."""
    found = list[tuple[str, str]]()
    for name in ("22-bad-options", "24-bad-queries"):
        parts = re.split(r"^\$ (.*)\n", (TRUTH / f"{name}.txt").read_text(), flags=re.M)[1:]
        found += zip(parts[::2], parts[1::2], strict=True)
    return found


class AskedError(Exception):
    """The controller is asked."""


def nobody() -> Client:
    raise AskedError


def test_wrong_calls_are_refused_in_the_real_slurms_words_before_the_controller_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, wrong = 0, list[str]()
    for call, said in calls():
        words = shlex.split(call)
        with contextlib.suppress(AskedError):
            code = run(words[0], words[1:], site(tmp_path))
            out, err = capsys.readouterr()
            printed = "".join(f"{line.rstrip()}\n" for line in (out + err).splitlines())
            told += 1
            if not said.startswith(f"{printed}[{code}]\n"):
                wrong.append(f"{call}: {printed}[{code}] instead of {said}")
    assert [x for x in wrong if "-O foo" not in x and "-N 2" not in x] == []  # these two: differences.py
    assert told >= 50


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("now+1hour", NOW + timedelta(hours=1)),
        ("now+90", NOW + timedelta(seconds=90)),
        ("now-2days", NOW - timedelta(days=2)),
        ("16:00", NOW.replace(hour=16, minute=0, second=0)),
        ("12:00", (NOW + timedelta(days=1)).replace(hour=12, minute=0, second=0)),
        ("4:05pm", NOW.replace(hour=16, minute=5, second=0)),
        ("teatime", NOW.replace(hour=16, minute=0, second=0)),
        ("tomorrow", (NOW + timedelta(days=1)).replace(hour=0, minute=0, second=0)),
        ("2027-01-02", NOW.replace(year=2027, month=1, day=2, hour=0, minute=0, second=0)),
        ("2027-01-02T03:04:05", NOW.replace(year=2027, month=1, day=2, hour=3, minute=4, second=5)),
        ("1/2/27", NOW.replace(year=2027, month=1, day=2, hour=0, minute=0, second=0)),
        ("010227", NOW.replace(year=2027, month=1, day=2, hour=0, minute=0, second=0)),
    ],
)
def test_times(text: str, expected: datetime) -> None:
    assert read_time(text, NOW) == expected


def test_ids_and_tasks() -> None:
    assert read_ids("5,6_3,7_[1-3,8]") == [
        JobIds(5), JobIds(6, frozenset({3})), JobIds(7, frozenset({1, 2, 3, 8})),
    ]  # fmt: skip
    assert read_ids("5.batch") == [JobIds(5, None, "batch")]
    assert read_ids(str(raw_id(12, 0))) == [JobIds(12, frozenset({0}))]
    assert raw_id(12, None) == 12
    assert ranges(read_tasks("1-3,7,10-14:2")) == "1-3,7,10,12,14"
    for text in ("abc", "5_", "5_[1-x]", "5_[3-1]"):
        with pytest.raises(ValueError):
            read_ids(text)


def test_exit_codes() -> None:
    assert [exit_words(code) for code in (None, 0, 3, 137, 255)] == ["0:0", "0:0", "3:0", "0:9", "255:0"]


def test_directives_end_at_the_first_command() -> None:
    script = '#!/bin/sh\n#SBATCH -J "a b#c" -t 5 # hi -c3\n\n  # x\n#SBATCH -c 2\ntrue\n#SBATCH -c 3\n'
    assert directives(script) == ["-J", "a b#c", "-t", "5", "-c", "2"]


@pytest.mark.parametrize(
    ("pattern", "array", "expected"),
    [
        (usual(False), False, "/wf/slurm-{number}.out"),
        (usual(True), True, "/wf/slurm-{number}_{task}.out"),
        ("%x_%u_%5j_%%_%q", False, "/wf/nm_me_{number:5}_%_%q"),
        ("/abs/%A_%4a", True, "/abs/{number}_{task:4}"),
        ("%a", False, "/wf/4294967294"),
        ("d\\%j", False, "/wf/d%j"),
        ("/dev/null", False, ""),
    ],
)
def test_names_of_output_files(pattern: str, array: bool, expected: str) -> None:
    assert file_name(pattern, Names("me", "nm", array), "/wf") == expected


def test_dependencies() -> None:
    assert read_dependency("afterok:1:2_3,afterany:4,singleton") == ("afterok:1", "afterok:2_3", "afterany:4", "singleton")
    assert read_dependency("after:1_2,3_*") == ("after:1_2", "afterany:3")
    for text in ("afterok", "afterok:x", "foo:1", "after:1+5", "1:x", "afterok:1?afterany:2"):
        with pytest.raises(Refused, match="Job dependency problem"):
            read_dependency(text)


def test_what_is_exported() -> None:
    here = {"A": "1", "HOME": "/root", "SLURM_JOB_ID": "9", "bad-name": "x", "BASH_FUNC_f%%": "x"}
    assert exported(None, here) == {"A": "1"}
    assert exported("NONE", here) == {}
    assert exported("A,B=2,HOME", here) == {"A": "1", "B": "2", "HOME": "/root"}
    assert exported("ALL,A=3", here) == {"A": "3"}


def run_start(start: Start, tmp_path: Path, **given: str) -> str:
    environment = {"PATH": os.environ["PATH"], START: start.text().replace("/tmp/slurm-", f"{tmp_path}/slurm-"), **given}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False, timeout=20)
    return done.stdout + done.stderr


def test_a_job_starts_with_its_script_variables_and_arguments(tmp_path: Path) -> None:
    script = """#!/bin/sh
printf '%s|' "$@" "$A" "$SLURM_JOB_ID" "$SLURM_ARRAY_JOB_ID" "$SLURM_ARRAY_TASK_ID" "$SLURM_JOB_NAME" "${START-unset}" "$PWD"
echo '{task}' "it's"; srun -n 1 --label echo step
"""
    own = slurm_variables(Batch(array="1-3"), "nm", str(tmp_path), "/wf", "main")
    start = Start(script, ["a b", "{task}"], {"A": "line\nline {task} '$x'"}, own)
    assert "{task}" not in start.text()  # else the controller would fill it in
    printed = run_start(start, tmp_path, SPOTSURFER_NUMBER="12", SPOTSURFER_TASK="3")
    assert printed == f"a b|{{task}}|line\nline {{task}} '$x'|40000012|12|3|nm|unset|{tmp_path}|{{task}} it's\n0: step\n"


def test_one_file_for_both_streams_has_one_pipe(tmp_path: Path) -> None:
    own = slurm_variables(Batch(), "nm", str(tmp_path), "/wf", "main")
    start = Start("#!/bin/sh\necho 1; echo 2 >&2; echo 3\n", [], {}, own)
    assert run_start(start, tmp_path, SPOTSURFER_NUMBER="1") == "1\n3\n2\n"  # the helper puts stderr behind stdout
    assert run_start(replace(start, together=True), tmp_path, SPOTSURFER_NUMBER="1") == "1\n2\n3\n"


def test_a_job_with_a_folder_that_is_not_there_starts_in_tmp(tmp_path: Path) -> None:
    own = slurm_variables(Batch(), "nm", "/no/such", "/wf", "main")
    assert "going to /tmp instead" in run_start(Start("#!/bin/sh\ntrue\n", [], {}, own), tmp_path, SPOTSURFER_NUMBER="1")
