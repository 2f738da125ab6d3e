"""Boxes as the VMs of the test Compute Engine: the startup script runs, the metadata server answers, an account is there."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_providers.local.box.records import BoxRecord
from spotsurfer_wire.google_vm import NOTICE_ATTRIBUTE, NOTICE_SECONDS
from support.cloud_boxes import DISK_BYTES_MAX, GIB, CloudBoxes
from support.gce.cloud import TYPES, Vm
from support.gce.identity import Identity

from spotsurfer.ports.clock import SystemClock

TOKEN = "service-accounts/default/token"


@dataclass
class Boxes:
    """The hardware. `sockets`: where the test cloud, and others, listen for machines, by the port at which those ask."""

    state: Path
    sockets: Mapping[int, Path]
    identity: Identity
    link_bits_per_second: int | None = None

    def __post_init__(self) -> None:
        self._boxes = CloudBoxes(self.state)

    def start(self, vm: Vm, changed: Callable[[str], None]) -> None:
        """Make the box of a VM, unless its end came first."""
        self._boxes.start(self._record(vm), changed, lambda: vm.ends_at is None)
        self._renew_later(vm)

    def warn(self, vm: Vm, seconds: float) -> None:
        """In its metadata."""
        self._boxes.warn(box_of(vm.name), seconds)

    def end(self, vm: Vm) -> None:
        """At once."""
        self._boxes.end(box_of(vm.name))

    def close(self) -> None:
        """End all."""
        self._boxes.close()

    def _renew_later(self, vm: Vm) -> None:
        def renew() -> None:
            if self._boxes.lives(box_of(vm.name)):
                self._boxes.tell(box_of(vm.name), self._account(vm))
                self._renew_later(vm)

        timer = threading.Timer(self.identity.token_seconds / 2, renew)
        timer.daemon = True
        timer.start()

    def _account(self, vm: Vm) -> dict[str, str]:
        """A fresh token of the VM's account, as the metadata server gives it."""
        (account,) = vm.body["serviceAccounts"]
        token = {"access_token": self.identity.issue(account["email"]), "token_type": "Bearer"}
        return {TOKEN: json.dumps({**token, "expires_in": int(self.identity.token_seconds)})}

    def _record(self, vm: Vm) -> BoxRecord:
        kind = vm.body["machineType"].rpartition("/")[2]
        cpus, mib, *_ = TYPES[kind]
        disk = int(vm.body["disks"][0]["initializeParams"]["diskSizeGb"])
        spot = vm.body["scheduling"]["provisioningModel"] == "SPOT"
        return BoxRecord(
            id=box_of(vm.name),
            token=vm.name,
            family="test-gce",
            region=vm.zone.rpartition("-")[0],
            zone=vm.zone,
            instance_type=kind,
            market="spot" if spot else "on-demand",
            tags={},
            user_data=vm.metadata["startup-script"],
            launched_at=SystemClock().now().isoformat(),
            launched_seconds=0.0,
            spot_launch=None,
            cpus=min(cpus, os.cpu_count() or 1),
            memory_bytes=mib << 20,
            disk_bytes=min(DISK_BYTES_MAX, disk * GIB),
            link_bits_per_second=self.link_bits_per_second,
            notice_seconds=float(vm.metadata.get(NOTICE_ATTRIBUTE, NOTICE_SECONDS)),
            store_root=None,
            scenario=None,
            sockets={str(port): str(path) for port, path in self.sockets.items()},
            metadata={"name": vm.name, **self._account(vm)},
            metadata_dialect="gcp",
            clock_offset_seconds=vm.id % 86400,
        )


def box_of(name: str) -> str:
    """The box of a VM."""
    return f"box-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
