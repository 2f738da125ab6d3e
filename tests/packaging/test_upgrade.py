"""A data folder of an earlier release goes on with this one: its database, its store, a job that runs meanwhile.

`recorded` is what a controller 0.1.0 left when it was stopped under a running job: its database as SQL, its key, and of its
store what a controller reads (not the chunks of its checkpoints).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from spotsurfer_wire import manifest
from support.fleet import CONFIG, fleet
from support.tree import ROOT

import spotsurfer
from spotsurfer.config.settings import Settings
from spotsurfer.controller import wiring
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database
from spotsurfer.state.schema import metadata
from spotsurfer.store import master_key

RECORDED = Path(__file__).with_name("recorded")
FAMILY, JOB, NEWEST = "913894f39bd5", "chain-115fc1", "000001-000002"
OLD_COMMIT = "a7cc201e20093e8664c19a3bbc95c15b63895876"
OLD_VERSION = "0.1.0"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The recorded data folder, as it was."""
    folder = tmp_path / "data"
    folder.mkdir()
    with sqlite3.connect(folder / "state.db") as database:
        database.executescript((RECORDED / "state.sql").read_text())
    database.close()
    shutil.copytree(RECORDED / "store", folder / "store")
    shutil.copy(RECORDED / "store.key", folder)
    (folder / "store.key").chmod(0o600)
    return folder


@pytest.fixture
def controller(data: Path) -> Iterator[wiring.Controller]:
    """Today's, started on it."""
    made = wiring.build(Settings(controller={"data_dir": str(data)}))  # type: ignore[arg-type]
    yield made
    made.stop()


def test_its_database_is_migrated(data: Path) -> None:
    with open_database(data / "state.db").connect() as c:
        assert compare_metadata(MigrationContext.configure(c), metadata) == []
        assert [job.id for job in rows.open_jobs(c)] == [JOB]


def test_the_store_is_its_own_and_an_older_controller_has_no_say_any_more(controller: wiring.Controller) -> None:
    info = controller.service.info()
    assert (info.family, info.generation) == (FAMILY, 2)


def test_its_job_is_known_with_all_that_it_did(controller: wiring.Controller) -> None:
    found = controller.service.job("chain")
    assert (found.job.id, found.job.state.value) == (JOB, "active")
    assert [(a.attempt.number, a.attempt.state.value) for a in found.attempts] == [(1, "running")]
    assert (found.checkpoint, list(found.checkpoints)) == (NEWEST, ["000001-000001", NEWEST])
    assert controller.service.log(JOB, "out", 0, 100).startswith(b"0 227927e0e2ee851b")
    assert [m.kind for _, m in controller.service.timeline(JOB)].count("saved") == 2


def test_its_checkpoints_are_read(data: Path) -> None:
    keys = master_key.load(data / "store.key").keys_of(JOB)
    for checkpoint in ("000001-000001", NEWEST):
        body = (data / "store" / "jobs" / JOB / "checkpoints" / checkpoint / "MANIFEST").read_bytes()
        assert manifest.decode(body, keys, JOB, checkpoint).id == checkpoint


@pytest.fixture(scope="module")
def old_release() -> dict[str, str]:
    """The environment in which this Python runs the controller of the old release, with its own agent's runtime.

    The sources come from the history of this repository; packages of the runtime from the caches of the present one.
    """
    folder = ROOT / "build" / "releases" / OLD_VERSION
    if not folder.is_dir():
        fresh = folder.with_name(f".{OLD_VERSION}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        sources = subprocess.run(["git", "-C", str(ROOT), "archive", OLD_COMMIT], capture_output=True, check=False)
        if sources.returncode != 0:
            pytest.skip(f"the history of {OLD_VERSION} is not here: {sources.stderr.decode().strip()}")
        (fresh / "sources").mkdir()
        subprocess.run(["tar", "-x", "-C", str(fresh / "sources")], input=sources.stdout, check=True)
        # Installed, because policies and providers are found by the entry points of what is installed.
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
        subprocess.run([*install, str(fresh / "site"), str(fresh / "sources")], check=True)
        runtime = fresh / "runtime"
        runtime.mkdir()
        for cache in ("debs", "wheels"):
            shutil.copytree(ROOT / "build" / "runtime" / cache, runtime / cache, copy_function=os.link)
        command = [sys.executable, "-m", "spotsurfer.runtime", "--out", str(runtime), "build", "--unpack"]
        subprocess.run(command, env=_environment(fresh), cwd=fresh, check=True)
        fresh.rename(folder)
    return _environment(folder)


def _environment(folder: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(folder / "site"), "SPOTSURFER_RUNTIME__PATH": str(folder / "runtime")}
    return {**os.environ, "PYTHONSAFEPATH": "1", **own}


@pytest.mark.slow  # not `real`: it is skipped where the history is missing
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_running_job_goes_on_and_moves_to_a_machine_with_the_new_agent(tmp_path: Path, old_release: dict[str, str]) -> None:
    config = CONFIG.replace('runtimes = "{runtimes}"\n', "")  # 0.1.0 does not know that key
    with fleet(tmp_path, config=config, environment=old_release) as world:
        assert world.client.get("/v1/info")["version"] == OLD_VERSION
        job = world.submit(600)
        world.wait_state(job, "running", 1)
        world.wait(lambda: world.moments(job, "saved"), "a checkpoint of the old agent")
        assert world.controller is not None
        world.controller.terminate()
        assert world.controller.wait(30) == 0
        world.environment = None
        world.start()
        assert world.client.get("/v1/info")["version"] == spotsurfer.__version__
        printed = len(world.output(job).splitlines())
        world.wait_line(job, printed + 20)
        assert world.attempt(job, "running", 1), "the old agent goes on with it"
        world.client.post(f"/v1/jobs/{job}/move", {})
        world.wait_state(job, "running", 2)
        ended = world.wait_end(job)
        assert ended["state"] == "succeeded", world.explain()
        assert _agents(world.data, job) == {1: OLD_VERSION, 2: spotsurfer.__version__}
        world.assert_identical(job)
        world.assert_one_owner(job)


def _agents(data: Path, job: str) -> dict[int, str]:
    """Attempt -> version of its agent, as its last report said."""
    with sqlite3.connect(data / "state.db") as database:
        rows = database.execute("SELECT attempt, json_extract(doc, '$.agent_version') FROM usage WHERE job = ?", [job])
        found = dict(rows.fetchall())
    database.close()
    return found
