"""What becomes of the controller's jobs in Slurm's words: states, reasons, lines; the folders that come home first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli.test_quick import HEAVY

from spotsurfer.cli.main import main
from spotsurfer.slurm import programs, squeue
from spotsurfer.slurm.listing import entries, fetch, places
from spotsurfer.slurm.rows import Row
from spotsurfer.slurm.site import Home, Site
from spotsurfer.web.client import Client

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
BEGUN = "2026-03-04T12:00:00+00:00"


def brief(**changes: Any) -> dict[str, Any]:
    usual = {
        **{"id": "a", "number": 5, "array": "", "task": None, "name": "nm", "owner": "root", "project": "", "phase": "queued"},
        **{"state": "queued", "wish": "run", "reason": "", "exit_code": None, "ended_by": "", "submitted_at": BEGUN},
        **{"started_at": None, "ended_at": None, "cpus": 1, "memory_bytes": 1 << 30, "gpus": 0, "time_limit_seconds": None},
        **{"array_limit": 0, "after": [], "machine": "", "home": "", "market": "spot-first", "waits_for": "", "tasks": ""},
    }
    return usual | changes


def ended(state: str, code: int | None, **more: Any) -> dict[str, Any]:
    return brief(state=state, started_at=BEGUN, ended_at=BEGUN, exit_code=code, **more)


RUNS = {"state": "active", "started_at": BEGUN}


@pytest.mark.parametrize(
    ("given", "state", "reason", "exit"),
    [
        (brief(), "PENDING", "Priority", "0:0"),
        (brief(state="active", phase="booting", machine="i-1"), "PENDING", "Resources", "0:0"),
        (brief(wish="hold"), "PENDING", "JobHeldUser", "0:0"),
        (brief(state="held", wish="hold"), "PENDING", "JobHeldUser", "0:0"),
        (brief(waits_for="dependency"), "PENDING", "Dependency", "0:0"),
        (brief(waits_for="never"), "PENDING", "DependencyNeverSatisfied", "0:0"),
        (brief(waits_for="begin"), "PENDING", "BeginTime", "0:0"),
        (brief(waits_for="array"), "PENDING", "JobArrayTaskLimit", "0:0"),
        (brief(reason="it waits for 1 of 2 licences vcs"), "PENDING", "Licenses", "0:0"),
        (brief(**RUNS, phase="running", machine="i-1"), "RUNNING", "None", "0:0"),
        (brief(**RUNS, phase="queued"), "RUNNING", "None", "0:0"),  # its machine was reclaimed
        (brief(**RUNS, wish="hold", phase="held"), "SUSPENDED", "None", "0:0"),
        (brief(**RUNS, wish="cancel"), "COMPLETING", "None", "0:0"),
        (ended("succeeded", 0), "COMPLETED", "None", "0:0"),
        (ended("failed", 3), "FAILED", "NonZeroExitCode", "3:0"),
        (ended("failed", 137), "FAILED", "RaisedSignal:9(Killed)", "0:9"),
        (ended("failed", 143, ended_by="time limit"), "TIMEOUT", "TimeLimit", "0:0"),
        (ended("failed", 137, ended_by="memory"), "OUT_OF_MEMORY", "OutOfMemory", "0:125"),
        (ended("cancelled", None), "CANCELLED", "None", "0:0"),
    ],
)
def test_states(given: dict[str, Any], state: str, reason: str, exit: str) -> None:
    row = Row(given, NOW, "main")
    assert (row.state, row.reason, row.exit) == (state, reason, exit)


def test_an_ended_job_that_is_not_at_home_is_completing() -> None:
    row = Row(ended("succeeded", 0), NOW, "main", at_home=False)
    assert (row.state, row.ended_at, row.seconds) == ("COMPLETING", None, 1800)


class Played(Client):
    """Answers the list of jobs."""

    def __init__(self, briefs: list[dict[str, Any]]) -> None:
        self.briefs, self.asked = briefs, list[bool]()

    def get(self, path: str, **query: object) -> dict[str, Any]:
        self.asked.append(bool(query["ended"]))
        return {"jobs": [b for b in self.briefs if query["ended"] or b["ended_at"] is None]}


class Late(Home):
    """One job's files are on their way."""

    def __init__(self, comes: bool) -> None:
        self.comes, self.there, self.tried = comes, False, 0

    def awaited(self, client: Client) -> frozenset[str]:
        return frozenset() if self.there else frozenset({"late"})

    def deliver(self, client: Client, jobs: Sequence[str]) -> None:
        self.tried += 1
        self.there = self.comes


