"""The network namespace of a slot on a machine that is kept: its agent prepares its job's network there as on a machine alone.

One link leads from the slot to the machine, which translates addresses. It ends with the slot's last process. What the machine
itself can reach, its metadata service too, can be reached from the slot. Nothing outside can begin a connection to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spotsurfer_wire.linux import syscalls

from spotsurfer_agent.host.tools import Tools

NETWORK, LINKS = "10.202.0.0/16", "ssslot"
RULES = f"""
table ip spotsurfer_slots {{
  chain way_out {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {NETWORK} oifname != "{LINKS}*" masquerade
  }}
}}
"""
NO_RULES = "table ip spotsurfer_slots\ndelete table ip spotsurfer_slots\n"  # the first line makes the second one no error
SLOTS_MAX = 1 << 14  # with addresses of their own; the numbers are used again after so many


def enter(slot: int) -> None:
    """Move the calling process into the slot's new namespace, linked to the one where it was. Raises OSError."""
    prefix = Path(sys.executable).parent.parent / "prefix"
    tools = Tools.find(prefix if prefix.is_dir() else None)
    machine = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _run([*tools.nft, "-f", "-"], NO_RULES + RULES)
        syscalls.unshare(syscalls.CLONE_NEWNET)
        number = 4 * (slot % SLOTS_MAX)
        here, there = (f"10.202.{(number + end) // 256}.{(number + end) % 256}" for end in (2, 1))
        link = f"{LINKS}{slot % SLOTS_MAX}"
        to = f"/proc/{os.getpid()}/fd/{machine}"
        _ip(tools, [f"link add eth0 type veth peer name {link} netns {to}", f"address add {here}/30 dev eth0"])
        _ip(tools, [f"address add {there}/30 dev {link}", f"link set {link} up"], machine)
        _ip(tools, ["link set lo up", "link set eth0 up", f"route add default via {there}"])
    finally:
        os.close(machine)


def _ip(tools: Tools, commands: list[str], net: int | None = None) -> None:
    _run([*tools.ip, "-batch", "-"], "".join(f"{words}\n" for words in commands), net)


def _run(argv: list[str], feed: str, net: int | None = None) -> None:
    enter = None if net is None else (lambda: syscalls.setns(net, syscalls.CLONE_NEWNET))
    done = subprocess.run(argv, input=feed, capture_output=True, text=True, check=False, preexec_fn=enter)
    if done.returncode:
        raise OSError(0, f"a slot's network can't be made: {done.stderr.strip()}")
