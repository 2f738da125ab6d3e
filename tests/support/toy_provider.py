"""A provider in memory. A test copies this file into a package of its own, as a stranger would bring one: see `install`."""

from __future__ import annotations

import itertools
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from spotsurfer.model.errors import Invalid, ProviderError
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.provider import (
    USER_DATA_BYTES_MAX,
    Capabilities,
    Credentials,
    InstanceState,
    InstanceView,
    LaunchPlan,
    Listing,
    ProviderHost,
    StoreAccess,
)


class Toy:
    """Machines that are only written down."""

    name, witness, boot, capabilities = "toy", None, None, Capabilities(notice_seconds=30.0, metadata_dialect="azure")

    def __init__(self, settings: Mapping[str, object], host: ProviderHost) -> None:
        self._price, self._clock = int(str(settings.get("usd_micros_per_hour", 1000))), host.clock
        self._store = StoreAccess("s3://toy/fleet", {"region": "toy", "access_key_id": "a", "secret_access_key": "b"})
        self._machines: dict[str, InstanceView] = {}  # by token
        self._numbers = itertools.count(1)

    def offers(self) -> Sequence[Offer]:
        pool = Pool("toy", "nursery", "nursery-a", "brick.large")
        return [Offer(pool, m, self._price, self._price, cpus=2, memory_bytes=8 << 30) for m in Market]

    def launch(self, plan: LaunchPlan) -> InstanceView:
        if plan.token not in self._machines:
            if plan.pool not in {o.pool for o in self.offers()} or len(plan.user_data) > USER_DATA_BYTES_MAX:
                raise Invalid(f"toy: there is no {plan.pool}, or the user-data is too long")
            number, now = InstanceId(f"toy-{next(self._numbers):04}"), self._clock.now()
            running = InstanceView(number, plan.token, plan.pool, plan.market, InstanceState.RUNNING, now, tags=plan.tags)
            self._machines[plan.token] = running
        return self._machines[plan.token]

    def terminate(self, instance: InstanceId) -> None:
        for token, view in self._machines.items():
            if view.id == instance and view.ended_at is None:
                self._machines[token] = replace(view, state=InstanceState.GONE, ended_at=self._clock.now())

    def describe(self) -> Listing:
        return Listing(list(self._machines.values()), complete=True)

    def outlet(self, instance: InstanceId) -> socket.socket:
        raise ProviderError(f"toy: nobody reaches {instance}")

    def store_access(self, job: str, attempt: int, machine: str = "") -> StoreAccess:
        return self._store

    def check_inputs(self, job: str, inputs: Sequence[str]) -> None:
        """All are fine."""

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        raise ProviderError("toy: its access to the store is not renewed")


make = Toy


def install(site: Path) -> None:
    """This file as the package `spotsurfer_toy` in a folder for packages, with its one entry point, as pip would do it."""
    package, about = site / "spotsurfer_toy", site / "spotsurfer_toy-1.0.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    shutil.copy(__file__, package / "__init__.py")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: spotsurfer-toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[spotsurfer.providers]\ntoy = spotsurfer_toy:make\n")
