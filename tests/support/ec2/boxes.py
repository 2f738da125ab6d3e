"""Boxes as the machines of the test EC2: user-data runs, IMDS answers, the endpoint is reached over the box's link."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sts.models import sts_backends
from spotsurfer_providers.catalog import instance_types
from spotsurfer_providers.local import manual_control
from spotsurfer_providers.local.box import supervisor_client
from spotsurfer_providers.local.box.records import BoxRecord, Home
from support import cloud_boxes
from support.cloud_boxes import DISK_BYTES_MAX, ENDPOINT_PORT, GIB, CloudBoxes
from support.ec2.machines import Machine

from spotsurfer.ports.clock import SystemClock


@dataclass(frozen=True, slots=True)
class BoxSettings:
    """Of all boxes. `role_seconds`: how long credentials of an instance profile last; they are renewed at half of it."""

    state: Path
    socket: Path  # where the endpoint listens on this host
    link_bits_per_second: int | None = None
    role_seconds: int = 3600


class Boxes:
    """The hardware."""

    def __init__(self, settings: BoxSettings) -> None:
        self._settings = settings
        self._boxes = CloudBoxes(settings.state)
        self._clock = SystemClock()

    def start(self, machine: Machine, tags: Mapping[str, str], changed: Callable[[str], None]) -> None:
        """Make the box; what becomes of it is told by the watch."""
        self._boxes.start(self._record(machine, tags), changed, lambda: machine.state in ("pending", "running"))
        if machine.profile_role is not None:
            self._renew_later(machine)

    def rebalance(self, machine: Machine) -> None:
        """In its metadata."""
        self._boxes.advise(_box(machine))

    def warn(self, machine: Machine, at: datetime) -> None:
        """In its metadata; the box ends then even if nobody comes back for it."""
        self._boxes.warn(_box(machine), max(0.01, (at - self._clock.now()).total_seconds()))

    def end(self, machine: Machine, ended: Callable[[], None]) -> None:
        """At once."""
        self._boxes.end(_box(machine))
        ended()

    def close(self) -> None:
        """End all boxes of this folder, whoever made them."""
        self._boxes.close()

    def _renew_later(self, machine: Machine) -> None:
        def renew() -> None:
            if self._boxes.lives(_box(machine)):
                self._boxes.tell(_box(machine), role(machine, self._settings.role_seconds))
                self._renew_later(machine)

        timer = threading.Timer(self._settings.role_seconds / 2, renew)
        timer.daemon = True
        timer.start()

    def _record(self, machine: Machine, tags: Mapping[str, str]) -> BoxRecord:
        now, kind = self._clock.now(), instance_types()[machine.kind]
        volumes = [m["Ebs"].get("VolumeSize", 8) for m in machine.shape.get("BlockDeviceMappings", []) if "Ebs" in m]
        return BoxRecord(
            id=_box(machine),
            token=machine.id,
            family="test-ec2",
            region=machine.region,
            zone=machine.zone,
            instance_type=machine.kind,
            market=machine.market,
            tags=dict(tags),
            user_data=machine.user_data,
            launched_at=now.isoformat(),
            launched_seconds=0.0,
            spot_launch=None,
            cpus=min(kind.cpus, os.cpu_count() or 1),
            memory_bytes=kind.memory_bytes,
            disk_bytes=min(DISK_BYTES_MAX, sum(volumes) * GIB) or DISK_BYTES_MAX,
            link_bits_per_second=self._settings.link_bits_per_second,
            notice_seconds=120.0,
            store_root=None,
            scenario=None,
            sockets={str(ENDPOINT_PORT): str(self._settings.socket)},
            metadata=metadata(machine, self._settings.role_seconds),
            clock_offset_seconds=int(machine.id[-4:], 16) * 60,
        )


def metadata(machine: Machine, role_seconds: int) -> dict[str, str]:
    """What the metadata service says of it beside what a machine of any cloud is told."""
    said = {"instance-id": machine.id, "ami-id": str(machine.shape["ImageId"]), "hostname": f"{machine.id}.ec2.internal"}
    if keys := machine.shape.get("KeyName"):
        said["public-keys"] = f"0={keys}"
    return said | role(machine, role_seconds)


def role(machine: Machine, seconds: int) -> dict[str, str]:
    """Fresh credentials of the instance profile's role, as the metadata service gives them."""
    arn = machine.profile_role
    if arn is None:
        return {}
    backend = sts_backends[DEFAULT_ACCOUNT_ID]["aws"]
    session = backend.assume_role(
        region_name=machine.region,
        role_session_name=machine.id,
        role_arn=arn,
        policy="",
        duration=seconds,
        external_id="",
    )
    text = {
        "Code": "Success",
        "LastUpdated": _iso(SystemClock().now()),
        "Type": "AWS-HMAC",
        "AccessKeyId": session.access_key_id,
        "SecretAccessKey": session.secret_access_key,
        "Token": session.session_token,
        "Expiration": _iso(session.expiration.replace(tzinfo=UTC)),
    }
    return {f"iam/security-credentials/{arn.rpartition('/')[2]}": json.dumps(text, indent=2)}


def leftovers(state: Path) -> list[str]:
    """Boxes of a folder that have not ended."""
    return manual_control.living(state)


def console(state: Path, instance: str) -> str:
    """What a machine printed."""
    return cloud_boxes.console(state, box_of(instance))


def ask_box(state: Path, instance: str, order: Mapping[str, object]) -> dict[str, object]:
    """One order to a box's supervisor. Raises orders.NoAnswer or ValueError."""
    return supervisor_client.ask(Home(state).folder(box_of(instance)).path, order)


def _box(machine: Machine) -> str:
    return box_of(machine.id)


def box_of(instance: str) -> str:
    """The box of an instance."""
    return f"box-{instance.removeprefix('i-')[-12:]}"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
