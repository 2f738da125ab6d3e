"""The state of the test EC2, and what happens to its machines: they start, are warned, end."""

from __future__ import annotations

import heapq
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.events.models import events_backends
from support.ec2 import machines as m
from support.ec2.calllog import CallLog
from support.ec2.machines import Machine
from support.ec2.market import Market
from support.ec2.rules import Rules

from spotsurfer.ports.clock import SystemClock

ACCOUNT = DEFAULT_ACCOUNT_ID


class Hardware(Protocol):
    """What machines run on; the default is nothing at all."""

    def start(self, machine: Machine, tags: Mapping[str, str], changed: Callable[[str], None]) -> None:
        """Start it and call `changed`: "running", and later "powered-off" or "reclaimed" where it ended by itself."""

    def rebalance(self, machine: Machine) -> None:
        """Show it the recommendation."""

    def warn(self, machine: Machine, at: datetime) -> None:
        """Show it when it is taken."""

    def end(self, machine: Machine, ended: Callable[[], None]) -> None:
        """End it at once, then call `ended`."""

    def close(self) -> None:
        """End everything."""


class NoHardware:
    """Machines that are names only."""

    def start(self, machine: Machine, tags: Mapping[str, str], changed: Callable[[str], None]) -> None:
        changed("running")

    def rebalance(self, machine: Machine) -> None: ...

    def warn(self, machine: Machine, at: datetime) -> None: ...

    def end(self, machine: Machine, ended: Callable[[], None]) -> None:
        ended()

    def close(self) -> None: ...


class Later:
    """Does things at times to come."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Call `do` in so many seconds."""
        with self._wake:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), do))
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._wake.wait(self._due[0][0] - time.monotonic() if self._due else None)
                do = heapq.heappop(self._due)[2]
            threading.Thread(target=do, daemon=True).start()  # the end of a box may take a while


class Cloud:
    """Everything the layer knows."""

    def __init__(self, hardware: Hardware | None = None) -> None:
        self.lock = threading.RLock()
        self.clock = SystemClock()
        self.hardware: Hardware = hardware or NoHardware()
        self.later = Later()
        self.rules = Rules()
        self.log = CallLog()
        self.market = Market(self.now())
        self.machines: dict[str, Machine] = {}
        self.tokens: dict[tuple[str, str, str], tuple[str, list[str]]] = {}  # region, action, token -> digest, instances
        self.pending_seconds = 0.0
        self.shutdown_seconds = 0.0
        self.skew_seconds = 0.0  # how far the cloud's clock is ahead of this host's, where it looks at signatures
        self.info: dict[str, Any] = {}  # where it is reached
        self.unlisted_seconds = 0.0  # how long a new machine is not known to Describe calls

    def now(self) -> datetime:
        """Now."""
        return self.clock.now().astimezone(UTC)

    def tags(self, region: str, resource: str) -> dict[str, str]:
        """Tags of a resource, as moto keeps them."""
        found: Mapping[str, str] = ec2_backends[ACCOUNT][region].tags.get(resource, {})
        return dict(found)

    def living(self, region: str) -> Iterable[tuple[str, str, str]]:
        """Pools of the machines that use capacity."""
        return [x.pool for x in self.machines.values() if x.region == region and x.state in m.LIVING]

    # ------------------------------------------------------------ from start to end

    def add(self, machine: Machine) -> None:
        """A machine was launched."""
        self.machines[machine.id] = machine
        self._tell_state(machine)
        tags = self.tags(machine.region, machine.id)
        self.later.after(
            self.pending_seconds, lambda: self.hardware.start(machine, tags, lambda what: self._changed(machine, what))
        )

    def _changed(self, machine: Machine, what: str) -> None:
        with self.lock:
            if what == "running" and machine.state == "pending":
                self._become(machine, "running")
            elif what == "reclaimed":
                self.end(machine, m.RECLAIMED)
            elif what == "powered-off" and machine.state in ("pending", "running") and not machine.impaired:
                self.power_off(machine)

    def power_off(self, machine: Machine) -> None:
        """It shut down from inside: one on demand is only stopped, and costs on, unless it was launched otherwise."""
        if machine.market == "on-demand" and machine.shutdown == "stop":
            machine.reason = m.BY_ITSELF
            self._become(machine, "stopping")
            self.hardware.end(machine, lambda: self._become(machine, "stopped"))
        else:
            self.end(machine, m.BY_ITSELF)

    def end(self, machine: Machine, reason: tuple[str, str]) -> None:
        """Its end, for a reason; a second one changes nothing."""
        with self.lock:
            if machine.state in ("shutting-down", "terminated"):
                return
            machine.reason, machine.ended_at = reason, self.now()
            self._become(machine, "shutting-down")
        self.later.after(self.shutdown_seconds, lambda: self.hardware.end(machine, lambda: self._ended(machine)))

    def _ended(self, machine: Machine) -> None:
        with self.lock:
            backend = ec2_backends[ACCOUNT][machine.region]
            backend.terminate_instances([machine.id])  # volumes go with it, or stay as they were ordered
            for interface in machine.shape.get("NetworkInterfaces", []):
                if interface["Attachment"]["DeleteOnTermination"]:
                    backend.enis.pop(interface["NetworkInterfaceId"], None)
            self._become(machine, "terminated")

    def _become(self, machine: Machine, state: str) -> None:
        machine.state = state
        self._tell_state(machine)

    # ------------------------------------------------------------ notices

    def rebalance(self, machine: Machine) -> None:
        """The recommendation, by both ways."""
        self.hardware.rebalance(machine)
        self.tell(machine, "EC2 Instance Rebalance Recommendation", {"instance-id": machine.id})

    def interrupt(self, machine: Machine, notice_seconds: float) -> None:
        """The warning, by both ways, and the end `notice_seconds` later; 0: the end without a word."""
        if notice_seconds <= 0:
            self.end(machine, m.RECLAIMED)
            return
        at = self.now() + timedelta(seconds=notice_seconds)
        self.hardware.warn(machine, at)
        detail = {"instance-id": machine.id, "instance-action": "terminate"}
        self.tell(machine, "EC2 Spot Instance Interruption Warning", detail)
        self.later.after(notice_seconds, lambda: self.end(machine, m.RECLAIMED))

    def crash(self, machine: Machine) -> None:
        """Its hardware dies; EC2 goes on calling it running, and only its status checks fail."""
        machine.impaired = True
        self.hardware.end(machine, lambda: None)

    def tell(self, machine: Machine, kind: str, detail: Mapping[str, Any]) -> None:
        """An event about a machine, to EventBridge."""
        entry = {"Source": "aws.ec2", "DetailType": kind, "Resources": [machine.arn], "Detail": json.dumps(dict(detail))}
        events_backends[ACCOUNT][machine.region].put_events([entry])

    def _tell_state(self, machine: Machine) -> None:
        detail = {"instance-id": machine.id, "state": machine.state}
        self.tell(machine, "EC2 Instance State-change Notification", detail)
