"""Orders to the cloud by a controller that dies: none is given twice."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest
from simulation.chances import Chances
from simulation.objects import Objects
from simulation.virtual import Cloud, Crash
from support.desk import Desk, clock

from spotsurfer.model.errors import ProviderError
from spotsurfer.model.job import AttemptState as A
from spotsurfer.ports.provider import InstanceView, LaunchPlan

NEVER: dict[str, Any] = {f.name: 0.0 for f in fields(Chances) if f.type == "float"}


class Unanswered(Cloud):
    """The machine is made, and the first answer is lost: the controller dies of it, or hears of an error."""

    lost: type[BaseException] | None

    def launch(self, plan: LaunchPlan) -> InstanceView:
        made = super().launch(plan)
        if self.lost is not None:
            lost, self.lost = self.lost, None
            raise lost("the answer is lost")
        return made


@pytest.mark.parametrize("lost", [Crash, ProviderError])
def test_an_order_that_is_repeated_makes_no_second_machine(lost: type[BaseException]) -> None:
    now = clock()
    cloud: Any = Unanswered(now, Objects(), Chances(**NEVER), random.Random(1), 100)
    cloud.lost = lost
    desk = Desk(cloud, now, "fam")
    desk.submit()
    try:
        desk.tick(5)
    except Crash:
        desk = desk.reborn(cloud)
        desk.tick(5)
    assert [a.instance for a in desk.attempts()] == ["i-0"]
    assert desk.attempts()[0].state is A.BOOTING
    assert cloud.launches == 1


class Odd(Cloud):
    """Answers one job's orders with an error that says nothing."""

    def launch(self, plan: LaunchPlan) -> InstanceView:
        if plan.tags["spotsurfer:job"].startswith("odd"):
            raise ProviderError("UnlistedError: 42")
        return super().launch(plan)


def test_an_order_that_is_never_answered_is_given_up_and_hinders_no_other() -> None:
    now = clock()
    cloud: Any = Odd(now, Objects(), Chances(**NEVER), random.Random(1), 100)
    desk = Desk(cloud, now, "fam")
    desk.submit("odd")
    desk.submit("well")
    for _ in range(10):
        desk.tick(1)
        now.advance(10)
    assert [(a.state, a.instance) for a in desk.attempts("well")] == [(A.BOOTING, "i-0")]
    assert desk.attempts("odd")[0].state is A.REFUSED
    assert "UnlistedError: 42" in desk.attempts("odd")[0].reason
