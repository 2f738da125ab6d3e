"""A warm move stops the job for a fraction of what a cold one does, and changes nothing in what it prints.

Both jobs are the same, on machines behind the same slow link, and have no checkpoint when the move is asked for. The cold move
(nobody waits, nobody fetches ahead) sends and fetches everything while the job stands still; the warm one does that before.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import CONFIG, MARKS, PROGRAM, Fleet, fleet

pytestmark = MARKS
MEGABYTES = 200
LINK = 200_000_000  # bits a second: 8 s for the whole job
STEPS = 900
# Memory that does not shrink, and the time of each step on standard error: what the job itself saw of its pause.
LARGE = PROGRAM.replace("os.urandom(1 << 20) * 24", f"os.urandom({MEGABYTES} << 20)").replace(
    "    time.sleep(pause)", "    print(time.time(), file=sys.stderr, flush=True)\n    time.sleep(pause)"
)


def settings(patience: float) -> str:
    linked = CONFIG.replace("[provider.local]", f"[provider.local]\nlink_bits_per_second = {LINK}\nnotice_seconds = 60")
    return linked.replace("[limits]", f"[limits]\nwarm_wait_seconds = {patience}")


def longest_gap(world: Fleet, job: str) -> float:
    """Seconds between two steps of the job, by the host's clock, which all boxes share."""
    text = world.client.data(f"/v1/jobs/{job}/log/err", offset=0, limit=1 << 20).decode()
    times = [float(x) for x in text.split()]
    return max(b - a for a, b in pairwise(times))


def moved(world: Fleet) -> tuple[float, float]:
    """One move in the middle of a job: the pause that is told, and the one that the job saw."""
    job = world.submit(STEPS, text=LARGE)
    world.wait_line(job, 20)
    world.client.post(f"/v1/jobs/{job}/move", {})
    ended = world.wait_end(job, 180)
    assert ended["moves"] == 1
    world.assert_identical(job)
    world.assert_one_owner(job)
    return ended["attempts"][1]["pause_seconds"], longest_gap(world, job)


@pytest.fixture(scope="module")
def pauses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, float]]:
    """Told and seen, by kind of move. Live checkpoints are made only where the move wants one."""
    found = {}
    for kind, patience in (("warm", 60), ("cold", 0)):
        with fleet(tmp_path_factory.mktemp(kind), 600, settings(patience)) as world:
            found[kind] = moved(world)
    print(f"a move of {MEGABYTES} MB behind {LINK / 1e6:.0f} Mbit/s, pause told and seen: {found}")
    return found


def test_a_warm_move_stops_the_job_for_a_fraction_of_a_cold_one(pauses: dict[str, tuple[float, float]]) -> None:
    assert pauses["warm"][1] < 0.5 * pauses["cold"][1]


def test_the_pause_that_is_told_is_the_one_that_the_job_saw(pauses: dict[str, tuple[float, float]]) -> None:
    for told, seen in pauses.values():
        assert abs(told - seen) < 1.0 + 0.2 * seen


def test_a_reclaim_whose_replacement_came_in_time_is_warm_too(tmp_path: Path) -> None:
    """The job runs on after the notice, until the next machine holds its newest checkpoint."""
    with fleet(tmp_path, 5, settings(60)) as world:
        job = world.submit(STEPS, text=LARGE)
        world.wait(lambda: world.moments(job, "saved"), "a checkpoint, and so a forecast", 60)
        manual_control.reclaim(world.data, world.box(job, 1), 60)
        ended = world.wait_end(job, 180)
        assert ended["moves"] == 1
        world.assert_identical(job)
        assert [m["data"]["verdict"] for m in world.moments(job, "fit")][:1] == ["fits"]
        notice = next(i for i, m in enumerate(world.moments(job)) if m["kind"] == "notice")
        after = [m for m in world.moments(job)[notice:] if m["kind"] == "attempt"]
        entered = [(m["attempt"], m["data"]["to"]) for m in after]
        assert entered.index((2, "ready")) < entered.index((1, "draining")), "it waited for the next machine"
