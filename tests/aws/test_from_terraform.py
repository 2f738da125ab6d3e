"""From `terraform apply` to a job that surfs, and back to nothing: with the rights and the configuration that Terraform made.

The log of all calls is judged by the policies of this very run: an operator's controller would not be refused anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.boxes import Yard
from support.ec2 import boxes
from support.ec2.client import TestEC2, serve
from support.ec2.fleet import Surf, save_log
from support.fleet import MARKS
from support.iam.rights import Role, judged
from support.inventory import inventory
from support.terraform import Terraform

from spotsurfer.settings import load_settings

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.aws]
IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
# Everything happens sooner than an operator would want it; the file itself stays as Terraform wrote it.
QUICK = {
    "CONTROLLER__TICK_SECONDS": "0.5",
    "CONTROLLER__OFFERS_SECONDS": "5",
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


@contextmanager
def _controller(path: Path, cloud: TestEC2, config: str) -> Iterator[Surf]:
    """Started from that text. One line is the test EC2's: its boxes reach it by another address than this host."""
    options = {"region": "us-east-1", "endpoint": cloud.info["machine_endpoint"], "allow_http": "true"}
    table = ", ".join(f"{k} = {json.dumps(v)}" for k, v in (options | {"virtual_hosted_style_request": "false"}).items())
    file = path / "spotsurfer.toml"
    file.write_text(f"{config}\nstore_options = {{ {table} }}\n")
    bucket, prefix = str(load_settings(file).store.url).removeprefix("s3://").split("/", 1)
    world = Surf(path, file, cloud=cloud, bucket=bucket, prefix=prefix)
    try:
        world.start()
        yield world
    finally:
        world.client.close()
        if world.controller is not None and world.controller.poll() is None:
            world.controller.terminate()
            world.controller.wait(30)


def _surf(world: Surf) -> None:
    """One job, taken away once with a notice."""
    job = world.submit(120)
    world.wait_line(job, 20)
    world.cloud.order("interrupt", instance=world.instance(job), notice_seconds=20)
    ended = world.wait_end(job)
    assert (ended["moves"], ended["exit_code"]) == (1, 0)
    world.assert_identical(job)
    world.wait(lambda: not world.left(), "machines, volumes and uploads gone")


def _roles(outputs: Any) -> dict[str, Role]:
    return {name: Role(r["role"], json.loads(r["policy"]), json.loads(r["trust"])) for name, r in outputs.items()}


@pytest.mark.timeout(900)
def test_apply_surf_destroy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**QUICK, "CONTROLLER__DATA_DIR": str(tmp_path / "data")}.items():
        monkeypatch.setenv(f"SPOTSURFER_{name}", value)
    with serve(tmp_path / "cloud", ("--boxes",)) as cloud:
        before = inventory(cloud)
        variables = {"image": IMAGE, "endpoint_url": cloud.endpoint, "bucket_force_destroy": True}
        example = Terraform(tmp_path, "terraform/aws/examples/minimal", cloud.endpoint)
        example.init()
        example.apply(**variables)
        with _controller(tmp_path, cloud, example.raw("config")) as world:
            try:
                _surf(world)
            except BaseException:
                print(world.explain())
                raise
        log = cloud.log()
        save_log(cloud, tmp_path)
        found = list(judged(log, _roles(example.output("rights"))))
        assert {str(line["principal"]["role"]).rpartition("-")[2] for line, _, _ in found} == {"controller", "machines", "job"}
        bad = {
            f"{line['operation']} {request.resource}: {decision.why}"
            for line, request, decision in found
            if not decision.allowed
        }
        assert bad == set()
        example.destroy(**variables)
        assert inventory(cloud) == before
    boxes.clean(tmp_path / "cloud")
    Yard(tmp_path / "cloud", None).assert_clean()  # type: ignore[arg-type]
