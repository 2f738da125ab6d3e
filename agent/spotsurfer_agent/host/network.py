"""The job's network namespace and hostname, the same on every machine and never part of an image.

Inside: loopback and one interface with a fixed address and a fixed hardware address, so that a restored socket finds what it
was bound to; every user may listen on every port and ping. Outside: NAT by the agent's namespace, for IPv4 alone. Link-local
addresses can't be reached from inside, because the metadata service hands out the machine's credentials there. Of IPv6 the job
has its loopback and nothing else. From outside a job is reached at the ports that it declared and no other, each under a port
of the machine that is no job's choice (DOOR): a job can't take the place of what the machine itself listens on.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from spotsurfer_wire.doors import DOOR
from spotsurfer_wire.linux import syscalls

from spotsurfer_agent.host.tools import Tools

INSIDE, OUTSIDE, LENGTH = "10.201.0.2", "10.201.0.1", 30
HARDWARE = "02:73:70:6f:74:02"
LINK, PEER = "eth0", "ssjob0"
# Some kernels make these in each namespace, unused.
OF_THE_KERNEL = ("tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0")
TABLE = "spotsurfer_job"
EVERY_GROUP = "0 2147483647"  # may ping: CRIU makes such sockets anew with the user's rights
RULES = f"""
table ip {TABLE} {{
  chain guard {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{PEER}" ip daddr 169.254.0.0/16 drop
    iifname "{PEER}" ip saddr != {INSIDE} drop
  }}
  chain way_out {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {INSIDE} oifname != "{PEER}" masquerade
  }}
}}
table ip6 {TABLE} {{
  chain guard {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{PEER}" drop
  }}
}}
"""
WAY_IN = f"""
table ip {TABLE} {{{{
  chain way_in {{{{
    type nat hook prerouting priority dstnat; policy accept;
    {{doors}}
  }}}}
}}}}
"""


# A table of its own: it is there before the interface is, and stays when a job's network is prepared anew.
WALL = f"""
table inet {TABLE}_wall {{
  chain wall {{
    type filter hook prerouting priority -310; policy accept;
    iifname "{PEER}" drop
  }}
}}
"""

# Inside the namespace, while CRIU makes one socket after the other: what the first one still had to send would meet no
# second one yet, and the kernel's reset would end a connection that is whole in the image. TCP sends it again later.
HUSHED = "spotsurfer_hush"
HUSH = f"""
table inet {HUSHED} {{
  chain arriving {{
    type filter hook input priority raw; policy accept;
    meta l4proto tcp drop
  }}
}}
"""


class NetworkError(OSError):
    """The job's network could not be prepared."""


def prepare(tools: Tools, ports: Sequence[int] = ()) -> int:
    """Make the job's network namespace; returns a descriptor that keeps it alive. `ports`: of the job, to be reached from
    outside. Raises NetworkError.
    """
    remove(tools)
    fd = _namespace()
    try:
        to = f"/proc/{os.getpid()}/fd/{fd}"
        outside = [
            f"link add {PEER} type veth peer name {LINK} address {HARDWARE} netns {to}",
            f"address add {OUTSIDE}/{LENGTH} dev {PEER}",
            f"link set {PEER} up",
        ]
        inside = [
            "link set lo up",
            f"address add {INSIDE}/{LENGTH} dev {LINK}",
            f"link set {LINK} up",
            f"route add default via {OUTSIDE}",
            "route add unreachable 169.254.0.0/16",
        ]
        _ip(tools, outside)
        _ip(tools, inside, fd)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _run([*tools.nft, "-f", "-"], feed=RULES + way_in(ports))
    except OSError as e:
        os.close(fd)
        remove(tools)
        raise NetworkError(e.errno, f"the job's network can't be prepared: {e.strerror}") from e
    return fd


def way_in(ports: Sequence[int]) -> str:
    """Rules by which a job is reached at its ports; none if it declared none."""
    doors = [
        f'iifname != "{PEER}" tcp dport {door} dnat to {INSIDE}:{port};' for door, port in enumerate(map(int, ports), DOOR)
    ]
    return WAY_IN.format(doors=" ".join(doors)) if doors else ""


