"""A whole spotsurfer on two test clouds: one controller, machines of EC2 and of Compute Engine, and a store in S3."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer_wire.google_vm import vm_id
from support import cloud_boxes, gcp
from support.boxes import Yard
from support.cloud_boxes import ENDPOINT_PORT
from support.ec2 import client
from support.ec2 import fleet as ec2
from support.gce.boxes import Boxes, box_of
from support.gce.cloud import ZONES, Cloud
from support.gce.server import TestGce, serve
from support.gce.storage import BUCKET
from support.patience import patient

GOOGLE_PORT = ENDPOINT_PORT + 1  # at which VMs of Google find Google; the other port leads to S3 from there, too
BOOT = f"gs://{BUCKET}/boot"
KIND = "n2-standard-2"


@dataclass
class Surf(ec2.Surf):
    """Machines of both clouds; what is said of EC2 there holds for it alone."""

    gce: TestGce = field(default=None)  # type: ignore[assignment]

    def preempt(self, instance: str, notice_seconds: float) -> None:
        """Google takes a VM."""
        vm = next(vm for vm in self.gce.cloud.vms.values() if vm_id(vm.name, vm.zone) == instance)
        self.gce.cloud.preempt(vm.name, vm.zone, notice_seconds)

    def aws_has(self, count: int | None) -> None:
        """EC2 has room for so many machines, spot or not; None = for all."""
        for market in ("spot", "on-demand"):
            self.cloud.order("capacity", pool="*", market=market, count=count)

    def google_is_exhausted(self) -> None:
        """Nothing can be had there any more."""
        self.gce.cloud.exhausted.update((zone, KIND) for zone in ZONES)

    def left(self) -> list[str]:
        """Everything of both clouds that would be paid for."""
        self.gce.cloud._settle()
        vms = [f"VM {vm.name} is {vm.status}" for vm in self.gce.cloud.vms.values()]
        return [*super().left(), *vms]

    def explain(self) -> str:
        """What a failure needs, of both."""
        state = self.path / "google"
        vms = self.gce.cloud.vms.values()
        said = (f"== {vm.name} {vm.status}\n" + cloud_boxes.console(state, box_of(vm.name))[-1500:] for vm in vms)
        return "\n".join([super().explain(), *self.gce.failures, *said])


@contextmanager
def surf(path: Path, interval: str = "4s") -> Iterator[Surf]:
    """A running controller; at the end everything is stopped and nothing may be left."""
    path.mkdir(parents=True, exist_ok=True)
    with (
        client.serve(path / "cloud", ("--boxes",)) as aws,
        tempfile.TemporaryDirectory(prefix="gce-") as short,  # the path of a test is too long for a socket
        serve(Cloud(), Path(short) / "socket") as gce,
    ):
        sockets = {ENDPOINT_PORT: Path(aws.info["socket"]), GOOGLE_PORT: Path(short) / "socket"}
        gce.cloud.hardware = hardware = Boxes(path / "google", sockets, gce.identity)
        environment = {**os.environ, "GOOGLE_APPLICATION_CREDENTIALS": str(gce.key_file(path / "controller.json"))}
        made = Surf(path, path / "spotsurfer.toml", environment, cloud=aws, gce=gce)
        aws.client("s3").create_bucket(Bucket=ec2.BUCKET)
        made.config.write_text(patient(_config(made, interval)))
        ec2.events_to_queue(aws)
        try:
            with made.running():
                yield made
        finally:
            hardware.close()
    cloud_boxes.clean(path / "cloud")
    for state in ("cloud", "google"):
        Yard(path / state, None).assert_clean()  # type: ignore[arg-type]


def _config(made: Surf, interval: str) -> str:
    google = gcp.table(made.gce.endpoint) | {
        "machine_types": [KIND],
        "boot_url": BOOT,
        "store_options": {"base_url": f"http://{cloud_boxes.network.CLOUD_ADDRESS}:{GOOGLE_PORT}", "allow_http": "true"},
    }
    tables = {"aws": ec2.ground(made.cloud) | {"instance_types": ["m6i.large"]}, "gcp": google}
    store = f"s3://{ec2.BUCKET}/{ec2.PREFIX}"
    return ec2.config(made.data, store, ec2.options_at(made.cloud.endpoint), interval, tables)
