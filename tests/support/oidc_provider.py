"""An OpenID Connect provider that we did not write: oidc-provider-mock, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

PEOPLE: dict[str, dict[str, Any]] = {
    "ada": {"email": "ada@example.org", "groups": ["science"]},
    "olga": {"email": "olga@example.org", "groups": ["science", "ops"]},
    "vera": {"email": "vera@example.org", "groups": "audit"},
    "mallory": {"email": "ada@example.org", "email_verified": False},
}


@contextmanager
def provider(folder: Path) -> Iterator[str]:
    """Its issuer, within the block. PEOPLE may sign in there, by name alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), "--host", "localhost"]
    with (folder / "oidc.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            issuer = f"http://localhost:{port}"
            end = time.monotonic() + 30
            while not _answers(issuer):
                assert time.monotonic() < end and process.poll() is None, (folder / "oidc.log").read_text()
                time.sleep(0.1)
            for sub, claims in PEOPLE.items():
                httpx.put(f"{issuer}/users/{sub}", json=claims).raise_for_status()
            yield issuer
        finally:
            process.terminate()


def _answers(issuer: str) -> bool:
    try:
        return httpx.get(f"{issuer}/.well-known/openid-configuration").status_code == 200
    except httpx.HTTPError:
        return False
