"""A controller that may die, or stand still, at any call that it makes, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulation import strand
from simulation.virtual import Cloud, Crash
from sqlalchemy import Engine

from spotsurfer.controller.apply import Apply
from spotsurfer.model.actions import Action, Rejected
from spotsurfer.model.errors import IllegalTransition
from spotsurfer.state.db import open_database

EFFECTS = ("launch", "terminate", "create", "put")


def copied(engine: Engine) -> Engine:
    """A backup of the database."""
    copy = open_database(None)
    from_, to = engine.raw_connection().driver_connection, copy.raw_connection().driver_connection
    from_.backup(to)  # type: ignore[union-attr]
    return copy


class Flaky:
    """Passes calls on. Now and then the controller dies just before or just after one, or stands still before it."""

    def __init__(self, inner: Any, cloud: Cloud) -> None:
        self._inner, self._cloud = inner, cloud

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in (*EFFECTS, "now"):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self._die()
            if name in EFFECTS:
                self._stand_still()
            result = value(*args, **kwargs)
            self._die()
            return result

        return call

    def _die(self) -> None:
        if self._cloud.rand.random() < self._cloud.chances.crash:
            raise Crash

    def _stand_still(self) -> None:
        """For so long that another one takes over. Or only the agents are quick, and do something before the call."""
        rand, chances = self._cloud.rand, self._cloud.chances
        if rand.random() < chances.overtaken:
            self._cloud.agents()
        if strand.inside() and rand.random() < chances.stands_still:
            strand.wait(rand.randint(20, 90))


class Strict(Apply):
    """An action that the tables refuse is a bug of `decide`: in production it is logged, here it ends the run."""

    def carry_out(self, action: Action, rejected: Sequence[Rejected] = ()) -> str:
        try:
            return super().carry_out(action, rejected)
        except IllegalTransition as e:
            raise AssertionError(f"{action}: {e}") from e
