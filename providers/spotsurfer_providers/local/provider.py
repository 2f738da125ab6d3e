"""The local provider: instances are boxes on this host.

Billing as on AWS: by the second with a minimum of 60 s. There is no free first hour for reclaimed boxes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spotsurfer.model.errors import ConfigError, DiskFull, HostUnfit, Invalid, NoCapacity, ProviderError, QuotaExceeded
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.provider import (
    USER_DATA_BYTES_MAX,
    BillingRule,
    Capabilities,
    Credentials,
    InstanceState,
    InstanceView,
    LaunchPlan,
    Listing,
    ProviderHost,
    StoreAccess,
)
from spotsurfer_providers.catalog import instance_types
from spotsurfer_providers.local import cleanup
from spotsurfer_providers.local.box import network, rootfs, scenario, supervisor_client
from spotsurfer_providers.local.box.cgroups import Hierarchy
from spotsurfer_providers.local.box.records import BoxFolder, BoxRecord, BoxState, Home, job_and_attempt
from spotsurfer_providers.local.box.scenario import load
from spotsurfer_providers.local.box.supervisor_client import make_box, reap
from spotsurfer_providers.local.host_checks import check_host
from spotsurfer_providers.local.object_gateway.server import BUCKET, Keys
from spotsurfer_providers.local.settings import LocalSettings

OUTLET_SECONDS = 5.0
_BOX_ID = re.compile(r"box-[0-9a-f]{12}")
_STATES = {
    BoxState.STARTING: InstanceState.PENDING,
    BoxState.RUNNING: InstanceState.RUNNING,
    BoxState.STOPPING: InstanceState.STOPPING,
    BoxState.ENDED: InstanceState.GONE,
}


class LocalProvider:
    """Boxes of one data folder."""

    name = "local"
    boot = None  # boxes read the store through the gateway, or with what its options say
    witness = None  # its metadata service informs a box's agent, and nothing else does

    def __init__(self, settings: LocalSettings, host: ProviderHost) -> None:
        own = [host.data_dir, *([Path(root)] if (root := _store_root(host.store_url)) else [])]
        _check_buckets("buckets", settings.buckets, own)
        _check_buckets("folders", settings.folders, own)
        self._settings = settings
        self._host = host
        self._home = Home(host.data_dir)
        self._plot = load(settings.scenario_path())
        self._types = instance_types()
        self.capabilities = Capabilities(
            notice_seconds=settings.notice_seconds,
            metadata_dialect="aws",
            billing=(BillingRule(minimum_seconds=60.0, reclaimed_first_hour_free=False),),
            shares_gpus=True,
            keeps=_store_root(host.store_url) is not None,
        )

    # ------------------------------------------------------------ offers

    def offers(self) -> Sequence[Offer]:
        """Every pool in both markets. As on a cloud, the list does not show capacity."""
        at = self._seconds(self._host.clock.now())
        return [self._offer(pool, market, at) for pool in self._settings.pool_list() for market in Market]

    def _offer(self, pool: Pool, market: Market, at: float) -> Offer:
        kind = self._types[pool.instance_type]
        listed = kind.on_demand_usd_micros_per_hour
        base = kind.spot_usd_micros_per_hour if market is Market.SPOT else listed
        factor = Decimal(repr(scenario.price_factor(self._plot, pool, market, at)))
        price = int((base * factor).to_integral_value(ROUND_HALF_UP))
        return Offer(pool, market, price, listed, kind.cpus, kind.memory_bytes, gpus=rootfs.gpus_of_host())

    # ------------------------------------------------------------ instances

    def launch(self, plan: LaunchPlan) -> InstanceView:
        """Make a box, or find the one of this token."""
        trees = check_host()
        now = self._host.clock.now()
        with _disk_errors():
            self._home.make()
            with self._home.launching():
                found = self._home.folder(_box_id(plan.token))
                if not found.path.exists():
                    self._admit(plan, trees, now)
                    found = make_box(self._home, self._record(plan, now))
        record = found.record()
        if record.token != plan.token:
            raise Invalid(f"{found.id} belongs to another token: make tokens that differ in their first 12 characters")
        return _view(record, found)

    def _admit(self, plan: LaunchPlan, trees: Sequence[Hierarchy], now: datetime) -> None:
        """Raise if the simulated cloud, or this host, has no room."""
        if plan.pool not in self._settings.pool_list():
            raise Invalid(f"There is no pool {plan.pool}: see provider.local.pools")
        if len(plan.user_data.encode()) > USER_DATA_BYTES_MAX:
            raise Invalid(f"User-data is longer than {USER_DATA_BYTES_MAX} bytes")
        views, _ = self._views(trees, now)
        live = [v for v in views if v.state is not InstanceState.GONE]
        if len(live) >= self._settings.instances_max:
            raise QuotaExceeded(f"{len(live)} boxes live already: raise provider.local.instances_max")
        why = scenario.refusal(self._plot, plan.pool, plan.market, self._seconds(now), self._home.reclaim_seconds())
        why = why or scenario.full(self._plot, plan.pool, plan.market, [(v.pool, v.market) for v in live])
        if why:
            raise NoCapacity(f"No {plan.market} capacity in {plan.pool}: {why}")

    def _record(self, plan: LaunchPlan, now: datetime) -> BoxRecord:
        kind, settings = self._types[plan.pool.instance_type], self._settings
        path = settings.scenario_path()
        return BoxRecord(
            id=_box_id(plan.token),
            token=plan.token,
            family=self._host.family,
            region=plan.pool.region,
            zone=plan.pool.zone,
            instance_type=plan.pool.instance_type,
            market=str(plan.market),
            tags=dict(plan.tags),
            user_data=plan.user_data,
            launched_at=now.isoformat(),
            launched_seconds=self._seconds(now),
            spot_launch=self._home.next_spot_launch() if plan.market is Market.SPOT else None,
            cpus=min(kind.cpus, os.cpu_count() or 1),
            memory_bytes=kind.memory_bytes,
            disk_bytes=settings.disk_bytes,
            disk_kind=settings.disk_kind or "",
            link_bits_per_second=settings.link_bits_per_second,
            notice_seconds=settings.notice_seconds,
            store_root=_store_root(self._host.store_url) if job_and_attempt(plan.tags) else None,
            scenario=None if path is None else str(path),
            buckets=dict(settings.buckets),
            folders=dict(settings.folders),
            sockets=dict(settings.sockets),
            root=settings.root or "",
            runtimes=settings.runtimes or "",
            clock_offset_seconds=int(sha256(plan.token.encode()).hexdigest(), 16) % (settings.clock_offset_seconds_max + 1),
        )

    def terminate(self, instance: InstanceId) -> None:
        """Order the end of a box."""
        if not _BOX_ID.fullmatch(instance):
            return
        folder = BoxFolder(self._home.boxes / instance)
        if folder.path.exists() and folder.status().state is not BoxState.ENDED:
            folder.order_end()
            supervisor_client.poke(folder.path)

    def describe(self) -> Listing:
        """All boxes of this family; ended ones for an hour."""
        reap()
        if not self._home.boxes.exists():
            return Listing((), complete=True)
        now = self._host.clock.now()
        try:
            cleanup.sweep_half_made(self._home, now)
            views, complete = self._views(check_host(), now)
            for folder in self._home.folders():
                cleanup.archive(self._home, folder, now)
        except OSError as e:
            raise ProviderError(f"The boxes in {self._home.path} can't be listed: {e}") from e
        return Listing(views, complete)

    def _views(self, trees: Sequence[Hierarchy], now: datetime) -> tuple[list[InstanceView], bool]:
        """The boxes, and whether all of them could be read."""
        views, complete = [], True
        for folder in self._home.folders():
            try:
                record = folder.record()
                if record.family == self._host.family:
                    cleanup.settle(self._home, trees, folder, now)
                    views.append(_view(record, folder))
            except FileNotFoundError:
                complete = complete and not folder.path.exists()  # moved to the archive meanwhile
            except (ValueError, TypeError):
                complete = False  # a torn record: `clean` removes it when no process keeps the box
        return views, complete

    # ------------------------------------------------------------ the rest

    def outlet(self, instance: InstanceId) -> socket.socket:
        """A socket at the cloud's end of the box's link."""
        folder = BoxFolder(self._home.boxes / instance)
        if not _BOX_ID.fullmatch(instance) or not folder.path.is_dir():
            raise ProviderError(f"there is no box {instance}")
        try:
            told = supervisor_client.ask(folder.path, {"order": "status"}, OUTLET_SECONDS)
            return network.plain_socket(int(told["supervisor"]))
        except (supervisor_client.NoAnswer, OSError, ValueError, KeyError) as e:
            raise ProviderError(f"{instance} can't be reached: {e}") from e

    def store_access(self, job: str, attempt: int, machine: str = "") -> StoreAccess:
        """A folder as S3 through the box's gateway, which knows job and attempt from the box's tags, or from the key if the box
        is kept for several; others unchanged."""
        if _store_root(self._host.store_url) is None:
            return StoreAccess(self._host.store_url, {})
        options = {
            "endpoint": f"http://{network.CLOUD_ADDRESS}:{network.GATEWAY_PORT}",
            "access_key_id": Keys(self._home.gateway_secret(), machine).make(job, attempt) if machine else f"{job}.{attempt}",
            "secret_access_key": "the-link-is-the-credential",
            "region": "us-east-1",
            "virtual_hosted_style_request": "false",
            "allow_http": "true",
            "unsigned_payload": "true",  # nobody reads the signature; SHA-256 of all that is sent takes as long as to send it
        }
        return StoreAccess(f"s3://{BUCKET}", options, {"s3://": options} if self._settings.buckets else {})

    def check_inputs(self, job: str, inputs: Sequence[str]) -> None:
        """Boxes get no credentials, so no inputs are too many."""

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        """A box's link to the gateway is its credential, so nothing needs renewal."""
        raise ProviderError(
            f"boxes get no credentials: {job}.{attempt} asked, with {len(inputs)} inputs{' and a folder' * bool(home)}"
        )

    def _seconds(self, now: datetime) -> float:
        """Seconds since the scenario's epoch, which the first call sets."""
        self._home.make()
        return (now - self._home.epoch(now)).total_seconds()


