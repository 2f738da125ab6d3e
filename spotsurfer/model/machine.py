"""A machine: what is bought, launched and ended, and takes one job after the other if it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spotsurfer.model.job import Attempt, InstanceId
from spotsurfer.model.market import Market, Pool


class MachineState(StrEnum):
    """The state of a machine. `state_machine.MACHINE` has the edges."""

    PLANNED = "planned"
    REQUESTED = "requested"
    UP = "up"
    RELEASING = "releasing"
    RELEASED = "released"
    REFUSED = "refused"


GONE = frozenset({MachineState.RELEASED, MachineState.REFUSED})


@dataclass(frozen=True, slots=True)
class Machine:
    """A row of the machine table. `since` is when the present state was entered."""

    token: str  # of its launch: its attempts refer to it by that
    state: MachineState
    since: datetime
    pool: Pool
    market: Market
    price_usd_micros_per_hour: int
    list_price_usd_micros_per_hour: int
    version: int = 1
    owner: str = ""  # only their jobs may share it
    cpus: int = 0  # by the offer; 0 = unknown, as of a machine that is not kept
    memory_bytes: int = 0
    gpus: int = 0
    disk_bytes: int = 0  # that it rents, by the offer
    public_address: bool = False  # it rents one
    keep_seconds: float = 0.0  # without a job, at most; 0 = it goes with its first one, and takes no other
    slots: int = 1  # that were ever planned: the number of the next one
    instance: InstanceId | None = None
    launched_at: datetime | None = None
    released_at: datetime | None = None
    idle_since: datetime | None = None  # when its last job left; None = it has one, or had none yet
    reclaimed: bool = False  # the cloud reclaimed it
    reason: str = ""  # of its end, for people


def machine_of(a: Attempt, state: MachineState = MachineState.UP) -> Machine:
    """The machine that an attempt has for itself."""
    return Machine(
        token=a.token,
        state=state,
        since=a.since,
        pool=a.pool,
        market=a.market,
        price_usd_micros_per_hour=a.price_usd_micros_per_hour,
        list_price_usd_micros_per_hour=a.list_price_usd_micros_per_hour,
        gpus=a.gpus,
        disk_bytes=a.disk_bytes,
        public_address=a.public_address,
        instance=a.instance,
        launched_at=a.launched_at,
        released_at=a.released_at,
        reclaimed=a.reclaimed,
        reason=a.reason,
    )
