"""What a running job says that it will need reaches its size policy, and is made room for before it is used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsurfer_lab.size_backtest import size_policy
from spotsurfer_wire.messages import AgentState, Report
from support.rides import GIB, Ride, asks

from spotsurfer.controller.event_recorder import news
from spotsurfer.core.scheduling.rightsizing import SizeRules
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.policies import Size, SizeChoice, SizeMoment, SizeTerms


class Says:
    """Always wishes the same; remembers what it was shown."""

    def __init__(self, to: int | None = None) -> None:
        self.to, self.moments = to, list[SizeMoment]()

    def begin(self, terms: SizeTerms) -> tuple[int, int]:
        return 0, terms.start

    def look(self, memory: int, moment: SizeMoment) -> tuple[int, SizeChoice]:
        self.moments.append(moment)
        return memory, SizeChoice(self.to)


def riding(policy: Size, **more: Any) -> Ride:
    return Ride(lambda _n, _p: policy, **{"rules": SizeRules(look_seconds=10.0), "boots": 1, **more})


def use(ride: Ride, slices: int = 4) -> None:
    for _ in range(slices):
        ride.use(1.0 * GIB, 1.0)


@pytest.mark.parametrize("looks", [0, 4])
def test_memory_that_was_foretold_is_made_room_for_at_once(looks: int) -> None:
    ride = riding(Says())
    use(ride, looks)
    ride.foretell(20 * GIB)
    use(ride, 1)
    assert ride.kind == "a.large"
    assert "the job foretold that it needs more memory" in ride.here.purpose
    assert "it foretold 20.00 GiB" in ride.here.purpose
    assert ride.near_misses == 0


def test_nothing_smaller_is_gone_to_while_it_holds() -> None:
    says = Says(0)
    ride = riding(says)
    ride.foretell(6 * GIB)
    use(ride)
    assert (ride.kind, says.moments[-1].hinted_bytes) == ("a.medium", 6 * GIB)
    ride.foretell()
    use(ride)
    assert ride.kind == "a.small"


def test_more_than_there_is_leads_to_the_largest() -> None:
    ride = riding(Says())
    ride.foretell(900 * GIB)
    use(ride, 1)
    assert ride.kind == "a.large"


def test_what_it_foretold_must_have_room_where_it_goes_on_after_its_machine_is_lost() -> None:
    ride = riding(Says(), boots=60)
    use(ride)
    ride.foretell(20 * GIB)
    ride.snapshot()
    ride.words[1] = Report(str(ride.job.id), 1, "i-1", "0", 10, AgentState.DRAINED, 1)  # it says nothing of its stage any more
    ride.attempts = [replace(ride.attempts[0], state=A.RELEASED)]
    assert ride.snapshot().job.spec.memory_bytes == 32 * GIB


def test_cores_that_were_foretold_keep_it_from_fewer_and_draw_it_to_more() -> None:
    def kinds(cores: float) -> str:
        ride = riding(size_policy("surf", {}), job=asks(cpus=4, size_cpus_max=8))
        ride.foretell(cores=cores)
        for _ in range(60):
            ride.use(1.0 * GIB, 1.0)
        return ride.kind

    assert kinds(0.0) == "a.small", "it uses one"
    assert kinds(4.0) == "a.medium"


def test_the_timeline_says_what_it_foretold() -> None:
    def said(**more: Any) -> Report:
        return Report("j", 1, "i-1", "0", 9, AgentState.RUNNING, 1, hint="sort", **more)

    needs = said(hint_memory_bytes=40 << 30, hint_cores=8.0)
    assert [(k, t) for k, t, _ in news(said(), needs)] == [(Kind.STAGE, "sort: it will need 40.0 GiB and 8 processors")]
    assert list(news(needs, needs)) == []
