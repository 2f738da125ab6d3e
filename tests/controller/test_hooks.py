"""What `on_end` is given is what the configuration file says."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from support.builders import NOW, a_job

from spotsurfer.cli.commands import init
from spotsurfer.controller.jobs.end_hooks import Hooks
from spotsurfer.model.job import JobState
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state.db import open_database


def test_its_environment_is_what_the_configuration_tells(tmp_path: Path) -> None:
    engine = open_database(None)
    hooks = Hooks(engine, ManualClock(NOW), ["sh", "-c", f"env > {tmp_path}/env"])
    with engine.begin() as connection:
        start = hooks.on_end(connection, a_job(state=JobState.HELD, reason="over its budget"))
    assert start is not None
    start()
    for thread in threading.enumerate():
        if thread.name.startswith("hook-"):
            thread.join(30)
    given = dict(
        line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if line.startswith("SPOTSURFER_JOB")
    )
    assert set(given) == set(re.findall(r"SPOTSURFER_JOB[A-Z_]*", init.CONFIG.read_text()))
    assert given["SPOTSURFER_JOB_STATE"] == "held"
    assert given["SPOTSURFER_JOB_EXIT_CODE"] == ""
