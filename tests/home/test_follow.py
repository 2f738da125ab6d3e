"""A job that waited for others finds in its folder what they made, as on a shared file system."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spotsurfer_wire.home_tree import FILE, FOLDER, GONE, HomeChange, HomeChanges, HomeEntry, HomeTree, followed
from support.home_world import OWNER, HomeWorld, shown

from spotsurfer.home import deliver
from spotsurfer.model.job import Attempt, AttemptNumber, AttemptState, Job, JobId, JobSpec, JobState, SharedMount
from spotsurfer.model.market import Market, Pool
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def file(path: str, sha256: str) -> HomeEntry:
    return HomeEntry(path, FILE, 0o644, 1, 1, sha256)


def test_changes_of_one_job_after_another() -> None:
    tree = HomeTree([HomeEntry("a", FOLDER, 0o755), file("a/x", "1"), file("b", "1")])
    first = HomeChanges([HomeChange(file("b", "2"), file("b", "1")), HomeChange(HomeEntry("a/x", GONE), file("a/x", "1"))])
    second = HomeChanges([HomeChange(file("b", "3"), file("b", "1")), HomeChange(file("n/y", "4")), HomeChange(file("c", "5"))])
    found = followed(followed(tree, first), second)
    assert [(e.path, e.sha256) for e in found.entries] == [("a", ""), ("b", "2"), ("c", "5")], "what came first stays"
    assert followed(tree, HomeChanges([HomeChange(HomeEntry("a", GONE), None)])).entries == [
        HomeEntry("a", FOLDER, 0o755), file("a/x", "1"), file("b", "1")
    ]  # fmt: skip


def row(world: HomeWorld, spec: JobSpec, *, ended: float | None, after: tuple[str, ...] = ()) -> Job:
    at = None if ended is None else NOW + timedelta(seconds=ended)
    state = JobState.QUEUED if at is None else JobState.SUCCEEDED
    spec = JobSpec(spec.name, spec.command, home=spec.home, home_tree=spec.home_tree, after=after)
    job = Job(JobId(spec.name), spec, state, 1, NOW, owner=OWNER, ended_at=at)
    with world.homes.engine.begin() as c:
        made = rows.add_job(c, job)
        pool = Pool("local", "r", "z", "t")
        attempt: Any = Attempt(
            job.id, AttemptNumber(1), AttemptState.RELEASED, NOW, pool, Market.SPOT, 1, 1, f"t-{job.id}", NOW
        )
        rows.add_attempt(c, attempt)
    return made


def test_it_begins_with_what_came_before_it_and_overwrites_it_at_home(tmp_path: Path) -> None:
    world = HomeWorld(tmp_path)
    world.homes.engine = open_database(None)
    (world.home / "in").write_text("in")
    specs = {job: world.submit(job) for job in ("first", "late", "next")}

    def make(folder: Path) -> None:
        (folder / "step1").write_text("of the first")
        (folder / "in").unlink()

    world.run("first", make)
    world.run("late", lambda folder: (folder / "early").write_text("ended before"))  # type: ignore[arg-type, return-value]
    row(world, specs["first"], ended=5)
    row(world, specs["late"], ended=-5)
    job = row(world, specs["next"], ended=None, after=("afterok:first",))
    world.homes.follow(job)
    world.homes.follow(job)  # after a crash

    def go_on(folder: Path) -> None:
        assert shown(folder) == {"step1": ("of the first", 0o644)}
        (folder / "step1").write_text("of the next")

    world.run("next", go_on)
    deliver(world.client, book=world.book())
    assert [a.told for a in world.book().jobs(["first", "next"])] == [[], []]
    assert shown(world.home) == {"step1": ("of the next", 0o644), "early": ("ended before", 0o644)}


def test_a_job_that_waited_for_none_begins_as_it_was_submitted(tmp_path: Path) -> None:
    world = HomeWorld(tmp_path)
    world.homes.follow(Job(JobId("x"), JobSpec("x", ("x",), home="/h/w"), JobState.QUEUED, 1, NOW, owner=OWNER))
    assert not any(key.endswith("/HOME") for key in world.store.objects)


def test_what_was_sent_of_a_folder_goes_when_nobody_works_there_any_more(tmp_path: Path) -> None:
    world = HomeWorld(tmp_path)
    world.homes.engine = open_database(None)
    (world.home / "in").write_text("in")
    spec = world.submit("old")
    row(world, spec, ended=0)
    stored = sum("/HOMES/" in key for key in world.store.objects)
    assert stored == 2
    world.store.modified = NOW.timestamp()
    world.homes.tidy(NOW + timedelta(days=6), timedelta(days=7))
    assert sum("/HOMES/" in key for key in world.store.objects) == stored
    row(world, JobSpec("other", ("x",), home=spec.home), ended=86400.0)
    world.homes.tidy(NOW + timedelta(days=8), timedelta(days=7))
    assert sum("/HOMES/" in key for key in world.store.objects) == stored, "another job ended there later"
    world.store.modified = (NOW + timedelta(days=5)).timestamp()
    world.homes.tidy(NOW + timedelta(days=9), timedelta(days=7))
    assert sum("/HOMES/" in key for key in world.store.objects) == stored, "somebody is sending it"
    world.homes.tidy(NOW + timedelta(days=13), timedelta(days=7))
    assert not any("/HOMES/" in key for key in world.store.objects)
    assert world.homes.home_lacks(spec.home, [spec.home_tree], OWNER) == [spec.home_tree]


def test_a_folder_that_machines_see_stays_where_it_is(tmp_path: Path) -> None:
    world = HomeWorld(tmp_path)
    (world.home / "in").write_text("in")
    world.homes.shared = (str(tmp_path),)
    assert world.submit("there").home_tree == ""
    world.homes.shared = (f"{world.home}2", "/elsewhere")
    mounted = world.submit("mounted", mounts=(SharedMount("m", "bind", str(tmp_path), str(tmp_path)),))
    assert (mounted.home_tree, world.sent) == ("", [])
    assert world.submit("sent").home_tree
