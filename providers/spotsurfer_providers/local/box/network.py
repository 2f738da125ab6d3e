"""A box's link: a veth pair between its network namespace and its supervisor's. The host's namespace shows none of it.

The supervisor's end plays the cloud. The link leads nowhere else: no route, no forwarding.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable

from spotsurfer_wire.linux import syscalls

from spotsurfer.model.errors import HostUnfit

CLOUD_ADDRESS = "10.77.0.1"
BOX_ADDRESS = "10.77.0.2"
METADATA_ADDRESS = "169.254.169.254"
GATEWAY_PORT = 9000
METADATA_PORT = 80
CLOUD_DEVICE = "cloud0"
BOX_DEVICE = "eth0"
_LATENCY = "100ms"
_BURST_SECONDS = 0.01
_BURST_BYTES_MIN = 131_072  # more than one offloaded segment of 64 KiB


def batch(commands: list[str], netns_of: int | None = None) -> None:
    """Run `ip` commands in one go, in this network namespace or in that of process `netns_of`. Raises HostUnfit."""
    inside = [] if netns_of is None else ["nsenter", f"--net=/proc/{netns_of}/ns/net"]
    _run([*inside, "ip", "-batch", "-"], "\n".join(commands) + "\n")


def make_link(box_pid: int) -> None:
    """Lay the link from the caller's network namespace to that of process `box_pid`, and set the caller's end up."""
    batch(
        [
            "link set dev lo up",
            f"link add dev {CLOUD_DEVICE} type veth peer name {BOX_DEVICE} netns {box_pid}",
            f"address add {CLOUD_ADDRESS}/24 dev {CLOUD_DEVICE}",
            f"link set dev {CLOUD_DEVICE} up",
        ]
    )


def set_up_box_end() -> None:
    """Configures loopback, address, route, and the metadata service's address; call it inside the box."""
    batch(
        [
            "link set dev lo up",
            f"address add {METADATA_ADDRESS}/32 dev lo",
            f"address add {BOX_ADDRESS}/24 dev {BOX_DEVICE}",
            f"link set dev {BOX_DEVICE} up",
            f"route add default via {CLOUD_ADDRESS}",
        ]
    )


def shape(box_pid: int, rate_bits_per_second: int | None) -> None:
    """Limit both directions of the link, or lift the limit. Raises HostUnfit if the kernel has no tbf."""
    inside = ["nsenter", f"--net=/proc/{box_pid}/ns/net"]
    for prefix, device in (([], CLOUD_DEVICE), (inside, BOX_DEVICE)):
        if rate_bits_per_second is None:
            subprocess.run([*prefix, "tc", "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
            continue
        burst = max(_BURST_BYTES_MIN, int(rate_bits_per_second / 8 * _BURST_SECONDS))
        rule = ["rate", f"{rate_bits_per_second}bit", "burst", str(burst), "latency", _LATENCY]
        _run([*prefix, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *rule])


def set_carrier(up: bool) -> None:
    """Cut or restore the link; call it in the supervisor's network namespace."""
    batch([f"link set dev {CLOUD_DEVICE} {'up' if up else 'down'}"])


def listening_socket(address: str, port: int, netns_of: int | None = None) -> socket.socket:
    """A listening TCP socket in the caller's network namespace or in that of process `netns_of`."""
    return _made_in(netns_of, lambda: socket.create_server((address, port), backlog=128))


def plain_socket(netns_of: int) -> socket.socket:
    """A TCP socket in the network namespace of process `netns_of`. Raises OSError."""
    return _made_in(netns_of, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))


def _made_in(netns_of: int | None, how: Callable[[], socket.socket]) -> socket.socket:
    """A socket stays in its namespace of creation, so only a short-lived thread has to go there. Raises OSError."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            if netns_of is not None:
                _enter(netns_of)
            made.append(how())
        except OSError as e:
            made.append(e)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _enter(pid: int) -> None:
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(fd, syscalls.CLONE_NEWNET)
    finally:
        os.close(fd)


def _run(command: list[str], text: str = "") -> None:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=20)
    except FileNotFoundError as e:
        raise HostUnfit(f"{e.filename} is missing: apt-get install iproute2 util-linux") from e
    if done.returncode != 0:
        raise HostUnfit(f"{' '.join(command[:6])} failed: {done.stderr.strip()}")
