"""The plug-in's executor against a played controller: batches, looks, lost answers, a controller that is away, cancellation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from clients.played_controller import Played
from snakemake_executor_plugin_spotsurfer import Executor, ExecutorSettings, common_settings
from snakemake_interface_executor_plugins.settings import DeploymentMethod

WAIT_SECONDS = 20.0


class File(str):
    """A path as Snakemake has them."""

    is_storage = False
    flags: ClassVar[dict[str, Any]] = {}


class Touched(File):
    """Within `touch()`."""

    flags: ClassVar[dict[str, Any]] = {"touch": True}


@dataclass
class Rule:
    """A rule's job, as far as the executor looks at it. `command` is what Snakemake would run on the machine."""

    jobid: int
    command: str
    input: list[File] = field(default_factory=list)
    output: list[File] = field(default_factory=list)
    log: list[File] = field(default_factory=list)
    image: str = ""
    resources: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    benchmark = None
    is_shell, is_shadow, env_modules = True, False, None
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = f"r{self.jobid}"
        self.rule = SimpleNamespace(name=self.name)
        self.wildcards_dict = {"sample": str(self.jobid)}
        self.container_img_url, self.shellcmd = self.image, self.command

    def is_group(self) -> bool:
        return False

    def logfile_suggestion(self, prefix: str) -> str:
        return f"{prefix}/{self.name}.log"

    def log_info(self) -> None: ...

    def register(self, external_jobid: str | None = None) -> None: ...

    def log_error(self, msg: str, **_: object) -> None:
        self.errors.append(msg)


class Stripped(Executor):
    """Without Snakemake's own command line."""

    def format_job_exec(self, job: Any) -> str:
        return str(job.command)


