"""What an operator has after `terraform apply` of the example: a controller with that configuration and those rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import cloud_boxes
from support.boxes import Yard
from support.ec2.client import TestEC2, serve
from support.ec2.fleet import Surf
from support.iam.rights import Role
from support.inventory import inventory
from support.terraform import Terraform

from spotsurfer.config.settings import load_settings

IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
# Everything happens sooner than an operator would want it; what Terraform wrote stays as it is.
QUICK = {
    "CONTROLLER__TICK_SECONDS": "0.5",
    "CONTROLLER__OFFERS_SECONDS": "2",
    "CONTROLLER__LOG_FORMAT": "json",
    "LIMITS__LEASE_SECONDS": "8",
    "LIMITS__LEASE_MARGIN_SECONDS": "3",
    "LIMITS__LISTING_LAG_SECONDS": "3",
    "LIMITS__COOLDOWN_SECONDS": "2",
    "LIMITS__LAST_REPORT_SECONDS": "3",
    "LIMITS__RELEASE_AGAIN_SECONDS": "3",
    "AGENT__POLL_SECONDS": "0.5",
    "AGENT__REPORT_SECONDS": "1",
    "AGENT__NOTICE_SECONDS": "0.3",
    "AGENT__DRAIN_MARGIN_SECONDS": "2",
    "AGENT__CHECKPOINT_INTERVAL": "4s",
}
# What an operator adds to the file: the test EC2's boxes reach it by another address than this host, and the policy's patience.
ADDED = """
store_options = {{ {store} }}
[policy.cheapest]
stay_seconds = 5
pause_share = 0.3
"""


@dataclass
class Made:
    """After the apply. `before`: what was there without it."""

    cloud: TestEC2
    example: Terraform
    variables: dict[str, Any]
    before: set[str]

    def roles(self) -> dict[str, Role]:
        """controller, machines, job, with the documents that Terraform made."""
        given = self.example.output("rights")
        return {name: Role(r["role"], json.loads(r["policy"]), json.loads(r["trust"])) for name, r in given.items()}

    def destroy(self) -> None:
        """`terraform destroy`, and nothing is left."""
        self.example.destroy(**self.variables)
        assert inventory(self.cloud) == self.before


@contextmanager
def applied(path: Path, **variables: Any) -> Iterator[Made]:
    """The minimal example on a test EC2 whose machines are boxes; at the end no box may be left."""
    with serve(path / "cloud", ("--boxes",)) as cloud:
        before = inventory(cloud)
        given = {"image": IMAGE, "endpoint_url": cloud.endpoint, "bucket_force_destroy": True, **variables}
        example = Terraform(path, "terraform/aws/examples/minimal", cloud.endpoint)
        example.init()
        example.apply(**given)
        yield Made(cloud, example, given, before)
    cloud_boxes.clean(path / "cloud")
    Yard(path / "cloud", None).assert_clean()  # type: ignore[arg-type]


@contextmanager
def controller(path: Path, made: Made, **environment: str) -> Iterator[Surf]:
    """A process of its own, started from `terraform output -raw config`."""
    cloud = made.cloud
    options = {"region": "us-east-1", "endpoint": cloud.info["machine_endpoint"], "allow_http": "true"}
    table = ", ".join(f"{k} = {json.dumps(v)}" for k, v in (options | {"virtual_hosted_style_request": "false"}).items())
    file = path / "spotsurfer.toml"
    file.write_text(made.example.raw("config") + ADDED.format(store=table))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUICK, "CONTROLLER__DATA_DIR": str(path / "data"), **environment}.items():
            patch.setenv(f"SPOTSURFER_{name}", value)
        bucket, prefix = str(load_settings(file).store.url).removeprefix("s3://").split("/", 1)
        world = Surf(path, file, cloud=cloud, bucket=bucket, prefix=prefix)
        with world.running():
            yield world
