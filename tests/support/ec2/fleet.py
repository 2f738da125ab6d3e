"""A whole spotsurfer on the test EC2: a controller with the provider `aws`, agents in boxes, proof that nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_providers.local import manual_control
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Head
from spotsurfer_wire.store.obstore import open_store
from support import aws, cloud_boxes
from support.boxes import Yard
from support.ec2 import boxes
from support.ec2.client import ENVIRONMENT, KEYS, REGION, TestEC2, serve
from support.fleet import Fleet
from support.patience import patient

from spotsurfer.model.errors import SpotsurferError

ACCOUNT = "123456789012"
BUCKET, PREFIX = "spotsurfer-tests", "fleet"
CONTROLLER_ROLE = "arn:aws:iam::123456789012:role/spotsurfer-controller"
LIVING = ("pending", "running", "shutting-down", "stopping", "stopped")
CONFIG = """\
[controller]
data_dir = {data}
tick_seconds = 0.5
offers_seconds = 2
log_format = "json"
[limits]
instances_max = 4
boot_limit_seconds = 600
lease_seconds = 8
lease_margin_seconds = 3
listing_lag_seconds = 3
cooldown_seconds = 2
last_report_seconds = 3
release_again_seconds = 3
[agent]
poll_seconds = 0.5
report_seconds = 1
notice_seconds = 0.3
drain_margin_seconds = 2
checkpoint_interval = "{interval}"
[store]
url = "{store}"
options = {options}
[policy]
name = "cheapest"
[policy.cheapest]
stay_seconds = 5
[provider]
name = {providers}
"""


@dataclass
class Surf(Fleet):
    """The controller's `data` are those of a Fleet; machines are the test EC2's."""

    cloud: TestEC2 = field(default=None)  # type: ignore[assignment]
    bucket: str = BUCKET
    prefix: str = PREFIX

    @property
    def state(self) -> Path:
        """The folder of the test EC2."""
        return Path(self.cloud.info["state"])

    def start(self) -> None:
        """The controller has a role's credentials in its environment, as on a machine of its own, and no others."""
        given = self.cloud.client("sts").assume_role(
            RoleArn=CONTROLLER_ROLE, RoleSessionName="controller", DurationSeconds=7200
        )["Credentials"]
        own = {
            "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
            "AWS_SESSION_TOKEN": given["SessionToken"],
        }
        with (self.path / "controller.log").open("ab") as log:
            command = [sys.executable, "-m", "spotsurfer", "--config", str(self.config), "serve"]
            environment = {**(self.environment or os.environ), **ENVIRONMENT, **own}
            self.controller = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        self.wait(self._answers, "the controller's answer", 60)

    @contextmanager
    def running(self) -> Iterator[Surf]:
        """With a controller; at the end it is stopped, and all calls of the run lie in a file, for those who look at rights."""
        try:
            self.start()
            yield self
        finally:
            (self.path / "calls.json").write_text(json.dumps(self.cloud.log(), indent=1))
            if self.controller is not None and self.controller.poll() is None:
                self.controller.terminate()
                self.controller.wait(30)

    def head(self, job: str) -> list[Head]:
        log = HeadLog(open_store(f"s3://{self.bucket}/{self.prefix}", {**options_at(self.cloud.endpoint), **_KEYS}), job)
        log.refresh()
        return log.entries

    def instance(self, job: str, number: int | None = None) -> str:
        """The instance of an attempt; without a number of the newest that runs."""
        found = [a for a in self.show(job)["attempts"] if a["number"] == number or (number is None and a["state"] == "running")]
        return str(found[-1]["instance"])

    def machine(self, instance: str) -> dict[str, Any]:
        """What the test EC2 knows of one."""
        return next(m for m in self.cloud.machines() if m["id"] == instance)

    def price(self, pool: str, usd: str) -> None:
        """The price of pools becomes this; the controller has asked for prices since."""
        self.cloud.order("price", pool=pool, usd=usd)
        asked = len(self.cloud.log("ec2:DescribeSpotPriceHistory"))
        self.wait(lambda: len(self.cloud.log("ec2:DescribeSpotPriceHistory")) > asked, "the controller's look at prices")

    def left(self) -> list[str]:
        """Everything of the cloud that would be paid for."""
        ec2, s3 = self.cloud.client("ec2"), self.cloud.client("s3")
        found = [f"machine {m['id']} is {m['state']}" for m in self.cloud.machines(*LIVING)]
        found += [f"volume {v['VolumeId']}" for v in ec2.describe_volumes()["Volumes"]]
        found += [f"upload {u['Key']}" for u in s3.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])]
        return found

    def explain(self) -> str:
        """Timelines, the controller's, the machines' and the cloud's last words."""
        parts = [(self.path / "controller.log").read_text()[-4000:], (self.state / "server.log").read_text()[-2000:]]
        for job in self.steps:
            with suppress(SpotsurferError):
                parts += [f"{m['at'][11:22]} {m['attempt']} {m['kind']} {m['text']}" for m in self.moments(job)]
        for m in self.cloud.machines():
            parts.append(f"== {m['id']} {m['state']} {m['market']} {m['zone']} {m['reason']}")
            parts.append(boxes.console(self.state, m["id"])[-1500:])
        for box in manual_control.living(self.state):
            with suppress(OSError, SpotsurferError):
                log = Path(f"/proc/{manual_control.box_status(self.state, box)['pid']}/root/var/lib/spotsurfer/agent.log")
                parts.append(f"== {box}\n" + log.read_text()[-3000:])
        return "\n".join(parts)


