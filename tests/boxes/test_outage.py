"""The store fails for longer than any machine may be silent, while controllers restart: no machine that is well is ended.

In virtual time with ten thousand seeds: tests/simulation/test_outages.py. Here with real jobs, agents and controllers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import MARKS, SHORT_LEASE, Fleet, fleet
from support.tree import ROOT

pytestmark = [*MARKS, pytest.mark.timeout(600)]
SECONDS = 25  # of each outage: three times as long as a machine may say nothing


class Outage:
    """What happens to the store, of the controller and of all boxes."""

    def __init__(self, folder: Path) -> None:
        text = (ROOT / "tests/support/outage/failing_store.py").read_text()
        (folder / "sitecustomize.py").write_text(text.replace("@folder@", str(folder)))
        self._mode = folder / "mode"
        self.environment = {**os.environ, "PYTHONPATH": str(folder)}

    def begins(self, mode: str) -> None:
        self._mode.write_text(mode)

    def ends(self) -> None:
        self._mode.unlink()


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    return Outage(tmp_path)


@pytest.fixture
def world(tmp_path: Path, outage: Outage) -> Iterator[Fleet]:
    with fleet(tmp_path / "fleet", config=SHORT_LEASE, environment=outage.environment) as made:
        yield made


def restarted(world: Fleet, until: float) -> None:
    """As a service manager does it: a controller that can't begin is started again."""
    world.kill_controller()
    while True:
        try:
            world.start()
        except AssertionError:  # it ended: the store takes nothing
            assert time.monotonic() < until + 60
            time.sleep(1)
        else:
            return


def test_a_store_that_fails_for_long_ends_no_machine(world: Fleet, outage: Outage) -> None:
    jobs = [world.submit(1000, 0.1) for _ in range(2)]
    for job in jobs:
        world.wait(lambda: world.moments(job, "saved"), "a checkpoint")  # noqa: B023 -- called at once
    machines = sorted(manual_control.living(world.data))
    assert len(machines) == 2
    for mode in ("some", "writes", "reads"):
        until = time.monotonic() + SECONDS
        outage.begins(mode)
        time.sleep(SECONDS / 2)
        if mode == "some":
            restarted(world, until)
        else:
            world.kill_controller()
            with pytest.raises(AssertionError):
                world.start()
        while time.monotonic() < until:
            assert sorted(manual_control.living(world.data)) == machines, mode
            time.sleep(0.2)
        outage.ends()
        if mode != "some":
            restarted(world, until)
        world.wait(lambda: all(world.attempt(job, "running", 1) for job in jobs), f"both as before, after {mode}", 30)
        assert sorted(manual_control.living(world.data)) == machines, mode
    for job in jobs:
        ended = world.wait_end(job)
        assert [a["number"] for a in ended["attempts"]] == [1]
        world.assert_identical(job)
        world.assert_one_owner(job)
