"""No evidence, no death: what only hinders the controller, or the store, ends no machine that is well."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from simulation.chances import calm
from simulation.objects import WRITES
from simulation.trouble import Trouble, first, mend
from simulation.world import LIMITS, World
from spotsurfer_wire import object_keys

from spotsurfer.core import decide
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobId
from spotsurfer.ports.provider import Listing


def running(jobs: int = 4) -> World:
    """Jobs that run, each on a machine of its own, in a world in which nothing goes wrong by itself."""
    world = World(1, jobs=jobs, work=100_000, chances=calm())
    world.until_running()
    return world


def machines(world: World) -> set[str]:
    return {m.id for m in world.cloud.machines.values() if m.gone_at is None}


def read_of_a_report(who: str, verb: str, key: str) -> bool:
    return (who, verb) == ("controller", "get") and key.startswith(object_keys.live_prefix())


@pytest.mark.parametrize("fault", [first(Trouble(read_of_a_report)), Trouble(read_of_a_report)], ids=["one", "each"])
def test_reports_that_can_not_be_read_after_a_restart_end_no_machine(fault: Trouble) -> None:
    world = running()
    before = machines(world)
    fault.strike(world.store)
    world.restart()
    for second in range(60):
        world.run(limit=1)
        assert machines(world) == before, f"after {second} s"


def test_a_report_that_is_gone_from_the_listing_was_there_until_now() -> None:
    """An empty listing, as of a folder on which nothing is mounted any more, counted as hours of silence."""
    world = running()
    world.run(limit=60)
    before = machines(world)
    listed = type(world.store).list

    def empty(store: Any, prefix: str, after: str | None = None) -> Any:
        return [] if prefix == object_keys.live_prefix() else listed(store, prefix, after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.store), "list", empty)
        world.run(limit=5)
    world.run(limit=60)
    assert machines(world) == before


def test_a_listing_without_our_machines_ends_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that finds nothing, or another account: such a listing is complete, too."""
    world = running()
    before = machines(world)
    with monkeypatch.context() as patch:
        patch.setattr(type(world.cloud), "describe", lambda _: Listing([], complete=True))
        world.run(limit=60)
    world.run(limit=30)
    assert machines(world) == before
    assert all(len(some) == 1 for some in world.attempts.values())


def test_another_store_in_the_place_of_ours_ends_nothing() -> None:
    world = running()
    before, kept = machines(world), dict(world.store.data)
    world.store.data.clear()
    world.run(limit=120)
    assert machines(world) == before
    world.store.data.update(kept)
    world.run(limit=120)
    assert machines(world) == before


def test_one_machine_that_is_cut_off_is_given_up_and_the_job_goes_on_elsewhere() -> None:
    world = running()
    (victim,) = [m for m in world.cloud.machines.values() if m.agent is not None and m.agent.job == "job-0"]
    assert victim.agent is not None
    victim.agent.cut = 10_000
    world.run(limit=60)
    assert world.attempts["job-0"][-1].number == 2
    assert all(some[-1].number == 1 for job, some in world.attempts.items() if job != "job-0")


def test_all_machines_that_are_cut_off_are_given_up_when_a_new_one_shows_that_the_store_takes_reports() -> None:
    world = running(jobs=2)
    for machine in world.cloud.machines.values():
        assert machine.agent is not None
        machine.agent.cut = 10_000
    world.run(limit=120)
    assert all(len(some) == 1 for some in world.attempts.values()), "it might be the store"
    assert "fell silent together" in str(world.loop.note_of(JobId("job-0")))
    world.submit()
    world.run(limit=120)
    assert [some[-1].state for some in world.attempts.values()] == [A.RUNNING] * 3
    assert [some[-1].number for some in world.attempts.values()] == [2, 2, 1]


@pytest.fixture
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A doubt is settled in minutes, as a lease lasts seconds here."""
    monkeypatch.setattr(decide, "ASKS_SECONDS", 60.0)
    monkeypatch.setattr(decide, "GIVES_UP_SECONDS", 240.0)
    monkeypatch.setattr(decide, "AGAIN", timedelta(seconds=120))


def cut_off(world: World) -> None:
    for machine in world.cloud.machines.values():
        assert machine.agent is not None
        machine.agent.cut = 100_000


@pytest.mark.usefixtures("sooner")
def test_machines_that_are_cut_off_for_good_are_replaced_by_nobodys_order() -> None:
    """They stood still until somebody submitted another job."""
    world = running(jobs=3)
    cut_off(world)
    world.run(limit=60)
    assert len(machines(world)) == 3
    world.run(limit=120)
    assert [some[-1].state for some in world.attempts.values()] == [A.RUNNING] * 3
    assert all(len(some) == 2 for some in world.attempts.values()), "each was replaced once"


@pytest.mark.usefixtures("sooner")
def test_at_the_limit_of_machines_one_is_given_up_to_find_out() -> None:
    """No machine could be ordered that would have lifted the doubt, so all of them stood still for ever."""
    world = running(jobs=3)
    world.limits = replace(LIMITS, instances_max=3)
    world.restart()
    cut_off(world)
    before = machines(world)
    for _ in range(240):
        world.run(limit=1)
        assert machines(world) == before
    world.run(limit=150)
    assert [some[-1].state for some in world.attempts.values()] == [A.RUNNING] * 3
    assert all(len(some) == 2 for some in world.attempts.values()), "each was replaced once"


@pytest.mark.usefixtures("sooner")
def test_to_find_out_ends_no_machine_while_the_store_takes_nothing_from_any() -> None:
    world = running()
    before = machines(world)
    Trouble(lambda who, verb, key: who == "agent" and verb in WRITES).strike(world.store)
    seen: set[str] = set()
    for _ in range(300):
        world.run(limit=1)
        seen |= machines(world)
        assert before <= machines(world) and len(machines(world)) <= len(before) + 1
    assert len(seen) > len(before) + 1, "one after the other was ordered to find out"
    mend(world.store)
    world.run(limit=120)
    assert machines(world) == before


def test_a_shorter_lease_in_the_configuration_gives_no_job_two_owners() -> None:
    """A machine goes by the lease that it was ordered with."""
    world = running(jobs=1)
    (machine,) = world.cloud.machines.values()
    world.limits = replace(LIMITS, lease_seconds=1.0, lease_margin_seconds=1.0)
    world.restart()
    assert machine.agent is not None
    machine.agent.cut = 10_000
    for _ in range(60):
        world.run(limit=1)
    assert world.attempts["job-0"][-1].number == 2