@dataclass
class Run:
    """A run of a workflow in a folder."""

    played: Played
    executor: Any  # its jobs are played
    done: list[Rule] = field(default_factory=list)
    failed: list[Rule] = field(default_factory=list)

    def wait(self, good: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while not good():
            assert time.monotonic() < until, (self.played.requests[-10:], self.played.jobs)
            time.sleep(0.01)

    def wait_for(self, rules: list[Rule]) -> None:
        self.wait(lambda: len(self.done) + len(self.failed) == len(rules))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    folder = tmp_path / "wf"
    (folder / ".snakemake").mkdir(parents=True)
    (folder / "Snakefile").write_text("# sources\n")
    monkeypatch.chdir(folder)
    played = Played(tmp_path)
    monkeypatch.setenv("SPOTSURFER_URL", str(played.socket))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made: list[Run] = []
    scheduler = SimpleNamespace(
        finish_callback=lambda job: made[0].done.append(job),
        error_callback=lambda job: made[0].failed.append(job),
        submit_callback=lambda job: None,
        executor_error_callback=lambda e: pytest.fail(str(e)),
    )
    settings = SimpleNamespace(
        max_status_checks_per_second=10,
        seconds_between_status_checks=0.02,
        jobname="{jobid}",
        jobscript=None,
        immediate_submit=False,
    )
    workflow = SimpleNamespace(
        remote_execution_settings=settings,
        storage_settings=SimpleNamespace(shared_fs_usage=frozenset()),
        deployment_settings=SimpleNamespace(deployment_method={DeploymentMethod.APPTAINER}),
        executor_settings=ExecutorSettings(project="genomes"),
        executor_plugin=SimpleNamespace(common_settings=common_settings),
        spawned_job_args_factory=SimpleNamespace(envvars=lambda: {"TOKEN": "t"}),
        main_snakefile=str(folder / "Snakefile"),
        dag=SimpleNamespace(get_sources=lambda: {"Snakefile"}),
        configfiles=[],
        overwrite_configfiles=[],
        scheduler=scheduler,
    )
    log = SimpleNamespace(info=lambda _: None, warning=lambda _: None, error=lambda _: None, debug=lambda _: None)
    with ExitStack() as stack:
        stack.enter_context(played.listening())
        executor = Stripped(workflow, log)  # type: ignore[arg-type]
        executor.next_seconds_between_status_checks = 0.02
        made.append(Run(played, executor))
        yield made[0]
        executor.shutdown()


def test_a_rule_runs_elsewhere_and_its_results_land_here(run: Run) -> None:
    Path("in").mkdir()
    Path("in/a").write_text("read\n")
    script = "cat Snakefile in/a > out/a; echo $TOKEN > logs/a; mkdir out/d; echo 1 > out/d/x; echo told >&2"
    rule = Rule(1, f"mkdir out logs; {script}", [File("in/a")], [File("out/a"), File("out/d")], [File("logs/a")])
    run.executor.run_jobs([rule])
    run.wait_for([rule])
    assert run.done == [rule]
    assert Path("out/a").read_text() == "# sources\nread\n"
    assert Path("out/d/x").read_text() == "1\n"
    assert Path("logs/a").read_text() == "t\n"
    assert Path(".snakemake/spotsurfer_logs/r1.log").read_text() == "told\n"
    (job,) = run.played.jobs.values()
    assert job["spec"]["project"] == "genomes"
    assert job["spec"]["tags"] | {"workflow": ""} == {
        "workflow": "",
        "rule": "r1",
        "wildcards": "sample=1",
        "input_bytes": "5",
    }


def test_a_rule_that_fails_is_told_of_with_its_last_words(run: Run) -> None:
    rule = Rule(1, "echo why >&2; exit 3", output=[File("a")])
    run.executor.run_jobs([rule])
    run.wait_for([rule])
    assert run.failed == [rule] and "exit code 3" in rule.errors[0]
    assert Path(".snakemake/spotsurfer_logs/r1.log").read_text() == "why\n"


def test_a_rule_that_can_not_be_carried_fails_alone(run: Run) -> None:
    good, bad = Rule(1, "echo 1 > a", output=[File("a")]), Rule(2, "true", [File("/etc/hostname")])
    run.executor.run_jobs([bad, good])
    run.wait_for([good, bad])
    assert (run.done, run.failed) == ([good], [bad])
    assert "lies outside" in bad.errors[0]


def test_hundreds_of_jobs_take_few_requests(run: Run) -> None:
    run.played.runs = False
    run.executor.run_jobs([Rule(i, "true") for i in range(300)])
    assert run.played.requests.count("POST /v1/jobs") == 1
    before = len(run.played.requests)
    looks = sum("brief" in x for x in run.played.requests)
    run.wait(lambda: sum("brief" in x for x in run.played.requests) > looks + 1)
    assert all("brief" in x for x in run.played.requests[before:]), "a look is one request for all"
    run.executor.cancel()


@pytest.mark.parametrize("what", ["POST ids", "POST homes", "PUT homes", "POST jobs"])
def test_a_lost_answer_makes_no_second_job(run: Run, what: str) -> None:
    run.played.lost = {what: 1}
    rules = [Rule(i, f"echo {i} >> o{i}", output=[File(f"o{i}")]) for i in range(3)]
    run.executor.run_jobs(rules)
    run.wait_for(rules)
    assert len(run.played.jobs) == len(run.done) == 3
    assert [Path(f"o{i}").read_text() for i in range(3)] == ["0\n", "1\n", "2\n"]


def test_answers_to_looks_and_fetches_that_are_lost_fail_no_rule(run: Run) -> None:
    run.played.lost = {"GET brief": 2, "GET jobs": 3}
    rule = Rule(1, "echo 1 > a", output=[File("a")])
    run.executor.run_jobs([rule])
    run.wait_for([rule])
    assert run.done == [rule] and Path("a").read_text() == "1\n"
    assert run.played.lost["GET jobs"] == 0


def test_a_controller_that_is_away_is_waited_for(tmp_path: Path, run: Run) -> None:
    """It goes while a rule runs, and comes back after that has ended and another one was submitted."""
    first, second = Rule(1, "sleep 0.2; echo 1 > a", output=[File("a")]), Rule(2, "echo 2 > b", output=[File("b")])
    run.executor.run_jobs([first])
    run.played.socket.rename(tmp_path / "away")
    later = threading.Thread(target=run.executor.run_jobs, args=([second],))
    later.start()
    time.sleep(0.4)
    assert not run.done and not run.failed
    (tmp_path / "away").rename(run.played.socket)
    later.join()
    run.wait_for([first, second])
    assert len(run.done) == 2


def test_cancelling_ends_all_that_was_submitted(run: Run) -> None:
    """Also what a look has just taken out of the list of active jobs."""
    run.played.runs = False
    run.executor.run_jobs([Rule(i, "true") for i in range(5)])
    run.executor.cancel_jobs([])
    assert [j["state"] for j in run.played.jobs.values()] == ["cancelled"] * 5
    late = Rule(9, "true")
    run.executor.run_jobs([late])
    assert len(run.played.jobs) == 5


def test_a_rule_with_a_container_runs_its_own_command_in_there(run: Run) -> None:
    touched = Touched("out/t")
    rule = Rule(1, "echo 1 > out/a", output=[File("out/a"), touched], image="docker://bwa")
    run.executor.run_jobs([rule])
    run.wait_for([rule])
    assert run.done == [rule] and Path("out/a").read_text() == "1\n" and Path("out/t").exists()
    (job,) = run.played.jobs.values()
    assert job["spec"]["image"] == "docker://bwa"
    rule = Rule(2, "true", image="docker://bwa")
    rule.is_shell = False
    run.executor.run_jobs([rule])
    assert "more than a shell command" in rule.errors[0]
