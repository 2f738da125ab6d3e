"""How often things go wrong in the virtual world."""

from __future__ import annotations

from dataclasses import dataclass


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
    save_fails: float = 0.15  # a final save that was asked for
    zombie: float = 0.3  # a terminate call that does nothing
    outage: float = 0.003
    crash: float = 0.002  # a call of the controller, just before it and just after it
    command_fails: float = 0.1  # an end of the command
    boots_seconds: tuple[int, int] = (3, 10)
    on_demand_sure: bool = False  # such machines can always be had, boot, are reached, and stay