@contextmanager
def surf(
    path: Path, cloud_options: tuple[str, ...] = (), module: str = "support.ec2", interval: str = "4s", **settings: Any
) -> Iterator[Surf]:
    """A running controller on a test EC2 of its own; at the end everything is stopped and nothing may be left."""
    path.mkdir(parents=True, exist_ok=True)
    state = path / "cloud"
    with serve(state, ("--boxes", *cloud_options), module) as cloud:
        made = Surf(path, path / "spotsurfer.toml", cloud=cloud)
        cloud.client("s3").create_bucket(Bucket=BUCKET)
        made.config.write_text(patient(_config(made, interval, settings)))
        events_to_queue(cloud)
        with made.running():
            yield made
    cloud_boxes.clean(state)
    Yard(state, None).assert_clean()  # type: ignore[arg-type]


def events_to_queue(cloud: TestEC2) -> None:
    """As Terraform lays it."""
    events = cloud.client("events")
    events.put_rule(Name="spotsurfer", EventPattern=json.dumps({"source": ["aws.ec2", "aws.health"]}))
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:spotsurfer"
    events.put_targets(Rule="spotsurfer", Targets=[{"Id": "queue", "Arn": arn}])


def _config(made: Surf, interval: str, settings: dict[str, Any]) -> str:
    options, table = options_at(made.cloud.endpoint), ground(made.cloud) | settings
    return config(made.data, f"s3://{BUCKET}/{PREFIX}", options, interval, {"aws": table})


def ground(cloud: TestEC2) -> dict[str, Any]:
    """The provider's table."""
    return aws.ground(cloud.endpoint) | {"store_options": options_at(cloud.info["machine_endpoint"])}


def config(data: Path, store: str, options: dict[str, str], interval: str, tables: dict[str, dict[str, Any]]) -> str:
    """Of a controller with test clouds; `tables`: of their providers."""
    given = {"data": _toml(str(data)), "store": store, "options": _toml(options), "interval": interval}
    lines = [CONFIG.format(**given, providers=_toml(list(tables)))]
    for name, table in tables.items():
        lines += [f"[provider.{name}]\n", *(f"{k} = {_toml(v)}\n" for k, v in table.items())]
    return "".join(lines)


def options_at(endpoint: str) -> dict[str, str]:
    """Of its S3."""
    return {"region": REGION, "endpoint": endpoint, "allow_http": "true", "virtual_hosted_style_request": "false"}


_KEYS = {"access_key_id": KEYS["aws_access_key_id"], "secret_access_key": KEYS["aws_secret_access_key"]}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)
