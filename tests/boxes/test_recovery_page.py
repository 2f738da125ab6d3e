"""docs/recovery.md, as it stands: its commands are run while jobs run, and each section brings back what it says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import fleet as fleets
from support.fleet import Fleet, fleet
from support.page_runs import Reader, reader
from support.tree import ROOT

pytestmark = [*fleets.MARKS, pytest.mark.timeout(900)]  # a dozen commands, each a new process
PAGE = ROOT / "docs" / "recovery.md"
STEPS = 2000
# Takes its time until it is told to hurry: how long an operator needs depends on the host.
PROGRAM = fleets.PROGRAM.replace("time.sleep(pause)", "os.path.exists('hurry') or time.sleep(pause)")


class Operator:
    """Follows the page on a host: its folders and service manager are those of the test."""

    def __init__(self, world: Fleet, person: Reader, folder: Path) -> None:
        self._world, self._person = world, person
        person.places = {
            "/mnt/backup": str(folder / "backup"),
            "/root": str(folder / "root"),
            "/var/lib/spotsurfer-controller": str(world.data),
            "/srv/spotsurfer": str(world.data / "store"),
        }
        person.acts = {"systemctl stop spotsurfer": self.stop, "systemctl start spotsurfer": world.start}
        for name in ("backup", "root"):
            (folder / name).mkdir()

    def follow(self, section: str) -> str:
        """Run the section's commands; what they printed."""
        return self._person.follow(PAGE, section)

    def stop(self) -> None:
        assert self._world.controller is not None
        if self._world.controller.poll() is None:
            self._world.kill_controller()

    def lose(self) -> None:
        """The controller dies, and what only its data folder has is gone. The store and the boxes lie there as well."""
        self.stop()
        for name in ("state.db", "state.db-wal", "state.db-shm", "store.key", "token"):
            (self._world.data / name).unlink(missing_ok=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "fleet", interval=2) as made:
        yield made


@pytest.fixture
def operator(world: Fleet, tmp_path: Path) -> Iterator[Operator]:
    with reader(tmp_path / "shell", tmp_path, SPOTSURFER_CONFIG=str(world.config)) as person:
        yield Operator(world, person, tmp_path)


def test_the_page_brings_back_what_it_says(world: Fleet, operator: Operator, tmp_path: Path) -> None:
    first = world.submit(STEPS, 1.0, text=PROGRAM)
    world.wait_state(first, "running", 1)
    operator.follow("Back up")
    shutil.copy(world.data / "store.key", tmp_path / "backup" / "store.key")
    second = world.submit(STEPS, 1.0, text=PROGRAM)
    world.wait_state(second, "running", 1)
    boxes = [world.box(job, 1) for job in (first, second)]
    for job in (first, second):
        world.wait(lambda job=job: world.moments(job, "saved"), f"a checkpoint of {job}")

    for section in ("Restore a backup", "Adopt a store"):
        operator.lose()
        assert second in operator.follow(section)
        for job, box in zip((first, second), boxes, strict=True):
            world.wait_state(job, "running", 1)
            assert world.box(job, 1) == box

    for box in boxes:
        Path(f"/proc/{world.job_pid(box)}/cwd/hurry").touch()
    for job in (first, second):
        assert world.wait_end(job)["state"] == "succeeded", world.explain()
        assert [a["number"] for a in world.show(job)["attempts"]] == [1]
        world.assert_identical(job)
        world.assert_one_owner(job)

    third = world.submit(STEPS, 1.0, text=PROGRAM)
    world.wait_state(third, "running", 1)
    world.wait(lambda: world.moments(third, "saved"), f"a checkpoint of {third}")
    operator.lose()
    said = operator.follow("No key is left")
    assert first in said and second in said
    assert re.search(rf"^{third} +held .*can't be read with this store\.key", said, re.MULTILINE), said
    world.wait(lambda: world.show(third)["state"] == "held", f"{third} to be held", 180.0)
    assert [a["number"] for a in world.show(third)["attempts"]] == [1], "no machine is bought for it"
    assert "can't be read with this store.key" in world.show(third)["reason"]
    for job in (first, second):
        assert world.show(job)["state"] == "succeeded"
        world.assert_identical(job)
