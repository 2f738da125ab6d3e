"""For tests: a test EC2 as a process of its own, orders to it, and boto3 clients that reach it and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config
from support import levels
from support.tree import ROOT

REGION = "us-east-1"
KEYS = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "secret-of-the-tests"}
# For processes that are to reach it: nobody's own credentials, and never this host's metadata service.
ENVIRONMENT = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_ACCESS_KEY_ID": KEYS["aws_access_key_id"],
    "AWS_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"],
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
}


class TestEC2:
    """A running test EC2."""

    __test__ = False  # not a test class, whatever its name looks like

    def __init__(self, info: Mapping[str, Any]) -> None:
        self.endpoint = str(info["endpoint"])
        self.info = info
        self._clients: dict[tuple[Any, ...], Any] = {}
        self._http = httpx.Client(base_url=self.endpoint, trust_env=False, timeout=60)

    def order(self, op: str, **what: Any) -> None:
        """One order of control.py. Raises AssertionError with its words where it can't be done."""
        answer = self._http.post(f"/_test/{op}", json=what)
        assert answer.status_code == 200, answer.text

    def ask(self, question: str) -> Any:
        """log, machines or info."""
        answer = self._http.get(f"/_test/{question}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def log(self, action: str | None = None) -> list[dict[str, Any]]:
        """The calls so far, or those of one action ("ec2:RunInstances")."""
        return [c for c in self.ask("log") if action in (None, c["action"])]

    def machines(self, *states: str) -> list[dict[str, Any]]:
        """All machines, or those in one of these states."""
        return [x for x in self.ask("machines") if not states or x["state"] in states]

    def client(self, service: str, attempts: int = 1, **keys: Any) -> Any:
        """A boto3 client; it asks once unless told otherwise."""
        kept = (service, attempts, *sorted(keys.items()))
        if kept not in self._clients:
            self._clients[kept] = self._client(service, attempts, **keys)
        return self._clients[kept]

    def _client(self, service: str, attempts: int, **keys: Any) -> Any:
        version = "s3v4" if service == "s3" else "v4"
        config = Config(
            signature_version=version,
            retries={"mode": "standard", "total_max_attempts": attempts},
            s3={"addressing_style": "path"},
        )
        session = boto3.Session(region_name=REGION, **(keys or KEYS))
        return session.client(service, endpoint_url=self.endpoint, config=config)

    def wait_for(self, good: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
        """Return as soon as `good`; fail with `what` when that takes too long."""
        until = time.monotonic() + seconds
        while not good():
            assert time.monotonic() < until, f"waited {seconds} s in vain for {what}"
            time.sleep(0.05)


@contextmanager
def serve(state: Path, options: Sequence[str] = (), module: str = "support.ec2") -> Iterator[TestEC2]:
    """A test EC2 whose files lie in `state`; `module` is its program. It ends with the block, and when this process dies."""
    levels.only_for_real_tests("a test EC2")
    paths = [str(ROOT / p) for p in (".", "tests", "providers", "agent", "policies")]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", module, "--port", "0", "--state", str(state), *options]
    state.mkdir(parents=True, exist_ok=True)
    with (state / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment)
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (state / "server.log").read_text()
        yield TestEC2(json.loads(line))
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
