"""The provider `gcp`: VMs of Compute Engine by `insert`, `aggregatedList` and `delete`, in zones of one project.

It orders one VM of one pool at a time, because our policy chooses the pool. It sends each call that changes something once; the
caller decides before a repetition. `insert` answers before the VM is there: what went wrong stands in an operation, for which
a launch waits for some seconds. A refusal that comes later shows as a VM that never is in the listing.
"""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import compute_v1
from spotsurfer_wire.google_vm import NOTICE_SECONDS, vm_id

from spotsurfer.model.errors import Invalid, ProviderDenied, ProviderError, UnknownToProvider
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.provider import (
    Capabilities,
    Credentials,
    InstanceState,
    InstanceView,
    LaunchPlan,
    Listing,
    ProviderHost,
    StoreAccess,
)
from spotsurfer_providers import cloud_listing
from spotsurfer_providers.bucket_rights import boot_bucket
from spotsurfer_providers.catalog import egress_prices
from spotsurfer_providers.catalog.price_tables import billing_rules, list_prices
from spotsurfer_providers.gcp import error_codes, store_access, vm_request
from spotsurfer_providers.gcp.clients import ONCE, Clients
from spotsurfer_providers.gcp.error_codes import EXISTS, calling
from spotsurfer_providers.gcp.preemption_queue import Queue
from spotsurfer_providers.gcp.settings import GcpSettings, region_of
from spotsurfer_providers.gcp.vm_market import VmMarket

# ---- Views: Compute Engine's answers as instances. Pure.

# "TERMINATED" is a VM that was stopped: its disk is there and costs, and somebody may start it again. One that has ended is
# not listed any more.
STATES = {
    "PENDING": InstanceState.PENDING,
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.PENDING,
    "PENDING_STOP": InstanceState.STOPPING,
    "STOPPING": InstanceState.STOPPING,
    "SUSPENDING": InstanceState.STOPPING,
    "SUSPENDED": InstanceState.STOPPING,
    "STOPPED": InstanceState.STOPPING,
    "TERMINATED": InstanceState.STOPPING,
    "DEPROVISIONING": InstanceState.STOPPING,
}
PREEMPTED, DELETED, ORDERED = "compute.instances.preempted", "delete", "insert"  # operations; the last ends a VM if it fails


def view_of(found: Any) -> InstanceView:
    """One VM. Raises KeyError or ValueError if it is incomplete or not ours."""
    zone = found.zone.rpartition("/")[2]
    token, tags = vm_request.read_metadata({item.key: item.value for item in found.metadata.items})
    network = found.network_interfaces[0] if found.network_interfaces else None
    outside = [a.nat_i_p for a in network.access_configs if a.nat_i_p] if network is not None else []
    return InstanceView(
        id=InstanceId(vm_id(found.name, zone)),
        token=token,
        pool=Pool("gcp", region_of(zone), zone, found.machine_type.rpartition("/")[2]),
        market=Market.SPOT if found.scheduling.provisioning_model == "SPOT" else Market.ON_DEMAND,
        state=STATES[found.status],
        launched_at=datetime.fromisoformat(found.creation_timestamp),
        tags=tags,
        address=(network.network_i_p or None) if network is not None else None,
        public_address=outside[0] if outside else None,
    )


def _entries(page: Any) -> tuple[list[Any], bool]:
    scopes = list(page.items.values())
    whole = not page.unreachables and not any(scope.warning.code == "UNREACHABLE" for scope in scopes)
    return [entry for scope in scopes for entry in scope.instances], whole


# ---- Provider

USE_SUBNET, USE_ADDRESS = "compute.subnetworks.use", "compute.subnetworks.useExternalIp"
ACT_AS, CONSUME = "iam.serviceAccounts.actAs", "pubsub.subscriptions.consume"
TOKEN_SECONDS = 3600  # Google's limit for a token of another account
ORDER_SECONDS = 3.0  # for which a launch waits for its operation, while all others wait for their turn
END_UNKNOWN_SECONDS = 600.0  # for which a VM that is missing may come back; then it has ended, whatever Google tells
FAILED_MAX = 1000  # orders of which that is remembered
END_PAGES_MAX = 20  # of operations, the newest first
DONE = compute_v1.Operation.Status.DONE
PAGE = 500
ENDED_SECONDS = 3600.0  # for which ended VMs are told
log = structlog.get_logger(room="gcp")