class Many(Home):
    """These are awaited."""

    def __init__(self, jobs: list[str]) -> None:
        self.jobs, self.asked = jobs, list[str]()

    def awaited(self, client: Client) -> frozenset[str]:
        return frozenset(self.jobs)

    def deliver(self, client: Client, jobs: Sequence[str]) -> None:
        self.asked += jobs


def a_site(client: Client, home: Home | None = None) -> Site:
    return Site(lambda: client, NOW, {}, "/wf", {"main": "spot-first"}, home or Home())


@pytest.mark.parametrize("comes", [True, False])
def test_what_has_ended_is_brought_home_before_it_is_shown(comes: bool) -> None:
    client, home = Played([brief(), ended("succeeded", 0, id="late", number=6)]), Late(comes)
    rows = fetch(a_site(client, home), ended=False)
    assert home.tried == 1
    assert [(r.number, r.state) for r in rows] == [(5, "PENDING")] + ([] if comes else [(6, "COMPLETING")])
    assert client.asked == [False, True]


def test_what_never_began_or_is_much_is_not_brought_home_before_a_list_is_shown() -> None:
    much = Many([f"j{n}" for n in range(30)] + ["never"])
    briefs = [ended("succeeded", 0, id=f"j{n}", number=n) for n in range(30)] + [
        brief(id="never", state="cancelled", ended_at=BEGUN)
    ]
    rows = fetch(a_site(Played(briefs), much), ended=True)
    assert much.asked == []
    assert [r.state for r in rows if r.id != "never"] == ["COMPLETING"] * 30
    assert next(r.state for r in rows if r.id == "never") == "CANCELLED"


def tasks(*numbers: int, **changes: Any) -> list[dict[str, Any]]:
    return [brief(id=f"arr-{n}", array="arr", number=7, task=n, array_limit=2, **changes) for n in numbers]


def test_pending_tasks_of_an_array_share_a_line() -> None:
    briefs = [
        *tasks(1, **RUNS),
        *tasks(2, waits_for="array"),
        *tasks(3, 5),
        *tasks(6, waits_for="dependency", after=["afterok:4_6"]),
    ]
    rows = fetch(a_site(Played(briefs)), ended=True)
    assert [(e.slurm_id, e.row.reason) for e in entries(rows, Played([]))] == [
        ("7_1", "None"),
        ("7_[2-3,5%2]", "Priority"),
        ("7_6", "Dependency"),
    ]
    assert len(entries(rows, Played([]), apart=True)) == 5


def test_many_tasks_are_named_in_few_words() -> None:
    every = [Row(b, NOW, "main") for b in [*tasks(*range(1, 101)), brief()]]
    assert places(every, every) == ["arr", "a"]
    assert places(every[:3], every) == ["arr-[1-3]"]
    assert places(every[4:5], every) == ["arr-5"]
    odd = places(every[:100:2], every)
    assert len(odd) == 2
    assert all(len(place) <= 100 for place in odd)


def test_tasks_that_share_a_row_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    briefs = [*tasks(1, **RUNS), *tasks(2, tasks="2-9,11", waits_for="array"), *tasks(10, wish="hold")]
    client = Played(briefs)
    site = a_site(client, Many(["arr-1", "arr-5", "arr-11"]))  # that these are awaited is known without their rows
    assert list(squeue.squeue(["-h", "-o", "%i %t %r"], site)) == ["7_[2-11%2] PD JobHeldUser", "7_1 R None"]
    assert client.asked == [False]


def test_ten_thousand_tasks_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    found = list(squeue.squeue(["-h", "-o", "%i %t %r"], a_site(Played(tasks(*range(10_000))))))
    assert found == ["7_[0-9999%2] PD Priority"]


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        (name, HEAVY - {"spotsurfer_wire"} if name in ("sbatch", "srun") else HEAVY) for name in programs.PROGRAMS
    ],  # they send folders
)
def test_nothing_heavy_is_loaded(program: str, heavy: set[str]) -> None:
    load = f"import sys, spotsurfer.slurm.programs, spotsurfer.slurm.{program}"
    text = f"{load}; sys.exit(str(sorted({heavy!r} & set(sys.modules))))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.strip() == "[]"


def test_install_writes_all_programs_and_leaves_others_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["slurm", "install", "--to", str(tmp_path / "bin")]
    assert main([*words, "--partition", "long=spot-first", "--partition", "now=on-demand"]) == 0
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == sorted(programs.PROGRAMS)
    done = subprocess.run([tmp_path / "bin" / "sbatch", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "slurm-wlm 22.05.8\n"
    assert "'now': 'on-demand'" in (tmp_path / "bin" / "sinfo").read_text()
    assert main(words) == 0
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\n# the real one\n")
    assert main(words) == 2
    assert "is another program" in capsys.readouterr().err
    assert main([*words, "--partition", "x=y"]) == 2
