"""Machines that boot as the machines of the test EC2: cloud-init takes user-data from the metadata service.

`python -m vm.hardware` is `python -m support.ec2` with them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from spotsurfer_providers.local.box.network import CLOUD_ADDRESS
from support.ec2 import __main__ as program
from support.ec2.boxes import BoxSettings, metadata
from support.ec2.machines import Machine
from vm import image
from vm import metadata as service
from vm.guest import Guest

from spotsurfer.ports.clock import SystemClock

LOOK_SECONDS = 0.5
MEMORY_MEBIBYTES = 2048
# By instance type: release and processor.
MODELS = {"m6i.large": ("bookworm", "max"), "m5.large": ("bookworm", "Haswell"), "c6i.large": ("trixie", "max")}
UUID = "ec2e1916-9099-7caf-fd21-0123456789ab"  # cloud-init knows Amazon by its first letters
SMBIOS = (
    *("-smbios", f"type=1,manufacturer=Amazon EC2,product=m6i.large,uuid={UUID},serial={UUID}"),
    *("-smbios", "type=3,asset=Amazon EC2"),
)


def guest_of(state: Path, instance: str, kind: str) -> Guest:
    """The guest that is this instance of the test EC2 whose files lie in `state`."""
    suite, processor = MODELS[kind]
    return Guest(
        instance[-8:],
        image.debian(suite),
        state / instance,
        processor=processor,
        memory_mebibytes=MEMORY_MEBIBYTES,
        addresses=(service.ADDRESS, CLOUD_ADDRESS),
        options=SMBIOS,
    )


@dataclass
class Running:
    """One of them."""

    machine: Machine
    guest: Guest
    metadata: subprocess.Popen[bytes]
    changed: Callable[[str], None]
    taken_at: datetime | None = None


class Machines:
    """The hardware."""

    def __init__(self, settings: BoxSettings) -> None:
        self._settings, self._clock = settings, SystemClock()
        self._known: dict[str, Running] = {}
        self._lock = threading.Lock()
        self._starter = ThreadPoolExecutor(1)  # guests end with the thread that started them
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, machine: Machine, tags: Mapping[str, str], changed: Callable[[str], None]) -> None:
        """Boot it; what becomes of it is told by the watch."""
        self._starter.submit(self._boot, machine, tags, changed)

    def _boot(self, machine: Machine, tags: Mapping[str, str], changed: Callable[[str], None]) -> None:
        guest = guest_of(self._settings.state, machine.id, machine.kind)
        guest.folder.mkdir(parents=True)
        self._tell(machine, tags=dict(tags), user_data=machine.user_data)
        guest.lay_network()
        words = [sys.executable, "-m", "vm.metadata", str(guest.folder / "metadata.json"), str(self._settings.socket)]
        with (guest.folder / "metadata.log").open("wb") as log:
            serving = subprocess.Popen([*guest.inside(), *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        guest.start()
        with self._lock:
            self._known[machine.id] = Running(machine, guest, serving, changed)
        changed("running")

    def rebalance(self, machine: Machine) -> None:
        """In its metadata."""
        self._tell(machine, rebalance_at=self._clock.now().isoformat())

    def warn(self, machine: Machine, at: datetime) -> None:
        """In its metadata; it is off then."""
        with self._lock:
            if (found := self._known.get(machine.id)) is None:
                return
            found.taken_at = at
        self._tell(machine, action_at=at.isoformat())

    def end(self, machine: Machine, ended: Callable[[], None]) -> None:
        """At once."""
        with self._lock:
            found = self._known.pop(machine.id, None)
        if found is not None:
            _end(found)
        ended()

    def close(self) -> None:
        """End all."""
        with self._lock:
            left = list(self._known.values())
            self._known.clear()
        for found in left:
            _end(found)

    def _tell(self, machine: Machine, **more: Any) -> None:
        """Write the file of its metadata service, whole or not at all."""
        file = self._settings.state / machine.id / "metadata.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        fixed = {
            "instance-type": machine.kind,
            "instance-life-cycle": machine.market,
            "placement/region": machine.region,
            "placement/availability-zone": machine.zone,
            "placement/availability-zone-id": f"{machine.zone}-id",
            "local-ipv4": "10.0.2.15",
            "local-hostname": f"{machine.id}.ec2.internal",
            "events/maintenance/history": "[]",
            "events/maintenance/scheduled": "[]",
            **metadata(machine, self._settings.role_seconds),
        }
        identity = {"instanceId": machine.id, "instanceType": machine.kind, "region": machine.region}
        identity |= {"availabilityZone": machine.zone, "accountId": "123456789012", "version": "2017-09-30"}
        new = file.with_suffix(".new")
        new.write_text(json.dumps({**before, "fixed": fixed, "identity": identity, **more}))
        new.replace(file)

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with self._lock:
                now = self._clock.now()
                over = [r for r in self._known.values() if r.guest.ended or (r.taken_at is not None and r.taken_at <= now)]
                for found in over:
                    del self._known[found.machine.id]
            for found in over:
                taken = not found.guest.ended
                _end(found)
                found.changed("reclaimed" if taken else "powered-off")


def _end(found: Running) -> None:
    found.guest.stop()
    found.metadata.kill()
    with suppress(subprocess.TimeoutExpired):
        found.metadata.wait(10)


if __name__ == "__main__":
    program.main(Machines)
