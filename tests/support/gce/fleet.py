"""A whole spotsurfer on the test Compute Engine: a controller with the provider `gcp`, agents in boxes, nothing left over."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_providers.local import manual_control
from spotsurfer_wire.google_vm import vm_id
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Head
from spotsurfer_wire.store.obstore import open_store
from support import cloud_boxes, gcp, levels
from support.boxes import Yard
from support.cloud_boxes import ENDPOINT_PORT
from support.ec2.fleet import config
from support.fleet import Fleet
from support.gce import terraformed
from support.gce.boxes import Boxes, box_of
from support.gce.cloud import Cloud, Vm
from support.gce.server import TestGce, serve
from support.patience import FACTOR, patient

from spotsurfer.model.errors import SpotsurferError


@dataclass
class Surf(Fleet):
    """The controller's `data` are those of a Fleet; machines are the test cloud's."""

    gce: TestGce = field(default=None)  # type: ignore[assignment]

    def head(self, job: str) -> list[Head]:
        log = HeadLog(open_store(gcp.STORE, self.gce.options()), job)
        log.refresh()
        return log.entries

    def instance(self, job: str) -> str:
        """The VM of the newest attempt that runs."""
        return str([a for a in self.show(job)["attempts"] if a["state"] == "running"][-1]["instance"])

    def vm(self, instance: str) -> Vm:
        """What the test cloud knows of one."""
        return next(vm for vm in self.gce.cloud.vms.values() if vm_id(vm.name, vm.zone) == instance)

    def preempt(self, instance: str, notice_seconds: float) -> None:
        """Google takes it."""
        vm = self.vm(instance)
        self.gce.cloud.preempt(vm.name, vm.zone, notice_seconds)

    def left(self) -> list[str]:
        """Everything of the cloud that would be paid for."""
        self.gce.cloud._settle()
        vms = [f"VM {vm.name} is {vm.status}" for vm in self.gce.cloud.vms.values()]
        return vms + [f"upload {key}" for key, _ in self.gce.bucket.uploads.values()]

    def explain(self) -> str:
        """Timelines, the controller's, the machines' and the cloud's last words."""
        parts = [(self.path / "controller.log").read_text()[-4000:], *self.gce.failures]
        for job in self.steps:
            with suppress(SpotsurferError):
                parts += [f"{m['at'][11:22]} {m['attempt']} {m['kind']} {m['text']}" for m in self.moments(job)]
        state = self.path / "cloud"
        for vm in self.gce.cloud.vms.values():
            parts += [f"== {vm.name} {vm.status} {vm.zone}", cloud_boxes.console(state, box_of(vm.name))[-1500:]]
        for box in manual_control.living(state):
            with suppress(OSError, SpotsurferError):
                log = Path(f"/proc/{manual_control.box_status(state, box)['pid']}/root/var/lib/spotsurfer/agent.log")
                parts.append(f"== {box}\n" + log.read_text()[-3000:])
        return "\n".join(parts)


@contextmanager
def surf(
    path: Path, interval: str = "4s", link: int | None = None, run: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[Surf]:
    """A running controller on a test cloud of its own; at the end everything is stopped and nothing may be left.

    With `run`, one of Terraform's, the configuration and the grants are those that it makes.
    """
    levels.only_for_real_tests("a test cloud with boxes")
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gce-") as short:  # the path of a test is too long for a socket
        socket, cloud = Path(short) / "socket", Cloud()
        with serve(cloud, socket) as gce:
            cloud.hardware = hardware = Boxes(path / "cloud", {ENDPOINT_PORT: socket}, gce.identity, link)
            table = gcp.table(gce.endpoint)
            if run is not None:
                gce.identity.grants = terraformed.grants(run)
                table = {**tomllib.loads(run["outputs"]["config"]["value"])["provider"]["gcp"], "endpoint_url": gce.endpoint}
            try:
                with _controlled(path, gce, interval, {**table, "machine_types": ["n2-standard-2"], **settings}) as made:
                    yield made
            finally:
                hardware.close()
    Yard(path / "cloud", None).assert_clean()  # type: ignore[arg-type]


@contextmanager
def _controlled(path: Path, gce: TestGce, interval: str, settings: dict[str, Any]) -> Iterator[Surf]:
    file, key = path / "spotsurfer.toml", gce.key_file(path / "controller.json")
    environment = {**os.environ, "GOOGLE_APPLICATION_CREDENTIALS": str(key), "NO_GCE_CHECK": "true"}
    made = Surf(path, file, environment, gce=gce)
    machines = {"base_url": cloud_boxes.ENDPOINT, "allow_http": "true"}
    table = {"store_options": machines, **settings}
    options = {"base_url": gce.endpoint, "allow_http": "true"}
    file.write_text(patient(config(made.data, gcp.STORE, options, interval, {"gcp": table})))
    try:
        made.start()
        yield made
    finally:
        if made.controller is not None and made.controller.poll() is None:
            made.controller.terminate()
            made.controller.wait(30 * FACTOR)
