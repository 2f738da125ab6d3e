"""The test cloud's VMs and operations. Time is real, and delays are short.

Where a rule comes from: "VM instance life cycle", "Spot VMs", "Handle API errors" and the API reference of Compute Engine.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta, timezone
from functools import partial
from typing import Any, Protocol

from spotsurfer_wire import clock
from support.gce.errors import Refused
from support.gce.events import Events

Json = dict[str, Any]
PROJECT = "lab-123456"  # as in the tests of terraform/gcp
ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "europe-west4-a")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"[\w-]{0,63}")
# name: processors, MiB, GPU, its number, shares a processor
TYPES: Mapping[str, tuple[int, int, str, int, bool]] = {
    "n2-standard-2": (2, 8192, "", 0, False),
    "n2-standard-4": (4, 16384, "", 0, False),
    "n2d-standard-4": (4, 16384, "", 0, False),
    "e2-micro": (2, 1024, "", 0, True),
    "g2-standard-4": (4, 16384, "nvidia-l4", 1, False),
    "a2-highgpu-1g": (12, 87040, "nvidia-tesla-a100", 1, False),
}
PACIFIC = timezone(timedelta(hours=-8))
PREEMPTED = "compute.instances.preempted"
ROOT = "https://www.googleapis.com/compute/v1/projects"


@dataclass
class Vm:
    """`body` is as it was ordered. `ends_at` in seconds of the monotonic clock: when it is not there any more."""

    body: Json
    zone: str
    id: int
    made_at: float
    created: str
    ends_at: float | None = None
    preempted: bool = False
    status: str = "STAGING"  # then RUNNING, or TERMINATED if it switched itself off; the rest is told by `ends_at`

    @property
    def name(self) -> str:
        """In its zone."""
        return str(self.body["name"])

    @property
    def metadata(self) -> dict[str, str]:
        """What was ordered with it."""
        return {item["key"]: item["value"] for item in self.body.get("metadata", {}).get("items", [])}


class Hardware(Protocol):
    """What VMs run on."""

    def start(self, vm: Vm, changed: Callable[[str], None]) -> None:
        """Start it; `changed` hears "running", and later "reclaimed" or "powered-off"."""

    def warn(self, vm: Vm, seconds: float) -> None:
        """Tell it that it is taken, and take it then."""

    def end(self, vm: Vm) -> None:
        """End it at once."""


@dataclass
class Operation:
    """One operation; it is done at `done_at` of the monotonic clock."""

    kind: str
    name: str
    id: int
    target: str  # of a VM
    target_id: int
    zone: str
    inserted: str
    done_at: float
    error: tuple[str, str] | None = None


@dataclass
class Cloud:
    """`exhausted`: (zone, type) without capacity, or only without spot capacity; `unreachable`: zones that can't be read."""

    boot_seconds: float = 0.1
    stop_seconds: float = 0.1
    order_seconds: float = 0.05
    exhausted: set[tuple[str, str]] = field(default_factory=set)
    spot_exhausted: set[tuple[str, str]] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    obtainability: dict[str, float] = field(default_factory=dict)  # of spot, by zone
    quota: int | None = None  # VMs
    fails_later: tuple[str, str] | None = None  # how the operation of each order fails
    early_notice: bool = True  # the API knows `preemptionNoticeDuration`
    page: int = 500  # the most that one answer holds
    vms: dict[tuple[str, str], Vm] = field(default_factory=dict)
    made: list[Vm] = field(default_factory=list)  # all that there ever were
    operations: list[Operation] = field(default_factory=list)
    requests: dict[str, Operation] = field(default_factory=dict)  # by requestId
    skus: list[Json] = field(default_factory=list[Json])  # of Compute Engine, in the billing catalogue
    events: Events = field(default_factory=Events)
    hardware: Hardware | None = None  # None: VMs are names only
    lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: Iterable[int] = field(default_factory=lambda: itertools.count(4_000_000_000_000_000_001))

    # ---- what Google does by itself

    def preempt(self, name: str, zone: str, notice_seconds: float | None = None) -> None:
        """Google takes a spot VM: it is told so, stops after a while, and is deleted if it was ordered so."""
        with self.lock:
            vm = self.vms[name, zone]
            assert vm.body["scheduling"]["provisioningModel"] == "SPOT", "no other VM is preempted"
            assert vm.body["scheduling"]["instanceTerminationAction"] == "DELETE", "nobody here orders that it is kept"
            seconds = self.stop_seconds if notice_seconds is None else notice_seconds
            vm.preempted = True
            self._operation(PREEMPTED, vm, seconds)
            self.events.add(PREEMPTED, f"projects/{PROJECT}/zones/{zone}/instances/{name}", vm.id)
            if self.hardware is None:
                vm.ends_at = time.monotonic() + seconds
                return
        self.hardware.warn(vm, seconds)

    def _changed(self, vm: Vm, what: str) -> None:
        with self.lock:
            if what == "running" and vm.status == "STAGING":
                vm.status = "RUNNING"
            elif what == "reclaimed":
                vm.ends_at = vm.ends_at or time.monotonic()
            elif what == "powered-off" and vm.ends_at is None:
                vm.status = "TERMINATED"  # its disk is still there; the next preemption finds nothing to take

    def _settle(self) -> None:
        now = time.monotonic()
        for vm in self.vms.values():
            if self.hardware is None and vm.status == "STAGING" and now - vm.made_at >= self.boot_seconds:
                vm.status = "RUNNING"
        self.vms = {key: vm for key, vm in self.vms.items() if vm.ends_at is None or vm.ends_at > now}

    # ---- methods of the API, by their ids

    def insert(self, zone: str, body: Json, query: Mapping[str, str]) -> Json:
        """compute.instances.insert"""
        self._settle()
        name, kind = body.get("name", ""), body.get("machineType", "").rpartition("/")[2]
        request = query.get("requestId", "")
        if request and not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", request):
            raise Refused(400, "invalid", f"Invalid value for field 'requestId': '{request}'.")
        if request in self.requests:
            return self._shown(self.requests[request])
        self._check(zone, name, kind, body)
        if (name, zone) in self.vms:
            raise Refused(
                409, "alreadyExists", f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{name}' already exists"
            )
        if self.quota is not None and len(self.vms) >= self.quota:
            raise Refused(403, "quotaExceeded", f"Quota 'INSTANCES' exceeded.  Limit: {self.quota}.0 globally.")
        vm = Vm(body, zone, next(iter(self._numbers)), time.monotonic(), _now())
        operation = self._operation("insert", vm, self.order_seconds)
        spot = body["scheduling"]["provisioningModel"] == "SPOT"
        if (zone, kind) in self.exhausted or (spot and (zone, kind) in self.spot_exhausted):
            operation.error = (
                "ZONE_RESOURCE_POOL_EXHAUSTED",
                f"The zone 'projects/{PROJECT}/zones/{zone}' does not have enough resources available to fulfill the request.",
            )
        elif self.fails_later is not None:
            operation.error = self.fails_later
        else:
            self.vms[name, zone] = vm
            self.made.append(vm)
            if self.hardware is not None:
                start = partial(self.hardware.start, vm, partial(self._changed, vm))
                threading.Thread(target=start, daemon=True).start()
        if request:
            self.requests[request] = operation
        return self._shown(operation)

    def _check(self, zone: str, name: str, kind: str, body: Json) -> None:
        """What a schema does not say."""
        scheduling = body.get("scheduling", {})
        wrong = {
            "resource.name": not NAME.fullmatch(name),
            "resource.machineType": kind not in TYPES or f"zones/{zone}/" not in body.get("machineType", ""),
            "resource.disks": not body.get("disks"),
            "resource.networkInterfaces": not body.get("networkInterfaces"),
            "resource.labels": not all(
                LABEL.fullmatch(x) and x == x.lower() for p in body.get("labels", {}).items() for x in p
            ),
            "resource.scheduling": bool(TYPES.get(kind, ("",) * 5)[2]) and scheduling.get("onHostMaintenance") != "TERMINATE",
            "resource.scheduling.onHostMaintenance": kind.startswith("e2-")
            and scheduling.get("provisioningModel") != "SPOT"
            and scheduling.get("onHostMaintenance") != "MIGRATE",
            "resource.scheduling.automaticRestart": scheduling.get("provisioningModel") == "SPOT"
            and scheduling.get("automaticRestart") is not False,
        }
        if not self.early_notice and "preemptionNoticeDuration" in scheduling:
            raise Refused(
                400,
                "invalid",
                "Invalid JSON payload received. Unknown name \"preemptionNoticeDuration\" at 'resource.scheduling'",
            )
        for where, bad in wrong.items():
            if bad:
                raise Refused(400, "invalid", f"Invalid value for field '{where}'.")

    def get(self, zone: str, name: str) -> Json:
        """compute.instances.get"""
        return self._instance(self._found(zone, name))

    def delete(self, zone: str, name: str) -> Json:
        """compute.instances.delete"""
        vm = self._found(zone, name)
        if vm.ends_at is None:
            vm.ends_at = time.monotonic() + self.stop_seconds
            if self.hardware is not None:
                threading.Thread(target=self.hardware.end, args=(vm,), daemon=True).start()
        return self._shown(self._operation("delete", vm, self.stop_seconds))

    def instances(self, query: Mapping[str, str]) -> Json:
        """compute.instances.aggregatedList"""
        self._settle()
        label, wanted = re.fullmatch(r'labels\.([\w-]+)="([^"]*)"', query["filter"]).groups()  # type: ignore[union-attr]
        every = [vm for vm in self.vms.values() if vm.body.get("labels", {}).get(label) == wanted]
        return self._pages(query, every, "instances", self._instance, "compute#instanceAggregatedList")

    def all_operations(self, query: Mapping[str, str]) -> Json:
        """compute.globalOperations.aggregatedList"""
        kinds = set(re.findall(r'operationType="([\w.]+)"', query["filter"]))
        assert query["orderBy"] == "creationTimestamp desc"
        every = [o for o in reversed(self.operations) if o.kind in kinds]
        return self._pages(query, every, "operations", self._shown, "compute#operationAggregatedList")

    def wait(self, zone: str, name: str) -> Json:
        """compute.zoneOperations.wait: answers when the operation is done, after two minutes at the latest."""
        found = next((o for o in self.operations if (o.name, o.zone) == (name, zone)), None)
        if found is None:
            raise Refused(404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}/operations/{name}' was not found")
        time.sleep(max(0.0, min(found.done_at - time.monotonic(), 120.0)))
        return self._shown(found)

    def advice(self, body: Json) -> Json:
        """compute.advice.capacity, of the beta: v1 knows the method and refuses to tell of spot."""
        assert body["instanceProperties"]["scheduling"]["provisioningModel"] == "SPOT"
        (zone,) = (z["zone"].rpartition("/")[2] for z in body["distributionPolicy"]["zones"])
        kinds = body["instanceFlexibilityPolicy"]["instanceSelections"]["any"]["machineTypes"]
        obtainability = self.obtainability.get(zone, 0.5)
        shard = {"machineType": kinds[0], "zone": f"zones/{zone}", "instanceCount": body["size"], "provisioningModel": "SPOT"}
        return {"recommendations": [{"scores": {"obtainability": obtainability, "estimatedUptime": "600s"}, "shards": [shard]}]}

    def machine_types(self, zone: str, query: Mapping[str, str]) -> Json:
        """compute.machineTypes.list"""
        assert query["filter"] == "isSharedCpu = false"
        if zone in self.unreachable:
            raise Refused(503, "backendError", "The service is currently unavailable.")
        shown = [_machine_type(zone, name) for name, kind in TYPES.items() if not kind[4]]
        first, most = int(query.get("pageToken", "0")), min(int(query.get("maxResults", "500")), self.page)
        answer: Json = {"kind": "compute#machineTypeList", "items": shown[first : first + most]}
        return answer | ({"nextPageToken": str(first + most)} if first + most < len(shown) else {})

    def all_machine_types(self, query: Mapping[str, str]) -> Json:
        """compute.machineTypes.aggregatedList"""
        every = [(zone, name) for zone in ZONES for name in TYPES]
        return self._pages(query, every, "machineTypes", lambda t: _machine_type(*t), "compute#machineTypeAggregatedList")

    def catalogue(self, service: str, query: Mapping[str, str]) -> Json:
        """cloudbilling.services.skus.list"""
        if service != "services/6F81-5844-456A":
            raise Refused(404, "notFound", f"Service {service} was not found.")
        assert query["currencyCode"] == "USD", "else prices would be of the account's currency"
        first, most = int(query.get("pageToken") or "0"), min(int(query.get("pageSize", "5000")), self.page)
        last = first + most >= len(self.skus)
        return {"skus": self.skus[first : first + most], "nextPageToken": "" if last else str(first + most)}

    # ---- parts

    def _found(self, zone: str, name: str) -> Vm:
        self._settle()
        if (name, zone) not in self.vms:
            raise Refused(404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{name}' was not found")
        return self.vms[name, zone]

    def _operation(self, kind: str, vm: Vm, seconds: float) -> Operation:
        number = next(iter(self._numbers))
        made = Operation(
            kind, f"operation-{number}", number, vm.body["name"], vm.id, vm.zone, _now(), time.monotonic() + seconds
        )
        self.operations.append(made)
        return made

    def _shown(self, o: Operation) -> Json:
        zone = f"{ROOT}/{PROJECT}/zones/{o.zone}"
        done = time.monotonic() >= o.done_at
        shown: Json = {
            "kind": "compute#operation", "id": str(o.id), "name": o.name, "zone": zone, "operationType": o.kind,
            "targetLink": f"{zone}/instances/{o.target}", "targetId": str(o.target_id), "status": "DONE" if done else "RUNNING",
            "progress": 100 if done else 0, "insertTime": o.inserted, "startTime": o.inserted, "user": "tests@example.com",
            "selfLink": f"{zone}/operations/{o.name}",
        }  # fmt: skip
        if done:
            shown["endTime"] = o.inserted
            if o.error is not None:
                shown |= {"error": {"errors": [{"code": o.error[0], "message": o.error[1]}]}, "httpErrorStatusCode": 503}
        return shown

    def _instance(self, vm: Vm) -> Json:
        self._settle()
        zone = f"{ROOT}/{PROJECT}/zones/{vm.zone}"
        status = vm.status if vm.ends_at is None else "STOPPING"
        disks = [
            {"boot": d.get("boot", False), "autoDelete": d.get("autoDelete", False), "index": i}
            for i, d in enumerate(vm.body["disks"])
        ]
        interfaces = [{**n, "networkIP": "10.128.0.2", "name": f"nic{i}"} for i, n in enumerate(vm.body["networkInterfaces"])]
        return {
            **vm.body, "kind": "compute#instance", "id": str(vm.id), "status": status, "zone": zone, "disks": disks,
            "machineType": f"{zone}/machineTypes/{vm.body['machineType'].rpartition('/')[2]}", "creationTimestamp": vm.created,
            "networkInterfaces": interfaces, "selfLink": f"{zone}/instances/{vm.body['name']}",
        }  # fmt: skip

    def _pages(
        self, query: Mapping[str, str], every: list[Any], field_name: str, show: Callable[[Any], Json], kind: str
    ) -> Json:
        """An aggregated list: by zone, those that can't be read with a warning, in pages."""
        first, most = int(query.get("pageToken", "0")), min(int(query.get("maxResults", "500")), self.page)
        shown = [show(x) for x in every]
        items: Json = {}
        for zone in ZONES:
            here = [x for x in shown[first : first + most] if str(x["zone"]).rpartition("/")[2] == zone]
            items[f"zones/{zone}"] = {field_name: here} if here else {"warning": _warning("NO_RESULTS_ON_PAGE", zone)}
            if zone in self.unreachable:
                items[f"zones/{zone}"] = {"warning": _warning("UNREACHABLE", zone)}
        answer: Json = {"kind": kind, "id": f"projects/{PROJECT}/aggregated/{field_name}", "items": items}
        if first + most < len(shown):
            answer["nextPageToken"] = str(first + most)
        return answer


def _warning(code: str, zone: str) -> Json:
    return {"code": code, "message": f"There are no results for scope 'zones/{zone}' on this page."}


def _machine_type(zone: str, name: str) -> Json:
    cpus, mib, gpu, count, shared = TYPES[name]
    found: Json = {
        "kind": "compute#machineType",
        "name": name,
        "zone": zone,
        "guestCpus": cpus,
        "memoryMb": mib,
        "isSharedCpu": shared,
    }
    found["architecture"] = "X86_64"
    return found | ({"accelerators": [{"guestAcceleratorType": gpu, "guestAcceleratorCount": count}]} if gpu else {})


def _now() -> str:
    return clock.utc().astimezone(PACIFIC).isoformat(timespec="milliseconds")  # as Google tells times
