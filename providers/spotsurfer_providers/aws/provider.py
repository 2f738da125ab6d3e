"""The provider `aws`: RunInstances, DescribeInstances, TerminateInstances, and a queue of events as witness.

It orders one instance of one pool at a time, because our policy chooses the pool: CreateFleet would choose by itself, and its
answer would hide which pools refused. It sends each call that changes something once; the caller decides before a repetition.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from botocore.exceptions import ClientError
from spotsurfer_wire import object_keys

from spotsurfer.model.errors import NoCapacity, ProviderError, UnknownToProvider
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
from spotsurfer_providers.aws import run_instances, store_access
from spotsurfer_providers.aws.clients import Clients
from spotsurfer_providers.aws.error_codes import MISMATCH, TERMINATED, WOULD_HAVE_WORKED, calling, code_of, translated
from spotsurfer_providers.aws.interruption_queue import Queue
from spotsurfer_providers.aws.run_instances import TOKEN_TAG
from spotsurfer_providers.aws.settings import AwsSettings
from spotsurfer_providers.aws.spot_market import SpotMarket
from spotsurfer_providers.bucket_rights import boot_bucket
from spotsurfer_providers.catalog import egress_prices
from spotsurfer_providers.catalog.price_tables import billing_rules, list_prices

# ---- Views: EC2's answers as instances. Pure.

# "stopped" is no end: its disks still exist and cost, and somebody may start it again.
STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPING,
    "terminated": InstanceState.GONE,
}
# StateReason codes of an instance that AWS reclaimed (API reference, StateReason).
RECLAIMED = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")  # in StateTransitionReason, if EC2 reports it


def view_of(found: Mapping[str, Any], region: str, now: datetime, first_gone_at: datetime | None = None) -> InstanceView:
    """One instance. `first_gone_at`: when its end was first seen. Raises KeyError, TypeError or ValueError if incomplete."""
    tags = {t["Key"]: t["Value"] for t in found.get("Tags", [])}
    state = STATES[found["State"]["Name"]]
    launched_at = found["LaunchTime"]
    spot = found.get("InstanceLifecycle") == "spot"
    return InstanceView(
        id=InstanceId(found["InstanceId"]),
        token=tags.get(TOKEN_TAG) or found.get("ClientToken") or "",
        pool=Pool("aws", region, found["Placement"]["AvailabilityZone"], found["InstanceType"]),
        market=Market.SPOT if spot else Market.ON_DEMAND,
        state=state,
        launched_at=launched_at,
        ended_at=_ended_at(found, launched_at, first_gone_at or now) if state is InstanceState.GONE else None,
        reclaimed=state is InstanceState.GONE and (found.get("StateReason") or {}).get("Code") in RECLAIMED,
        tags=tags,
        address=found.get("PrivateIpAddress"),
        public_address=found.get("PublicIpAddress"),
    )


def _ended_at(found: Mapping[str, Any], launched_at: datetime, seen_at: datetime) -> datetime:
    """EC2's time of the end, else the first time that it was seen: EC2 does not always report it."""
    said = _WHEN.search(found.get("StateTransitionReason") or "")
    at = datetime.strptime(said.group(1), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) if said else seen_at
    return max(at, launched_at)


def _entries(page: Mapping[str, Any]) -> tuple[list[Any], bool]:
    return [i for r in page["Reservations"] for i in r["Instances"]], True


# ---- Provider

NOTICE_SECONDS = 120.0  # between the interruption notice and the reclaim
CREDENTIAL_SECONDS = 3600  # AWS's limit for a role that another role assumes
PAGE = 1000