def _view(record: BoxRecord, folder: BoxFolder) -> InstanceView:
    status = folder.status()
    return InstanceView(
        id=InstanceId(record.id),
        token=record.token,
        pool=record.pool,
        market=Market(record.market),
        state=_STATES[status.state],
        launched_at=datetime.fromisoformat(record.launched_at),
        ended_at=None if status.ended_at is None else datetime.fromisoformat(status.ended_at),
        reclaimed=status.reclaimed and status.state is BoxState.ENDED,
        tags=record.tags,
        address=network.BOX_ADDRESS,
    )


def _box_id(token: str) -> str:
    part = token[:12] if re.fullmatch(r"[0-9a-f]{12,}", token) else sha256(token.encode()).hexdigest()[:12]
    return f"box-{part}"


def _check_buckets(key: str, buckets: Mapping[str, str], own: Sequence[Path]) -> None:
    """Jobs may read all of a bucket, so it must not hold the controller's own folders. Raises ConfigError."""
    for name, folder in buckets.items():
        for other in own:
            one, two = Path(folder).resolve(), other.resolve()
            if one.is_relative_to(two) or two.is_relative_to(one):
                raise ConfigError(
                    f"provider.local.{key}.{name} is {folder}, and {other} is the controller's own: jobs could read what it "
                    "keeps there of others, and its keys; name a folder beside it"
                )


def _store_root(url: str) -> str | None:
    """The folder of a file:// store; None for any other."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else None


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"No space left for a box's folder ({e.filename}): free some, or set another data_dir") from e
        raise HostUnfit(f"A box's folder can't be made: {e}") from e
