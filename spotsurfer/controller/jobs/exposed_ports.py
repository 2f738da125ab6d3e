"""The jobs as the listener of exposed ports sees them: from the last snapshot, without a query to cloud or database."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy import Engine

from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.ingress.connection import At, Target, target_of
from spotsurfer.model.errors import Conflict
from spotsurfer.model.job import ENDED, InstanceId, Job, JobId, JobPort, Wish, rehearses
from spotsurfer.model.snapshot import JobSeen, Snapshot
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.provider import InstanceState, InstanceView
from spotsurfer.ports.service import PortStatus
from spotsurfer.state import exposed_ports

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of its facts, and the functions that carry out its wishes."""

    engine: Engine
    clock: Clock
    clouds: Clouds
    seen: Callable[[], Snapshot | None]
    instance_of: Callable[[str, InstanceId | None], InstanceView | None]
    wake: Callable[[str], Job]


class FrontDoors:
    """A controller's implementation of `spotsurfer.ingress.connection.Doors`."""

    def __init__(self, sources: Sources, ports: range, public: bool) -> None:
        """`public`: machines are reached at their public addresses."""
        self._s, self._range, self._public = sources, ports, public
        self._tried: set[int] = set()  # another program listens there
        self._snapshot: Snapshot | None = None
        self._jobs: dict[JobId, JobSeen] = {}

    def _look(self) -> dict[JobId, JobSeen]:
        found = self._s.seen()
        if found is not None and found is not self._snapshot:
            self._snapshot, self._jobs = found, {s.job.id: s for s in found.jobs if s.job.spec.ports}
        return self._jobs

    def ports(self) -> Mapping[JobId, tuple[JobPort, ...]]:
        """See Doors."""
        return {i: s.job.spec.ports for i, s in self._look().items() if s.job.state not in ENDED and not rehearses(s.job)}

    def place(self, job: JobId) -> Target:
        """See Doors."""
        seen = self._look().get(job)
        return Target(At.AWAY) if seen is None else target_of(seen)

    def wake(self, job: JobId) -> None:
        """See Doors. Does nothing if the job was woken, or suspended by its user, meanwhile."""
        seen = self._look().get(job)
        if seen is None or seen.job.wish is not Wish.HOLD or target_of(seen).at is not At.SLEEPS:
            return
        try:
            self._s.wake(job)
        except Conflict:
            return
        log.info("front.woke", job=job)

    def outlet(self, place: Target) -> tuple[socket.socket, str]:
        """See Doors."""
        view = self._s.instance_of(place.token, place.instance)
        if view is not None and view.state is InstanceState.GONE:  # another machine may have its address by now
            raise Conflict("the job's machine is gone")
        address = None if view is None else view.public_address if self._public else view.address
        if view is None or address is None:
            raise Conflict("the job's machine has no address yet; see [front] machines")
        return self._s.clouds.at(view.pool.provider).outlet(InstanceId(view.id)), address

    def now(self) -> datetime:
        """See Doors."""
        return self._s.clock.now()

    def listens(self, job: JobId, name: str) -> int | None:
        """See Doors."""
        with self._s.engine.begin() as connection:
            known = exposed_ports.listens(connection, job).get(name)
            if known is not None:
                return known
            taken = exposed_ports.taken(connection) | self._tried
            free = next((p for p in self._range if p not in taken), None)
            if free is not None:
                exposed_ports.give(connection, job, name, free)
            return free

    def taken(self, job: JobId, name: str) -> None:
        """See Doors."""
        with self._s.engine.begin() as connection:
            port = exposed_ports.listens(connection, job).get(name)
            if port is not None:
                self._tried.add(port)
                exposed_ports.take_back(connection, job, name)

    def forget(self, jobs: Iterable[JobId]) -> None:
        """See Doors."""
        with self._s.engine.begin() as connection:
            exposed_ports.forget_all_but(connection, list(jobs))


def port_statuses(job: Job, given: Mapping[tuple[str, str], int], address: str) -> list[PortStatus]:
    """A job's ports with their addresses on the host. `given`: ports of the host, by job and name."""
    at = f"[{address}]" if ":" in address else address
    listens = {p.name: given.get((job.id, p.name)) for p in job.spec.ports}
    return [PortStatus(p.name, p.port, f"{at}:{listens[p.name]}" if listens[p.name] else "") for p in job.spec.ports]
