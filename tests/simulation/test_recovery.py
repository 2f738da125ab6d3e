"""A lost data folder, in virtual time: the real backup, restore and adopt; jobs run on meanwhile, as they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation import test_rights as scenes
from simulation.chances import calm
from simulation.world import START, World
from sqlalchemy import Engine

from spotsurfer.config.settings import Settings
from spotsurfer.model.job import ENDED, JobId
from spotsurfer.recovery import backup
from spotsurfer.recovery.adopt import Least, adopt
from spotsurfer.recovery.backup import back_up
from spotsurfer.recovery.restore import restore
from spotsurfer.state.db import become, open_database
from spotsurfer.store import master_key

SECRET = "correct horse battery"


def quiet(what: str, at: int, of: int) -> None:
    """Nobody looks."""


class Fleet(World):
    """A world with its database and its store as files."""

    def states(self) -> dict[str, str]:
        return {str(j.id): str(j.state) for j in self._jobs()}

    def on_disk(self, folder: Path) -> None:
        """Its database and its store as files: in memory a commit takes no time."""
        (folder / "old" / "state.db").unlink(missing_ok=True)
        _copy(self.engine, disk := open_database(folder / "old" / "state.db"))
        disk.dispose()
        for key, (data, _) in self.store.data.items():
            path = folder / "store" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def use(self, database: Path) -> None:
        """Another controller begins, with this database."""
        self.engine = open_database(None)
        _copy(disk := open_database(database), self.engine)
        disk.dispose()
        self.ids = sorted(j.id for j in self._jobs())
        self.restart()


def _copy(from_: Engine, to: Engine) -> None:
    pair = [engine.raw_connection() for engine in (from_, to)]
    pair[0].driver_connection.backup(pair[1].driver_connection)  # type: ignore[union-attr]
    for connection in pair:
        connection.close()


def settings(folder: Path, data: str) -> Settings:
    store = {"url": (folder / "store").as_uri()}
    return Settings(controller={"data_dir": str(folder / data)}, store=store)  # type: ignore[arg-type]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Two jobs that run; its key is made."""
    monkeypatch.setattr(backup, "SCRYPT_LOG_N", 1)
    world = Fleet(1, jobs=2, work=120, chances=calm())
    with world.engine.begin() as c:
        become(c, "fam")
    (tmp_path / "old").mkdir()
    master_key.load(tmp_path / "old" / "store.key")
    world.until_running()
    return world


def backed_up(world: Fleet, folder: Path) -> None:
    world.on_disk(folder)
    back_up(settings(folder, "old"), folder / "backup", SECRET, START, quiet)


def restored(folder: Path) -> Settings:
    new = settings(folder, "new")
    restore(new, folder / "backup", SECRET, quiet)
    return new


def test_a_backup_from_the_middle_of_it_loses_no_running_job(fleet: Fleet, tmp_path: Path) -> None:
    """Since then each job moved: by the backup machines own them that are gone. `World.check` would see two owners."""
    backed_up(fleet, tmp_path)
    for job in fleet.ids:
        fleet.commands.move(job, None, None)
    fleet.until_running(2)
    fleet.run(limit=15)  # until their sources are gone
    ours, work = scenes.alive(fleet), scenes.done(fleet)
    restored(tmp_path)
    fleet.use(tmp_path / "new" / "state.db")
    fleet.run(limit=30)
    assert scenes.alive(fleet) == ours
    assert scenes.done(fleet) == work + 2 * 30
    assert fleet.run(limit=900) == "ok"
    assert set(fleet.states().values()) == {"succeeded"}
    fleet.check_end()


def test_jobs_that_came_after_the_backup_are_adopted(fleet: Fleet, tmp_path: Path) -> None:
    backed_up(fleet, tmp_path)
    fleet.submit()
    fleet.until_running()
    ours, work = scenes.alive(fleet), scenes.done(fleet)
    fleet.on_disk(tmp_path)
    done = adopt(restored(tmp_path), Least(), fleet.clock.now(), quiet)
    assert ([j.id for j in done.jobs], done.unread) == (["job-2"], {})
    fleet.use(tmp_path / "new" / "state.db")
    fleet.run(limit=30)
    assert scenes.alive(fleet) == ours
    assert scenes.done(fleet) == work + 3 * 30
    assert fleet.loop.last_error == ""
    assert fleet.run(limit=900) == "ok"
    fleet.check_end()


def test_without_any_database_what_runs_goes_on_and_nothing_is_bought_unasked(fleet: Fleet, tmp_path: Path) -> None:
    """Of five jobs two have ended, two run, one is suspended."""
    assert fleet.run(limit=1000) == "ok"
    for _ in range(3):
        fleet.submit()
    fleet.ids = fleet.ids[2:]
    fleet.until_running()
    fleet.commands.hold(JobId("job-4"))
    while len(scenes.alive(fleet)) > 2:
        fleet.run(limit=1)
    ours, work, launches = scenes.alive(fleet), scenes.done(fleet), fleet.cloud.launches
    fleet.on_disk(tmp_path)
    (tmp_path / "new").mkdir()
    (tmp_path / "old" / "store.key").rename(tmp_path / "new" / "store.key")
    done = adopt(settings(tmp_path, "new"), Least(), fleet.clock.now(), quiet)
    assert done.family == "fam"
    assert {j.id: "ended" if j.state in ENDED else str(j.wish) for j in done.jobs} == {
        **dict.fromkeys(["job-0", "job-1"], "ended"),
        **dict.fromkeys(["job-2", "job-3"], "run"),
        "job-4": "hold",
    }
    fleet.use(tmp_path / "new" / "state.db")
    fleet.run(limit=30)
    assert (scenes.alive(fleet), scenes.done(fleet), fleet.cloud.launches) == (ours, work + 2 * 30, launches)
    assert fleet.states()["job-4"] == "held"
    fleet.commands.resume(JobId("job-4"))
    assert fleet.run(limit=1500) == "ok"
    assert set(fleet.states().values()) == {"succeeded"}
    fleet.check_end()
