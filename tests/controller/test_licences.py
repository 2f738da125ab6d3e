"""Pools of licences: commands that count them, with bounded time and output; who has them; which jobs are refused."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.builders import NOW, a_head, a_job, a_snapshot, an_agent, an_attempt, seen

from spotsurfer.config.settings import load_settings
from spotsurfer.controller.jobs.licences import LicencePools, NoNumber, number_of
from spotsurfer.model.errors import ConfigError, JobFileError
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobId, JobSpec, JobState
from spotsurfer.model.licences import LicencePool, LicenceRule, LicenceUse
from spotsurfer.model.snapshot import JobSeen, Snapshot
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database


def job(name: str, owner: str, vcs: int, *states: A) -> JobSeen:
    own = [replace(an_attempt(n, state), job=JobId(name)) for n, state in enumerate(states, 1)]
    state = JobState.ACTIVE if own else JobState.QUEUED
    row = a_job({"licences": {"vcs": vcs}}, id=JobId(name), owner=owner, state=state)
    return seen(own, a_head() if own else seen().head, agents={a.number: an_agent() for a in own}, job=row)


class Desk:
    def __init__(self, *rules: LicenceRule, snapshot: Snapshot | None = None) -> None:
        self.engine, self.clock, self.pokes = open_database(None), ManualClock(NOW), 0
        self.pools = LicencePools(self.engine, self.clock, lambda: snapshot, self.poke, rules)

    def poke(self) -> None:
        self.pokes += 1

    def look(self, after: float = 0.0) -> LicencePool:
        self.clock.advance(after)
        self.pools.look()
        return self.pool()

    def pool(self) -> LicencePool:
        return self.pools.seen(self.clock.now())["vcs"]

    def told(self) -> list[str]:
        with self.engine.connect() as c:
            return [m.text for _, m in timeline.read(c, None, 0) if m.kind == "alert"]


def test_a_number_of_the_configuration() -> None:
    assert Desk(LicenceRule("vcs", 4, reserve=1)).pool() == LicencePool("vcs", 3)
    assert Desk(LicenceRule("vcs", 4, reserve=9)).pool().total == 0


def test_a_command_is_asked_now_and_then_and_its_last_number_lasts_a_while(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("7\n")
    desk = Desk(LicenceRule("vcs", None, ("cat", str(number)), every_seconds=60, keep_seconds=100, reserve=2))
    assert desk.pool() == LicencePool("vcs", 0, "they were not counted yet")
    assert desk.look() == LicencePool("vcs", 5)
    number.write_text("3")
    assert desk.look(59).total == 5
    assert desk.look(2).total == 1
    assert desk.pokes == 2, "what waits is looked at once the number changes"
    number.unlink()
    assert desk.look(61) == LicencePool("vcs", 1), "the last number counts for a while"
    assert desk.look(61) == LicencePool("vcs", 1)
    gone = desk.look(61)
    assert (gone.total, gone.why) == (0, "they can't be counted: cat ended with exit code 1")
    assert desk.told() == ["the licences vcs can't be counted: cat ended with exit code 1; the last number counts for a while"]
    assert desk.pools.licences()[0].trouble == gone.why
    number.write_text("9")
    assert desk.look(61) == LicencePool("vcs", 7)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["sh", "-c", "echo 4 of 5"], "printed '4 of 5', expected a whole number"),
        (["echo", "-3"], "printed '-3'"),
        (["true"], "printed ''"),
        (["echo", "99999999999"], "printed '99999999999'"),
        (["yes"], "printed more than 4096 bytes"),
        (["/no/such/program"], "can't be run: "),
        (["sh", "-c", "sleep 60 & sleep 60"], "took longer than 0.3 s"),
        (["sh", "-c", "sleep 60 & echo 4"], "took longer than 0.3 s"),
    ],
)
def test_what_is_no_number(command: list[str], why: str) -> None:
    began = time.monotonic()
    with pytest.raises(NoNumber) as e:
        number_of(command, 0.3)
    assert why in str(e.value)
    assert time.monotonic() - began < 5


def test_who_has_them_and_who_waits() -> None:
    runs, comes, waits, hers = job("runs", "ada", 1, A.RUNNING), job("comes", "ada", 2, A.BOOTING), job("waits", "bob", 2), None
    was = job("was", "bob", 1, A.RELEASED)
    desk = Desk(LicenceRule("vcs", 4), LicenceRule("route", 1), snapshot=a_snapshot(runs, comes, waits, was))
    vcs, route = desk.pools.licences()
    assert (vcs.used, vcs.total, vcs.waiting_jobs) == (3, 4, 2)
    assert set(vcs.held) == {LicenceUse(JobId("runs"), 1), LicenceUse(JobId("comes"), 2)}
    assert set(vcs.waiting) == {LicenceUse(JobId("waits"), 2), LicenceUse(JobId("was"), 1)}
    assert (route.used, route.held) == (0, [])
    hers = desk.pools.licences("bob")[0]
    assert (hers.used, hers.held, len(hers.waiting)) == (3, [], 2), "others' jobs are not named"


def test_a_kind_whose_pool_is_gone_is_told_while_jobs_name_it() -> None:
    """A reload took the pool: who has a licence keeps it, and who waits would wait in vain unseen."""
    world = a_snapshot(job("runs", "ada", 1, A.RUNNING), job("waits", "bob", 2))
    (told,) = Desk(snapshot=world).pools.licences()
    assert (told.kind, told.total, told.used, told.waiting_jobs) == ("vcs", 0, 1, 1)
    assert told.trouble == "there is no such pool in [licences] any more, so no job that needs one begins"
    assert Desk(LicenceRule("vcs", 4), snapshot=world).pools.licences()[0].trouble == ""


def test_what_could_never_begin_is_refused() -> None:
    pools = Desk(LicenceRule("vcs", 4, reserve=1), LicenceRule("route", None, ("true",))).pools
    pools.check(JobSpec("a", ("x",), licences={"vcs": 3, "route": 100}))
    with pytest.raises(JobFileError, match="Did you mean 'vcs'"):
        pools.check(JobSpec("a", ("x",), licences={"vcss": 1}))
    with pytest.raises(JobFileError, match="vcs = 4, and there are 3 for jobs"):
        pools.check(JobSpec("a", ("x",), licences={"vcs": 4}))


def configured(folder: Path, text: str) -> list[LicenceRule]:
    (folder / "c.toml").write_text(text)
    return [table.as_rule(kind) for kind, table in load_settings(folder / "c.toml").licences.items()]


def test_both_forms_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[licences]\nvcs = 4\n[licences.route]\ncommand = ["count"]\nevery_seconds = "2m"\nreserve = 1\n'
    vcs, route = configured(tmp_path, text)
    assert vcs == LicenceRule("vcs", 4)
    assert route == LicenceRule("route", None, ("count",), 120.0, 600.0, 1)
    monkeypatch.setenv("SPOTSURFER_LICENCES__VCS", "5")
    assert configured(tmp_path, text)[0].total == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[licences]\nvcs = -1", "greater than or equal to 0"),
        ('[licences]\nvcs = "many"', "expected a table"),
        ("[licences.vcs]\nreserve = 1", "one of them"),
        ('[licences.vcs]\ntotal = 1\ncommand = ["x"]', "one of them"),
        ("[licences.vcs]\ntotals = 1", "unknown key"),
        ('[licences."a b"]\ntotal = 1', "is the name 'a b'"),
    ],
)
def test_wrong_ones(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as e:
        configured(tmp_path, text)
    assert why in str(e.value)
