"""The courier is killed between any two steps, cut off at any request, meets a full disk: nothing is lost or done twice."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.home_world import HomeWorld, shown

from spotsurfer.home import at_home, awaited, courier, deliver, expect
from spotsurfer.home.book import Book
from spotsurfer.home.courier import lock_name, run
from spotsurfer.home.deliver import Pass
from spotsurfer.home.logs import expanded
from spotsurfer.model.errors import NoController
from spotsurfer.model.job import JobSpec

KILLED = 9
# Whatever changes a file or the book: a kill before and after each of them is a kill between any two of them.
STEPS = [
    (Path, "rename"), (Path, "unlink"), (Path, "symlink_to"), (Path, "mkdir"), (Path, "chmod"), (Path, "rmdir"),
    (os, "utime"), (os, "pwrite"), (os, "truncate"), (Book, "came"), (Book, "place"), (Book, "printed"),
]  # fmt: skip


def work(folder: Path) -> None:
    (folder / "data").write_text("changed")
    (folder / "gone").unlink()
    (folder / "out").mkdir()
    (folder / "out/a").write_text("a" * 1000)
    (folder / "out/link").symlink_to("a")
    (folder / "data").touch()
    (folder / "steps").write_text("printed by the work itself")  # nothing else came to it, as with submitit's `srun --output`


def made(path: Path) -> HomeWorld:
    path.mkdir()
    world = HomeWorld(path)
    (world.home / "data").write_text("sent")
    (world.home / "gone").write_text("sent")
    world.submit("j1", stdout=f"{world.home}/log-{{number:3}}", stderr=f"{world.home}/steps")
    world.print("j1", "out", "line 1\n")
    deliver(world.client, book=world.book())
    world.print("j1", "out", "line 2\n")
    world.run("j1", work)
    world.jobs["j1"]["attempts"] = [{"granted_at": "t"}] * 2  # it moved: its whole output is written once more
    return world


@contextmanager
def killed_at(number: int, *, after: bool) -> Iterator[None]:
    """The process ends at once at that step."""
    count, kept = [0], [(owner, name, getattr(owner, name)) for owner, name in STEPS]

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == number and not after:
                os._exit(KILLED)
            answer = call(*given, **named)
            if count[0] == number:
                os._exit(KILLED)
            return answer

        return step

    for owner, name, call in kept:
        setattr(owner, name, wrapped(call))
    try:
        yield
    finally:
        for owner, name, call in kept:
            setattr(owner, name, call)


def in_a_child(world: HomeWorld, number: int, *, after: bool) -> bool:
    """Whether a delivery that is to be killed at that step came so far."""
    pid = os.fork()
    if pid == 0:
        try:
            with killed_at(number, after=after):
                deliver(world.client, book=world.book())
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == KILLED


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_courier_killed_at_any_step_loses_nothing(tmp_path: Path, after: bool) -> None:
    straight = made(tmp_path / "straight")
    deliver(straight.client, book=straight.book())
    wanted = shown(straight.home)
    assert wanted["log-007"] == ("line 1\nline 2\n", 0o644)
    assert wanted["out/a"] == ("a" * 1000, 0o644)
    assert wanted["steps"] == ("printed by the work itself", 0o644)
    world, kills = made(tmp_path / "killed"), 0
    fresh = tmp_path / "fresh"
    shutil.copytree(world.path, fresh, symlinks=True)
    while in_a_child(world, kills + 1, after=after):
        kills += 1
        done = deliver(world.client, book=world.book())
        assert done.troubles == {}
        assert at_home("j1", world.book())
        assert shown(world.home) == wanted, f"after a kill at step {kills}"
        assert world.book().jobs(["j1"])[0].told == []
        shutil.rmtree(world.path)
        shutil.copytree(fresh, world.path, symlinks=True)
    assert kills > 15


def test_a_connection_cut_at_any_request_costs_only_time(tmp_path: Path) -> None:
    world, cuts = made(tmp_path / "w"), 0
    asked: list[str] = []

    def cut(what: str) -> None:
        asked.append(what)
        if len(asked) == cuts + 1:
            raise NoController("cut")

    world.before = cut
    while not at_home("j1", world.book()):
        asked.clear()
        try:
            deliver(world.client, book=world.book())
        except NoController:
            cuts += 1
            continue
    assert cuts > 4
    assert shown(world.home)["out/a"] == ("a" * 1000, 0o644)


def test_a_full_disk_is_told_and_the_delivery_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = made(tmp_path / "w")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        done = deliver(world.client, book=world.book())
    assert "No space left" in done.troubles["j1"]
    assert not at_home("j1", world.book())
    assert [x.name for x in world.home.iterdir() if x.name.startswith(".")] == []
    assert deliver(world.client, book=world.book()).troubles == {}
    assert shown(world.home)["data"] == ("changed", 0o644)


def test_what_its_user_did_with_a_file_that_came_stays_done(tmp_path: Path) -> None:
    world = made(tmp_path / "w")
    seen: list[str] = []

    def late(what: str) -> None:
        seen.append(what)
        if what.startswith("half of"):
            raise NoController("cut")

    world.before = late
    with pytest.raises(NoController):
        deliver(world.client, book=world.book())
    world.before = lambda _: None
    world.book().place("j1", ["data"])
    (world.home / "data").write_text("edited after it came")
    deliver(world.client, book=world.book())
    assert (world.home / "data").read_text() == "edited after it came"
    assert not (world.home / "data.from-j1").exists()


def test_one_courier_runs_and_it_ends_when_nothing_is_awaited(tmp_path: Path) -> None:
    world = made(tmp_path / "w")
    world.jobs["j1"]["state"] = "active"
    pauses: list[float] = []
    seen: list[Pass] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert not run(world.client, world.book(), pause), "another one finds the lock taken"
        if len(pauses) == 6:
            world.jobs["j1"]["state"] = "succeeded"

    assert run(world.client, world.book(), pause, seen.append)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert [a.job for a in seen[-1].home] == ["j1"]
    with world.book().alone(lock_name(world.place)) as free:
        assert free


def test_a_controller_that_is_away_is_asked_with_growing_pauses(tmp_path: Path) -> None:
    world = made(tmp_path / "w")
    pauses: list[float] = []

    def away(_: str) -> None:
        raise NoController("away")

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            world.before = lambda _: None

    world.before = away
    assert run(world.client, world.book(), pause)
    assert pauses[:7] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert at_home("j1", world.book())


def test_it_ends_after_an_hour_in_which_all_that_is_left_failed(tmp_path: Path) -> None:
    world = made(tmp_path / "w")
    shutil.rmtree(world.home)
    pauses: list[float] = []
    assert run(world.client, world.book(), pauses.append)
    assert 3000 < sum(pauses) < 4000
    world.home.mkdir()
    assert not at_home("j1", world.book())
    deliver(world.client, book=world.book())
    assert at_home("j1", world.book())


def test_a_job_that_the_controller_does_not_know_is_not_awaited_for_ever(tmp_path: Path) -> None:
    world = made(tmp_path / "w")
    del world.jobs["j1"]
    (one,) = deliver(world.client, book=world.book()).home
    assert one.state == "lost"
    assert "does not know" in one.told[0]


def test_all_tasks_of_an_array_are_noted_with_their_own_output(tmp_path: Path) -> None:
    book = Book(tmp_path)
    world = made(tmp_path / "w")
    spec = JobSpec("many", ("x",), home="/h/w", stdout="/h/w/{name}-{number}_{task:2}.out", array="1-3")
    expect(world.client, [(spec, {"job": "many-1", "number": 12, "tasks": 3})], book=book, start=False)
    assert [(a.job, a.stdout) for a in book.open("played")] == [(f"many-1-{n}", f"/h/w/many-12_0{n}.out") for n in (1, 2, 3)]
    assert awaited(book) == {"many-1-1", "many-1-2", "many-1-3"}
    expect(world.client, [(JobSpec("none", ("x",)), {"job": "none", "number": 1})], book=book, start=False)
    assert len(book.open()) == 3


def test_a_name_with_a_slash_makes_no_folder() -> None:
    assert expanded("/w/{name}.out", {"name": "../a/b", "number": 1, "task": None, "job": "j"}) == "/w/.._a_b.out"


def test_a_submission_starts_a_courier_unless_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(courier.subprocess, "Popen", lambda words, **_: started.append(words))
    world = made(tmp_path / "w")
    spec = JobSpec("one", ("x",), home="/h/w")
    expect(world.client, [(spec, {"id": "one", "number": 1})], book=world.book())
    with world.book().alone(lock_name(world.place)):
        expect(world.client, [(spec, {"id": "two", "number": 2})], book=world.book())
    assert started == [[sys.executable, "-m", "spotsurfer.home"]]


def test_output_that_a_move_undid_is_put_right_at_the_end(tmp_path: Path) -> None:
    world = HomeWorld(tmp_path)
    world.submit("j1", stdout=f"{tmp_path}/out", stderr=f"{tmp_path}/err")
    for text in ("one\n", "two, which was undone\n"):
        world.print("j1", "out", text)
    deliver(world.client, book=world.book())
    assert (tmp_path / "out").read_text() == "one\ntwo, which was undone\n"
    world.logs["j1"] = [("out", b"one\n"), ("out", b"two\n"), ("err", b"warning\n")]
    world.run("j1", lambda _: None)
    world.jobs["j1"]["attempts"] = [{"granted_at": "then"}, {"granted_at": "later"}]
    deliver(world.client, book=world.book())
    assert (tmp_path / "out").read_text() == "one\ntwo\n"
    assert (tmp_path / "err").read_text() == "warning\n"


def test_output_is_added_to_what_a_file_held_if_its_user_wants_that(tmp_path: Path) -> None:
    world = HomeWorld(tmp_path)
    for job, append in (("j1", False), ("j2", True)):
        world.submit(job, stdout=f"{tmp_path}/out", output_append=append)
        world.print(job, "out", f"of {job}\n")
        world.run(job, lambda _: None)
        deliver(world.client, book=world.book())
    assert (tmp_path / "out").read_text() == "of j1\nof j2\n"