class JobNetwork:
    """A job's namespace, which lives for as long as this holds it. Before `make` there is none, and nothing to do to it."""

    def __init__(self) -> None:
        self.fd = -1
        self._tools: Tools | None = None

    @property
    def number(self) -> int:
        """By which the kernel tells it from others; 0 = there is none."""
        return os.fstat(self.fd).st_ino if self.fd >= 0 else 0

    def make(self, tools: Tools, ports: Sequence[int], *, hushed: bool) -> None:
        """A new one. `hushed`: nothing of TCP arrives in it until `speak`. Raises NetworkError."""
        self._tools, self.fd = tools, prepare(tools, ports)
        if hushed:
            self.hush()

    def hush(self) -> None:
        """Nothing of TCP arrives in it until `speak`. Raises NetworkError."""
        self._nft(["-f", "-"], "the job's connections can't be held still", HUSH)

    def speak(self) -> None:
        """Undo `hush`. Raises NetworkError."""
        self._nft(["delete", "table", "inet", HUSHED], "the job's connections can't be let go on")

    def _nft(self, words: list[str], failed: str, feed: str | None = None) -> None:
        if self._tools is not None:
            try:
                _run([*self._tools.nft, *words], self.fd, feed)
            except OSError as e:
                raise NetworkError(e.errno, f"{failed}: {e.strerror}") from e

    def unlock(self) -> None:
        """Take away the locks that a CRIU which failed or was killed may have left in it. Never raises."""
        if self._tools is None:
            return
        with contextlib.suppress(OSError):
            tables = [line.split() for line in _run([*self._tools.nft, "list", "tables"], self.fd).splitlines()]
            for _, family, name in (words for words in tables if words[-1].startswith(("CRIU-", HUSHED))):
                _run([*self._tools.nft, "delete", "table", family, name], self.fd)

    def close(self) -> None:
        """Let it go. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def wall_off(tools: Tools) -> None:
    """From now on the job's namespace gets nothing out of it, for as long as the machine lives. Raises NetworkError."""
    try:
        _run([*tools.nft, "-f", "-"], feed=WALL)
    except OSError as e:
        raise NetworkError(e.errno, f"the job's network can't be walled off: {e.strerror}") from e


def remove(tools: Tools) -> None:
    """Take away what `prepare` made outside of the namespace. Idempotent."""
    subprocess.run([*tools.ip, "link", "delete", PEER], capture_output=True, check=False)
    for family in ("ip", "ip6"):
        subprocess.run([*tools.nft, "delete", "table", family, TABLE], capture_output=True, check=False)


def _namespace() -> int:
    """An empty network namespace, held by a descriptor only."""
    with syscalls.in_namespace(syscalls.CLONE_NEWNET):
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")  # of the new one
        with contextlib.suppress(OSError):  # fails if groups have other numbers, as in containers without root
            Path("/proc/sys/net/ipv4/ping_group_range").write_text(EVERY_GROUP)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _ip(tools: Tools, commands: Sequence[str], net: int | None = None) -> None:
    """Run all of them in one process: a job waits for this, and starting a process takes longer than what it does."""
    _run([*tools.ip, "-batch", "-"], net, "".join(f"{words}\n" for words in commands))


def _run(argv: list[str], net: int | None = None, feed: str | None = None) -> str:
    enter = None if net is None else (lambda: syscalls.setns(net, syscalls.CLONE_NEWNET))
    done = subprocess.run(argv, input=feed, capture_output=True, text=True, check=False, preexec_fn=enter)
    if done.returncode:
        raise OSError(0, f"{' '.join(argv[-8:])}: {done.stderr.strip() or done.returncode}")
    return done.stdout


# ---- The hostname: the same wherever the job is, and resolved by it to its own address.
#
# A copy of a job keeps the name that it was copied with, because its programs have read it already.

LENGTH_MAX = 63  # of a label, RFC 1035
DOMAIN = "(none)"  # the kernel's value if nobody set one
_OTHERS = re.compile(r"[^a-z0-9-]+")


def hostname_of(job: str) -> str:
    """The hostname of the job with this id."""
    return _OTHERS.sub("-", job.lower())[:LENGTH_MAX].strip("-") or "job"


def machine_id_of(host: str) -> str:
    """Text of the `/etc/machine-id` of the job with this hostname: the same on every machine, and no machine's."""
    import hashlib  # the shim, which loads this file, does without it

    return hashlib.sha256(f"spotsurfer/{host}".encode()).hexdigest()[:32] + "\n"


def take_hostname(name: str) -> None:
    """Set it in the calling process's UTS namespace. Raises OSError."""
    socket.sethostname(name)
    syscalls.setdomainname(DOMAIN)


def hostname_of_process(pid: int) -> str:
    """The hostname that a process sees. Raises OSError."""
    there = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with syscalls.in_namespace(syscalls.CLONE_NEWUTS, there):
            return socket.gethostname()
    finally:
        os.close(there)


def hosts_file(before: str, names: Iterable[str]) -> str:
    """A `hosts` file in which these names are the job's own address; `before` is one without."""
    own = " ".join(dict.fromkeys(n for n in names if n))
    return f"{INSIDE} {own}\n{before}"