class AwsProvider:
    """One region of one account."""

    name = "aws"

    def __init__(self, settings: AwsSettings, host: ProviderHost) -> None:
        options = settings.controllers_store, settings.machines_store
        self.boot = boot_bucket(host.store_url, settings.boot_url, store_access.SCHEMES, options)
        self._settings = settings
        self._host = host
        self._aws = Clients(settings)
        self._shop = SpotMarket(settings, self._aws, host.clock)
        self._gone_at: dict[str, datetime] = {}  # when an end was first seen, if EC2 reports no time
        self.capabilities = Capabilities(
            notice_seconds=NOTICE_SECONDS,
            metadata_dialect="aws",
            billing=billing_rules("aws"),
            prices=list_prices("aws"),
            rebalance=settings.rebalance,
            egress=settings.transfer_usd_per_gib.over(egress_prices("aws")),
            stores=store_access.SCHEMES,
        )
        self.witness = None if settings.queue_url is None else Queue(self._aws, settings.queue_url)

    def offers(self) -> Sequence[Offer]:
        """Allowed types in zones with a subnet, both markets. A listed offer may still lack capacity."""
        disk_bytes = (self._settings.root_volume_gib or 0) << 30
        return [replace(o, disk_bytes=disk_bytes) for o in self._shop.offers()]

    # ---- instances

    def launch(self, plan: LaunchPlan) -> InstanceView:
        """One instance, by exactly one call of RunInstances."""
        request = run_instances.run_instances(plan, self._settings, self._shop.image(), self._host.family)
        what = f"RunInstances {plan.pool}"
        try:
            with calling(what):
                try:
                    answer = self._aws.orders.run_instances(**request)
                except ClientError as e:
                    if code_of(e) not in (MISMATCH, TERMINATED):
                        raise
                    return self._made_before(plan.token, e)
                return self._view(answer["Instances"][0])
        except UnknownToProvider as e:  # concerns the settings, not an instance
            raise ProviderError(str(e)) from e

    def rehearse(self, plan: LaunchPlan) -> str:
        """Whether EC2 would take this order, by a dry run. Raises as `launch` does, but knows nothing of capacity."""
        request = run_instances.run_instances(plan, self._settings, self._shop.image(), self._host.family)
        with calling(f"RunInstances {plan.pool} (dry run)"):
            try:
                self._aws.orders.run_instances(**request, DryRun=True)
            except ClientError as e:
                if code_of(e) != WOULD_HAVE_WORKED:
                    raise
        return "the rights to launch suffice"

    def _made_before(self, token: str, error: ClientError) -> InstanceView:
        """An earlier call used the token: with other parameters (new image of a parameter, new settings), or it has ended."""
        found = self._pages([{"Name": "client-token", "Values": [token]}])
        made = [i for page in found for r in page["Reservations"] for i in r["Instances"]]
        if not made and code_of(error) == TERMINATED:
            raise NoCapacity("RunInstances: the machine of this order has ended, and EC2 has forgotten it")
        if not made:
            raise translated(error, "RunInstances: an order of the same token is not listed yet; it is looked for again")
        return self._view(made[0])

    def terminate(self, instance: InstanceId) -> None:
        """Order the instance's end."""
        try:
            with calling(f"TerminateInstances {instance}"):
                self._aws.orders.terminate_instances(InstanceIds=[instance])
        except UnknownToProvider:
            return  # ended long ago, or not known to all of EC2 yet: then the order is repeated

    def describe(self) -> Listing:
        """All instances of the family, by tag. Complete only if every page came and every entry could be read."""
        pages = iter(self._pages([{"Name": f"tag:{run_instances.FAMILY_TAG}", "Values": [self._host.family]}]))
        found = cloud_listing.read(pages, partial(calling, "DescribeInstances"), _entries, self._view)
        if found.complete:
            self._gone_at = {v.id: self._gone_at[v.id] for v in found.instances if v.id in self._gone_at}
        return found

    def _pages(self, filters: list[dict[str, Any]]) -> Any:
        paginator = self._aws.ec2.get_paginator("describe_instances")
        return paginator.paginate(Filters=filters, PaginationConfig={"PageSize": PAGE})

    def _view(self, entry: Any) -> InstanceView:
        now = self._host.clock.now()
        view = view_of(entry, self._settings.region, now, self._gone_at.get(entry["InstanceId"]))
        if view.state is InstanceState.GONE:
            self._gone_at.setdefault(view.id, now)
        return view

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
        """Whether a session's policy has room for them; its length does not depend on the attempt."""
        store_access.session_policy(self._host.store_url, self._settings.partition, job, 1, inputs)

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        """A session of the job role, limited to this attempt."""
        policy = store_access.session_policy(self._host.store_url, self._settings.partition, job, attempt, inputs, home)
        with calling("AssumeRole"):
            given = self._aws.sts.assume_role(
                RoleArn=self._settings.job_role_arn,
                RoleSessionName=object_keys.live_key(job, attempt).removeprefix(object_keys.live_prefix())[:64],
                Policy=policy,
                DurationSeconds=CREDENTIAL_SECONDS,
            )["Credentials"]
            values = {
                "access_key_id": given["AccessKeyId"],
                "secret_access_key": given["SecretAccessKey"],
                "token": given["SessionToken"],
            }
            return Credentials(values, given["Expiration"])
