"""A store behind a link: the gateway in a network namespace of its own, both directions shaped by `tc tbf`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_providers.local.box.network import listening_socket
from spotsurfer_providers.local.object_gateway.folder_store import Objects
from spotsurfer_providers.local.object_gateway.server import Gateway, Scope
from spotsurfer_wire.linux import syscalls
from support.engine_kit import JOB

NEAR, FAR, PORT = "10.202.0.2", "10.202.0.1", 9000
NEAR_DEVICE, FAR_DEVICE = "uplink0", "uplink1"
BITS_PER_SECOND = 10**9
BURST_BYTES = 1 << 20
LATENCY = "50ms"
STORE = Path("/run/store")
RESET = (
    "add table ip cut; add chain ip cut out { type filter hook output priority 0; };"
    f" add rule ip cut out ip daddr {FAR} meta l4proto tcp reject with tcp reset"
)


@dataclass(frozen=True, slots=True)
class Link:
    """The way to the store."""

    url: str
    options: dict[str, str]

    @property
    def sent_bytes(self) -> int:
        """Bytes on the wire, from here to the store, since the machine began."""
        return self._counts()[8]

    @property
    def passed_bytes(self) -> int:
        """Bytes on the wire in both directions."""
        return self._counts()[0] + self._counts()[8]

    def _counts(self) -> list[int]:
        lines = (x.partition(":") for x in Path("/proc/net/dev").read_text().splitlines())
        return next([int(x) for x in rest.split()] for name, _, rest in lines if name.strip() == NEAR_DEVICE)

    def cut(self) -> None:
        """Nothing passes any more; connections hear nothing."""
        _ip("link", "set", NEAR_DEVICE, "down")

    def mend(self) -> None:
        """It passes again."""
        _ip("link", "set", NEAR_DEVICE, "up")

    def reset(self, nft: Sequence[str]) -> None:
        """Every connection breaks, and none can be made any more. `nft`: how that program is called."""
        _run([*nft, RESET])

    def allow(self, nft: Sequence[str]) -> None:
        """The end of `reset`."""
        _run([*nft, "delete table ip cut"])


@contextlib.contextmanager
def link(bits_per_second: int = BITS_PER_SECOND) -> Iterator[Link]:
    """A store that is reached through a link of this rate."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _far_end(ready[1], go[0], bits_per_second)
        finally:
            os._exit(1)
    os.read(ready[0], 1)
    _ip("link", "add", NEAR_DEVICE, "type", "veth", "peer", "name", FAR_DEVICE, "netns", str(child))
    _ip("address", "add", f"{NEAR}/24", "dev", NEAR_DEVICE)
    _ip("link", "set", NEAR_DEVICE, "up")
    shape(NEAR_DEVICE, bits_per_second)
    os.write(go[1], b"x")
    os.read(ready[0], 1)
    options = {
        "endpoint": f"http://{FAR}:{PORT}", "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1",
        "virtual_hosted_style_request": "false", "allow_http": "true",
    }  # fmt: skip
    try:
        yield Link("s3://store", options)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        subprocess.run(["ip", "link", "delete", NEAR_DEVICE], capture_output=True, check=False)  # gone with its peer


def _far_end(ready: int, go: int, bits_per_second: int) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNET)
    os.write(ready, b"x")
    os.read(go, 1)
    _ip("link", "set", "lo", "up")
    _ip("address", "add", f"{FAR}/24", "dev", FAR_DEVICE)
    _ip("link", "set", FAR_DEVICE, "up")
    shape(FAR_DEVICE, bits_per_second)
    gateway = Gateway(listening_socket(FAR, PORT), Objects(STORE, "bench"), Scope(JOB, 1))
    os.write(ready, b"x")
    gateway.serve_forever()


def shape(device: str, bits_per_second: int) -> None:
    """Limit what leaves through a device."""
    rule = ["rate", f"{bits_per_second}bit", "burst", str(BURST_BYTES), "latency", LATENCY]
    _run(["tc", "qdisc", "replace", "dev", device, "root", "tbf", *rule])


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(argv: list[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True)
