"""What a list of jobs asks the database: as much for many jobs as for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event
from support.builders import a_job, an_attempt

from spotsurfer.config.settings import Settings
from spotsurfer.controller import wiring
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobId, JobPort
from spotsurfer.state import exposed_ports
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[wiring.Controller]:
    made = wiring.build(Settings(controller={"data_dir": str(tmp_path / "data")}))  # type: ignore[arg-type]
    yield made
    made.stop()


def test_statements_do_not_grow_with_jobs(
    controller: wiring.Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller.service, "heads", None)  # nor is the store asked
    engine = open_database(tmp_path / "data" / "state.db")
    said: list[str] = []
    event.listen(controller.service.engine, "before_cursor_execute", lambda *a: said.append(a[2]))
    made = 0

    def statements(jobs: int) -> int:
        nonlocal made
        with engine.begin() as c:
            while made < jobs:
                made += 1
                job = JobId(f"job-{made}")
                rows.add_job(c, a_job({"ports": (JobPort("web", 80),)}, id=job))
                rows.add_attempt(c, an_attempt(1, A.RUNNING, job=job, token=f"token-{made}"))
                exposed_ports.give(c, job, "web", 20500 + made)
        said.clear()
        listed = controller.service.jobs()
        assert {s.job.id: [p.address for p in s.ports] for s in listed} == {
            f"job-{n}": [f"127.0.0.1:{20500 + n}"] for n in range(1, jobs + 1)
        }
        return len(said)

    assert statements(1) == statements(40)
