"""User-data on a VM with an account: run for real, against a metadata server and a store that want its token."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
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


def run(
    gce: TestGce, vm: FaultyServer, path: Path, tools: Mapping[str, str] | None = None, moved: Mapping[str, Path] | None = None
) -> subprocess.CompletedProcess[str]:
    """The program, with `tools` before those of this host, and with some paths `moved`."""
    access = StoreAccess(gcp.STORE, {"base_url": gce.endpoint, "allow_http": "true"}, renewed=True)
    source = bootstrap.source(access, KEY, vm.url)
    place = MachineConventions(str(path / "base"), f"touch {path / 'off'}", report_seconds=0)
    program, own = path / "user-data", path / "tools"
    text = user_data(AgentConfig("job-1", 3, gcp.STORE), SHA, source, place=place).replace("tries=40", "tries=2")
    for here, there in (moved or {}).items():
        text = text.replace(here, str(there))
    program.write_text(text)
    own.mkdir()
    for name, body in (tools or {}).items():
        (own / name).write_text(f"#!/bin/sh\n{body}\n")
        (own / name).chmod(0o755)
    environment = {"PATH": f"{own}:/usr/bin:/bin", "HOME": "/root"}
    return subprocess.run(["/bin/sh", str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_runtime_is_fetched_with_the_machines_token(gce: TestGce, vm: FaultyServer, tmp_path: Path) -> None:
    done = run(gce, vm, tmp_path)
    assert done.returncode == 0, done.stderr
    started_with(tmp_path / "base", SHA)
    assert {a.account for a in gce.identity.asked} == {gcp.MACHINE}


def test_the_token_is_no_argument_of_any_program(gce: TestGce, vm: FaultyServer, tmp_path: Path) -> None:
    run(gce, vm, tmp_path, {"curl": f'echo "$*" >>{tmp_path / "noted"}\nexec {shutil.which("curl")} "$@"'})
    noted = (tmp_path / "noted").read_text()
    assert "service-accounts/default/token" in noted and "ya29." not in noted


def test_where_systemd_is_process_1_the_power_button_does_nothing(gce: TestGce, vm: FaultyServer, tmp_path: Path) -> None:
    """Google presses it when a notice begins."""
    (tmp_path / "comm").write_text("systemd\n")
    (tmp_path / "etc").mkdir()
    moved = {"/proc/1/comm": tmp_path / "comm", "/etc/systemd": tmp_path / "etc"}
    run(gce, vm, tmp_path, tools={"systemctl": f'echo "$*" >>{tmp_path / "told"}'}, moved=moved)
    assert (tmp_path / "etc/logind.conf.d/spotsurfer.conf").read_text() == "[Login]\nHandlePowerKey=ignore\n"
    assert "kill -s HUP systemd-logind.service" in (tmp_path / "told").read_text().splitlines()


def test_without_an_account_one_clear_line_is_said_and_the_machine_ends(gce: TestGce, vm: FaultyServer, tmp_path: Path) -> None:
    vm.instead = 404, ""
    done = run(gce, vm, tmp_path)
    assert done.returncode == 1 and "has the machine an account?" in done.stderr
    assert (tmp_path / "off").exists() and not gce.identity.asked
