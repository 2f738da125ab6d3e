"""User-data, run for real: by sh, against a server on loopback, with a runtime of three lines."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from spotsurfer_wire import json_codec
from spotsurfer_wire.messages import AgentConfig
from support.bare_machine import runtime_tarball, started_with

from spotsurfer.controller.machines import bootstrap
from spotsurfer.controller.machines.bootstrap import MachineConventions, Source, presigned_get, user_data
from spotsurfer.model.errors import ConfigError

HOSTILE = 'it\'s a "key" $(touch pwned) `touch pwned` \\n END_OF_CONFIGURATION\nEND_OF_CONFIGURATION\n; ü € \x07'


class Server:
    """Serves one body; answers what `script` says first, one status a request."""

    def __init__(self, body: bytes, script: list[int | bytes]):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append(self.path)
                answer = script.pop(0) if script else body
                data = answer if isinstance(answer, bytes) else b""
                self.send_response(200 if isinstance(answer, bytes) else answer)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format, *args):
                pass

        self.asked: list[str] = []
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/runtime/x.tar.gz?X-Amz-Expires=1&a='b'"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def serve():
    servers = []

    def make(body, *script):
        servers.append(Server(body, list(script)))
        return servers[-1]

    yield make
    for s in servers:
        s.close()


def config(**changes) -> AgentConfig:
    return AgentConfig(
        **{"job": "job-1", "attempt": 3, "store_url": "s3://b/p", "store_options": {"secret_access_key": HOSTILE}, **changes}
    )


def boot(sha: str, url: str, base: Path, power_off: str = "") -> str:
    return user_data(config(), sha, Source(url), place=MachineConventions(str(base), power_off, report_seconds=0))


def run(text: str, tmp_path: Path, only: tuple[str, ...] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program in an empty folder; `only` names the fetchers that are on the path."""
    script = tmp_path / "user-data"
    script.write_text(text)
    script.chmod(0o700)
    (tmp_path / "cwd").mkdir(exist_ok=True)
    path = os.environ["PATH"]
    if only is not None:
        tools = tmp_path / "tools"
        tools.mkdir(exist_ok=True)
        basics = ("sh", "tar", "gzip", "sha256sum", "mkdir", "chmod", "rm", "ln", "mv", "cat", "sleep", "touch")
        for name in basics:
            (tools / name).symlink_to(shutil.which(name) or pytest.fail(f"{name} is not on this machine"))
        for name in only:
            program = sys.executable if name == "python3" else shutil.which(name)
            (tools / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            (tools / name).chmod(0o755)
        path = str(tools)
    return subprocess.run(
        [str(script)],
        cwd=tmp_path / "cwd",
        env={"PATH": path, "HOME": "/root"},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def fast(monkeypatch):
    """Pauses between tries are no test's business."""
    monkeypatch.setattr(
        bootstrap, "PROGRAM", bootstrap.PROGRAM.replace('sleep "$n"', "sleep 0.01").replace("sleep 30", "sleep 0.01")
    )


@pytest.mark.parametrize("fetcher", ["curl", "wget", "python3"])
def test_a_bare_machine_ends_up_with_a_running_agent(tmp_path, serve, fetcher):
    if shutil.which(fetcher) is None:
        fetcher = "python3"  # the one that this very test runs on
    body = runtime_tarball()
    sha = hashlib.sha256(body).hexdigest()
    server = serve(body)
    base = tmp_path / "it's the base"
    done = run(boot(sha, server.url, base), tmp_path, (fetcher,))
    assert done.returncode == 0, done.stderr
    args = started_with(base, sha)
    assert args[:5] == ["--respawn", "--config", f"{base}/agent.json", "--base", str(base)]
    assert int(args[-1].split()[1], 16) & 1, "it outlives the terminal that started it: SIGHUP is ignored"
    assert server.asked[0].endswith("a='b'") or "%27b%27" in server.asked[0]


def test_configuration_survives_hostile_characters_and_is_for_root_only(tmp_path, serve):
    body = runtime_tarball()
    sha = hashlib.sha256(body).hexdigest()
    base = tmp_path / "base"
    done = run(boot(sha, serve(body).url, base, power_off="echo 'off' $HOME"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert json_codec.decode(AgentConfig, (base / "agent.json").read_bytes()) == config()
    assert (base / "agent.json").stat().st_mode & 0o777 == 0o600
    assert list((tmp_path / "cwd").iterdir()) == []
    assert "echo 'off' $HOME" in started_with(base, sha)


def test_what_arrives_damaged_is_fetched_again_and_never_unpacked(tmp_path, serve, fast):
    body = runtime_tarball()
    sha = hashlib.sha256(body).hexdigest()
    server = serve(body, 503, body[:100], b"<html>login</html>", 404)
    base = tmp_path / "base"
    done = run(boot(sha, server.url, base), tmp_path)
    assert done.returncode == 0, done.stderr
    started_with(base, sha)
    assert len(server.asked) == 5


def test_a_machine_that_gets_no_agent_is_ended(tmp_path, serve, fast, monkeypatch):
    monkeypatch.setattr(bootstrap, "FETCH_TRIES", 3)
    server = serve(b"not the runtime")
    base = tmp_path / "base"
    done = run(boot("0" * 64, server.url, base, power_off=f"touch {tmp_path}/off"), tmp_path)
    assert done.returncode == 1
    assert "can't be fetched" in done.stderr
    assert (tmp_path / "off").exists()
    assert len(server.asked) == 3
    assert not (base / "runtime" / "current").exists()


def test_running_it_again_fetches_nothing(tmp_path, serve):
    body = runtime_tarball()
    sha = hashlib.sha256(body).hexdigest()
    server, base = serve(body), tmp_path / "base"
    text = boot(sha, server.url, base)
    for _ in range(2):
        assert run(text, tmp_path).returncode == 0
        started_with(base, sha)
    assert len(server.asked) == 1


def test_it_fits_into_what_a_cloud_takes():
    token = "t" * 2000
    text = user_data(
        config(store_options={"token": token, "secret_access_key": "s" * 200}), "0" * 64, Source("https://x/" + "y" * 2000)
    )
    assert len(text) < 16 << 10
    with pytest.raises(ConfigError, match="16384"):
        user_data(config(store_options={"token": "t" * 16000}), "0" * 64, Source("https://x"))


def test_it_is_plain_sh(tmp_path):
    script = tmp_path / "s"
    script.write_text(user_data(config(), "0" * 64, Source("https://x")))
    shell = shutil.which("dash") or "sh"
    assert subprocess.run([shell, "-n", str(script)], capture_output=True).returncode == 0


def test_presigned_address_is_of_the_instances_own_view_of_the_store():
    options = {
        "endpoint": "http://10.0.0.1:9000",
        "access_key_id": "AK",
        "secret_access_key": "SK",
        "region": "us-east-1",
        "allow_http": "true",
        "virtual_hosted_style_request": "false",
    }
    url = presigned_get("s3://bucket", options, "runtime/abc.tar.gz", 600)
    assert url.startswith("http://10.0.0.1:9000/bucket/runtime/abc.tar.gz?")
    assert "X-Amz-Expires=600" in url
    assert "X-Amz-Signature=" in url
    assert "SK" not in json.dumps(url.split("X-Amz-Signature")[0].replace("AK", ""))


def test_a_store_that_instances_cannot_reach_is_refused():
    with pytest.raises(ConfigError, match="file://"):
        presigned_get("file:///srv/store", {}, "runtime/x", 60)
