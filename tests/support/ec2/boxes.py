"""Boxes as the machines of the test EC2: user-data runs, IMDS answers, the endpoint is reached over the box's link."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sts.models import sts_backends
from spotsurfer_providers.catalog import instance_types
from spotsurfer_providers.local import cleanup, manual_control
from spotsurfer_providers.local.box import network, supervisor_client
from spotsurfer_providers.local.box.records import BoxFolder, BoxRecord, BoxState, Home
from spotsurfer_providers.local.box.supervisor_client import make_box, reap
from spotsurfer_providers.local.host_checks import check_host
from support.ec2.machines import Machine

from spotsurfer.model.errors import Conflict, NotFound
from spotsurfer.ports.clock import SystemClock

ENDPOINT_PORT = network.GATEWAY_PORT
ENDPOINT = f"http://{network.CLOUD_ADDRESS}:{ENDPOINT_PORT}"  # the endpoint of all services, from inside a box
_LOOK_SECONDS = 0.05
_GIB = 1 << 30
_DISK_BYTES_MAX = 20 * _GIB


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
        self._home = Home(settings.state)
        self._home.make()
        self._clock = SystemClock()
        self._watched: dict[str, tuple[Machine, Callable[[str], None]]] = {}  # by box
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, machine: Machine, tags: Mapping[str, str], changed: Callable[[str], None]) -> None:
        """Make the box; what becomes of it is told by the watch."""
        with self._lock:
            self._watched[_box(machine)] = (machine, changed)
        with self._home.launching():  # `end` may have come first
            if machine.state not in ("pending", "running"):
                return
            make_box(self._home, self._record(machine, tags))
        if machine.profile_role is not None:
            self._renew_later(machine)

    def rebalance(self, machine: Machine) -> None:
        """In its metadata."""
        with contextlib.suppress(Conflict, NotFound):
            manual_control.rebalance(self._settings.state, _box(machine))

    def warn(self, machine: Machine, at: datetime) -> None:
        """In its metadata; the box ends then even if nobody comes back for it."""
        seconds = max(0.01, (at - self._clock.now()).total_seconds())
        with contextlib.suppress(Conflict, NotFound):
            manual_control.reclaim(self._settings.state, _box(machine), seconds)

    def end(self, machine: Machine, ended: Callable[[], None]) -> None:
        """At once."""
        with self._home.launching():
            folder = self._home.folder(_box(machine))
            exists = folder.path.exists()
        if exists:
            cleanup.end_now(folder)
            cleanup.settle(self._home, check_host(), folder, self._clock.now())
        with self._lock:
            self._watched.pop(_box(machine), None)
        reap()
        ended()

    def close(self) -> None:
        """End all boxes of this folder, whoever made them."""
        clean(self._settings.state)
        reap()

    # ------------------------------------------------------------ what becomes of them

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._lock:
                watched = list(self._watched.items())
            for box, (_, changed) in watched:
                with contextlib.suppress(OSError, ValueError):
                    self._look(BoxFolder(self._home.boxes / box), changed)

    def _look(self, folder: BoxFolder, changed: Callable[[str], None]) -> None:
        if not folder.path.exists():
            return
        status = folder.status()
        if status.state is BoxState.RUNNING:
            changed("running")
        elif status.state is BoxState.ENDED:
            with self._lock:
                self._watched.pop(folder.id, None)
            changed("reclaimed" if status.reclaimed else "powered-off")

    def _renew_later(self, machine: Machine) -> None:
        def renew() -> None:
            with self._lock:
                if _box(machine) not in self._watched:
                    return
            with contextlib.suppress(Conflict, NotFound):
                manual_control.set_metadata(self._settings.state, _box(machine), role(machine, self._settings.role_seconds))
            self._renew_later(machine)

        timer = threading.Timer(self._settings.role_seconds / 2, renew)
        timer.daemon = True
        timer.start()

    # ------------------------------------------------------------ what they are made from

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
            disk_bytes=min(_DISK_BYTES_MAX, sum(volumes) * _GIB) or _DISK_BYTES_MAX,
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


def clean(state: Path) -> list[str]:
    """End and remove all boxes of a folder, whoever made them; what was removed."""
    return manual_control.clean(state, end_living=True)


def leftovers(state: Path) -> list[str]:
    """Boxes of a folder that have not ended."""
    return manual_control.living(state)


def console(state: Path, instance: str) -> str:
    """What a machine printed."""
    file = Home(state).folder(box_of(instance)).path / "console.log"
    return file.read_text(errors="replace") if file.exists() else ""


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
