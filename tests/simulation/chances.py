"""How often things go wrong in the virtual world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Chances:
    """How often things go wrong; per second unless said otherwise."""

    refused: float = 0.15  # a launch
    never_boots: float = 0.05  # a launch
    notice: float = 0.006
    killed: float = 0.004
    cut: float = 0.006
    restore_fails: float = 0.05  # a restore
    image_bad: float = 0.05  # a second in which memory comes behind a restored job
    unfit: float = 0.01  # a report of a machine that stands by
    useless: float = 0.01  # the same, but no machine would fare better
    registry: float = 0.002  # it stops answering; a minute later it answers again
    agent_dies: float = 0.001
    save_fails: float = 0.15  # a final save that was asked for
    zombie: float = 0.3  # a terminate call that does nothing
    outage: float = 0.003
    crash: float = 0.002  # a call of the controller, just before it and just after it
    stands_still: float = 0.0005  # a call of the controller that changes something: another one takes over meanwhile
    overtaken: float = 0.05  # the same, but only the agents do something before it
    settings: float = 0.3  # a restart of the controller
    single: float = 0.02  # single calls to the store begin to fail, or stop to
    command_fails: float = 0.1  # an end of the command
    boots_seconds: tuple[int, int] = (3, 10)
    on_demand_sure: bool = False  # such machines can always be had, boot, are reached, and stay


def calm(**some: Any) -> Chances:
    """Nothing goes wrong by itself, but for these."""
    never = {name: 0.0 for name, value in vars(Chances()).items() if type(value) is float}
    return Chances(**{**never, **some})
