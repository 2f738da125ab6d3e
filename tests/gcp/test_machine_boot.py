"""User-data on a VM with an account: run for real, against a metadata server and a store that want its token."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_wire import object_keys
from spotsurfer_wire.messages import AgentConfig
from support import gcp
from support.bare_machine import runtime_tarball, started_with
from support.gce import metadata
from support.gce.boxes import TOKEN
from support.gce.metadata import FaultyServer
from support.gce.server import TestGce

from spotsurfer.controller.machines import bootstrap
from spotsurfer.controller.machines.bootstrap import MachineConventions, user_data
from spotsurfer.ports.provider import StoreAccess

pytestmark = pytest.mark.real

BODY = runtime_tarball()
SHA = hashlib.sha256(BODY).hexdigest()
KEY = object_keys.runtime_key(SHA)


@pytest.fixture
def vm(gce: TestGce) -> Iterator[FaultyServer]:
    """The metadata server of a VM; its store has the runtime."""
    gce.bucket.objects[f"store/{KEY}"] = BODY, 1
    token = json.dumps({"access_token": gce.identity.issue(gcp.MACHINE), "expires_in": 3599, "token_type": "Bearer"})
    with metadata.serve({"name": "ss-1", "zone": "us-central1-a"}, {TOKEN: token}) as server:
        yield server


def run(gce: TestGce, vm: FaultyServer, path: Path, spy: Path | None = None) -> subprocess.CompletedProcess[str]:
    access = StoreAccess(gcp.STORE, {"base_url": gce.endpoint, "allow_http": "true"}, renewed=True)
    source = bootstrap.source(access, KEY, vm.url)
    place = MachineConventions(str(path / "base"), f"touch {path / 'off'}", report_seconds=0)
    program, tools = path / "user-data", path / "tools"
    program.write_text(user_data(AgentConfig("job-1", 3, gcp.STORE), SHA, source, place=place).replace("tries=40", "tries=2"))
    tools.mkdir()
    if spy is not None:
        (tools / "curl").write_text(f'#!/bin/sh\necho "$*" >>{spy}\nexec {shutil.which("curl")} "$@"\n')
        (tools / "curl").chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": "/root"}
    return subprocess.run(["/bin/sh", str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_runtime_is_fetched_with_the_machines_token(gce: TestGce, vm: FaultyServer, tmp_path: Path) -> None:
    done = run(gce, vm, tmp_path)
    assert done.returncode == 0, done.stderr
    started_with(tmp_path / "base", SHA)
    assert {a.account for a in gce.identity.asked} == {gcp.MACHINE}


def test_the_token_is_no_argument_of_any_program(gce: TestGce, vm: FaultyServer, tmp_path: Path) -> None:
    run(gce, vm, tmp_path, tmp_path / "noted")
    noted = (tmp_path / "noted").read_text()
    assert "service-accounts/default/token" in noted and "ya29." not in noted


def test_without_an_account_one_clear_line_is_said_and_the_machine_ends(gce: TestGce, vm: FaultyServer, tmp_path: Path) -> None:
    vm.instead = 404, ""
    done = run(gce, vm, tmp_path)
    assert done.returncode == 1 and "has the machine an account?" in done.stderr
    assert (tmp_path / "off").exists() and not gce.identity.asked