class GcpProvider:
    """Zones of one project."""

    name = "gcp"

    def __init__(self, settings: GcpSettings, host: ProviderHost) -> None:
        options = settings.controllers_store, settings.machines_store
        self.boot = boot_bucket(host.store_url, settings.boot_url, store_access.SCHEMES, options)
        self._settings = settings
        self._host = host
        self._gcp = Clients(settings.endpoint_url)
        self._market = VmMarket(settings, self._gcp, host.clock)
        self._last_seen: dict[InstanceId, InstanceView] = {}  # Google lists no VM that has ended
        self._missing: dict[InstanceId, datetime] = {}  # since when no listing had them
        self._ended: dict[InstanceId, InstanceView] = {}
        self._failed: dict[str, str] = {}  # token -> the operation by which its last order failed
        self._early_seconds = settings.notice_seconds
        notice_seconds = float(settings.notice_seconds or NOTICE_SECONDS)
        self.capabilities = Capabilities(
            notice_seconds,
            "gcp",
            billing_rules("gcp"),
            prices=list_prices("gcp"),
            egress=settings.transfer_usd_per_gib.over(egress_prices("gcp")),
            stores=store_access.SCHEMES,
        )
        self.witness = None if settings.preemptions is None else Queue(self._gcp, settings.preemptions)

    def offers(self) -> Sequence[Offer]:
        """Allowed types in zones with a subnetwork, both markets. A listed offer may still lack capacity."""
        return [replace(o, disk_bytes=self._settings.disk_gib << 30) for o in self._market.offers()]

    # ---- instances

    def launch(self, plan: LaunchPlan) -> InstanceView:
        """One VM, by exactly one call of `insert`, or by two if the early notice is refused."""
        try:
            return self._launched(plan)
        except Invalid as e:
            if not (self._early_seconds and re.search("preemption_?notice_?duration", str(e), re.IGNORECASE)):
                raise
            log.warning("early_notice.refused", instead=f"{NOTICE_SECONDS} s", reason=str(e))
            self._early_seconds = 0
            self.capabilities = replace(self.capabilities, notice_seconds=float(NOTICE_SECONDS))
        return self._launched(plan)

    def rehearse(self, plan: LaunchPlan) -> str:
        """Whether the account may use the subnetwork, see how VMs ended, and run VMs as the machine's account.

        Raises ProviderDenied, Invalid.
        Google has no dry run, and no answer to who may make VMs of some names.
        """
        vm_request.vm(plan, self._settings, self._host.family, self._early_seconds)
        subnet = self._settings.subnets[plan.pool.zone]
        subnet = subnet if subnet.startswith("projects/") else f"projects/{self._settings.project}/{subnet}"
        use = [USE_SUBNET, *([USE_ADDRESS] if self._settings.external_address else [])]
        self._need("compute", f"/compute/v1/{subnet}/testIamPermissions", subnet, use)
        self._ends([InstanceId(plan.token)], pages_max=1)
        account = f"projects/-/serviceAccounts/{self._settings.machine_account}"
        self._need("iam", f"/v1/{account}:testIamPermissions", account, [ACT_AS])
        if (subscription := self._settings.preemptions) is not None:
            self._need("pubsub", f"/v1/{subscription}:testIamPermissions", subscription, [CONSUME])
        return f"prices of {self._market.prices.date}; whether VMs may be made shows at the first order"

    def _need(self, service: str, path: str, resource: str, wanted: Sequence[str]) -> None:
        with calling(f"testIamPermissions of {resource}"):
            answer = self._gcp.post(service, path, {"permissions": list(wanted)}).json()
            lacking = sorted(set(wanted) - set(answer.get("permissions", [])))
        if lacking:
            raise ProviderDenied(f"the controller's account lacks {', '.join(lacking)} on {resource}; see terraform/gcp")

    def _launched(self, plan: LaunchPlan) -> InstanceView:
        if (ended := self._ended.get(self._id(plan))) is not None:
            return ended
        body = compute_v1.Instance(vm_request.vm(plan, self._settings, self._host.family, self._early_seconds))
        what = f"insert {plan.pool}"
        try:
            with calling(what):
                request = compute_v1.InsertInstanceRequest(
                    project=self._settings.project,
                    zone=plan.pool.zone,
                    instance_resource=body,
                    request_id=vm_request.request_id_of(plan.token, self._failed.get(plan.token, "")),
                )
                try:
                    operation = self._gcp.instances.insert_unary(request, **ONCE)
                except GoogleAPICallError as e:
                    if error_codes.code_of(e) != EXISTS:
                        raise
                    return self._ordered(plan, is_done=False)
            operation = self._waited(operation, plan.pool.zone)
            if operation.error.errors:
                self._failed[plan.token] = operation.name
                if len(self._failed) > FAILED_MAX:
                    del self._failed[next(iter(self._failed))]
                raise error_codes.of_operation(operation.error.errors, what)
        except UnknownToProvider as e:  # an image, a subnetwork, an account
            raise Invalid(str(e)) from e
        return self._ordered(plan, is_done=operation.status == DONE)

    def _id(self, plan: LaunchPlan) -> InstanceId:
        return InstanceId(vm_id(vm_request.name_of(plan.token), plan.pool.zone))

    def _waited(self, operation: Any, zone: str) -> Any:
        """The operation when it is done, or as it is after some seconds. A refusal that comes later is told by `_ends`."""
        if operation.status == DONE:
            return operation
        request = compute_v1.WaitZoneOperationRequest(project=self._settings.project, zone=zone, operation=operation.name)
        try:
            with calling("wait"):
                return self._gcp.operations.wait(request, retry=None, timeout=ORDER_SECONDS)
        except ProviderError:  # it goes on all the same: the listing will tell
            return operation

    def _ordered(self, plan: LaunchPlan, *, is_done: bool) -> InstanceView:
        """The VM of an order that was taken, now or before. One that is not there any more has ended, if the order is done."""
        request = compute_v1.GetInstanceRequest(
            project=self._settings.project, zone=plan.pool.zone, instance=vm_request.name_of(plan.token)
        )
        try:
            with calling("get"):
                view = view_of(self._gcp.instances.get(request, **ONCE))
        except UnknownToProvider as e:
            if not is_done:
                raise ProviderError(f"{self._id(plan)} was ordered and is not there yet") from e
            now = self._host.clock.now()
            gone = InstanceView(
                self._id(plan), plan.token, plan.pool, plan.market, InstanceState.GONE, now, ended_at=now, tags=dict(plan.tags)
            )
            return self._ended.setdefault(gone.id, gone)
        if view.pool != plan.pool or view.token != plan.token:
            raise Invalid(f"{view.id} is there already, as {view.pool}: a repeated order has to be the same")
        self._last_seen[view.id] = view
        return view

    def terminate(self, instance: InstanceId) -> None:
        """Order the VM's end."""
        name, _, zone = instance.partition(".")
        if not zone:
            return  # no id of ours
        request = compute_v1.DeleteInstanceRequest(project=self._settings.project, zone=zone, instance=name)
        try:
            with calling(f"delete {instance}"):
                self._gcp.instances.delete_unary(request, **ONCE)
        except UnknownToProvider:
            return  # ended long ago
        except Invalid as e:
            if error_codes.UNKNOWN_ZONE not in str(e):
                raise

    def describe(self) -> Listing:
        """All VMs of the family, by label, and those that ended lately. Complete only if every zone and entry could be read."""
        listed = cloud_listing.read(self._pages(), partial(calling, "aggregatedList"), _entries, view_of)
        found = {view.id: view for view in listed.instances}
        complete = listed.complete and self._note_ended(found)
        return Listing(list({**self._ended, **found}.values()), complete)

    def _pages(self) -> Iterator[Any]:
        filtered = f'labels.{vm_request.FAMILY_LABEL}="{self._host.family}"'
        request = compute_v1.AggregatedListInstancesRequest(project=self._settings.project, filter=filtered, max_results=PAGE)
        yield from self._gcp.instances.aggregated_list(request, **ONCE).pages

    def _note_ended(self, found: Mapping[InstanceId, InstanceView]) -> bool:
        """VMs that were there and are not: one question tells how they ended. False: it could not be asked.

        One of which Google tells no end is left out, and asked for again: listings may lag. An order that failed late is told
        as one that Google took: it had no room for it.
        """
        now = self._host.clock.now()
        gone = {id_: view for id_, view in self._last_seen.items() if id_ not in found}
        try:
            ends = self._ends(gone) if gone else {}
        except ProviderError as e:
            log.warning("ends.unknown", reason=str(e))
            return False
        self._missing = {id_: self._missing.get(id_, now) for id_ in gone}
        forgotten = {id_ for id_, since in self._missing.items() if (now - since).total_seconds() > END_UNKNOWN_SECONDS}
        ends = {**{id_: (self._missing[id_], DELETED) for id_ in forgotten}, **ends}
        for id_, (at, kind) in ends.items():
            ended_at, reclaimed = max(at, gone[id_].launched_at), kind != DELETED
            self._ended[id_] = replace(gone[id_], state=InstanceState.GONE, ended_at=ended_at, reclaimed=reclaimed)
        self._last_seen = {**{id_: view for id_, view in gone.items() if id_ not in ends}, **found}
        self._ended = {id_: v for id_, v in self._ended.items() if id_ not in found and _age(v, now) < ENDED_SECONDS}
        return True

    def _ends(self, gone: Collection[InstanceId], pages_max: int = END_PAGES_MAX) -> dict[InstanceId, tuple[datetime, str]]:
        """When and by what these VMs ended, as far as Google tells. A preemption counts, not the deletion that it leads to."""
        wanted = " OR ".join(f'(operationType="{kind}")' for kind in (PREEMPTED, DELETED, ORDERED))
        request = compute_v1.AggregatedListGlobalOperationsRequest(
            project=self._settings.project, filter=wanted, order_by="creationTimestamp desc", max_results=PAGE
        )
        ends: dict[InstanceId, tuple[datetime, str]] = {}
        with calling("operations.aggregatedList"):
            pages = iter(self._gcp.all_operations.aggregated_list(request, **ONCE).pages)
            for page in itertools.islice(pages, pages_max):
                known = len(ends)
                for op in (o for scope in page.items.values() for o in scope.operations if "/instances/" in o.target_link):
                    id_ = InstanceId(vm_id(op.target_link.rpartition("/")[2], op.zone))
                    if id_ in gone and _ended_by(op) and ends.get(id_, (None, ""))[1] != PREEMPTED:
                        ends[id_] = datetime.fromisoformat(op.end_time or op.insert_time), op.operation_type
                if known == len(gone) or (all(kind == PREEMPTED for _, kind in ends.values()) and len(ends) == len(gone)):
                    break  # after a deletion one page more: the preemption that led to it is older
        return ends

    # ---- the store

    def outlet(self, instance: InstanceId) -> socket.socket:
        """A plain socket: the network decides."""
        del instance
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def store_access(self, job: str, attempt: int, machine: str = "") -> StoreAccess:  # noqa: ARG002 - none is kept
        """The store's address; `credentials` hold the rights in it."""
        del job, attempt
        return StoreAccess(self._host.store_url, self._settings.machines_store, renewed=True)

    def check_inputs(self, job: str, inputs: Sequence[str]) -> None:
        """Whether a token's boundary has room for them, whatever the attempt."""
        store_access.boundary(self._host.store_url, job, 1, inputs)

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        """A token of the job account, limited to this attempt."""
        options = store_access.boundary(self._host.store_url, job, attempt, inputs, home)
        with calling("generateAccessToken"):
            token, seconds = self._gcp.token(self._settings.job_account, options, TOKEN_SECONDS)
        return Credentials({"token": token}, self._host.clock.now() + timedelta(seconds=seconds))


def _ended_by(operation: Any) -> bool:
    """Whether its VM is gone by it: a deletion or a preemption that is done, an order that failed."""
    failed = bool(operation.error.errors)
    return bool(operation.status == DONE and failed == (operation.operation_type == ORDERED))


def _age(view: InstanceView, now: datetime) -> float:
    return 0.0 if view.ended_at is None else (now - view.ended_at).total_seconds()
