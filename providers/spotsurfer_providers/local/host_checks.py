"""The requirements of boxes on this host."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spotsurfer_wire.gpu_facts import DRIVER_MIN
from spotsurfer_wire.linux import procfs

from spotsurfer.model.errors import HostUnfit, NotRoot
from spotsurfer_providers.local.box.cgroups import Hierarchy, host_hierarchies
from spotsurfer_providers.local.box.disk import MAKERS, USUAL
from spotsurfer_providers.local.box.rootfs import gpus_of_host

if TYPE_CHECKING:
    from spotsurfer.ports.provider import ProviderHost

DRIVER = Path("/proc/driver/nvidia/version")
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}  # bits of linux/capability.h


def check_host() -> list[Hierarchy]:
    """The control group trees, if boxes can run here. Raises NotRoot or HostUnfit, one sentence with the remedy."""
    if os.geteuid() != 0:
        raise NotRoot("Boxes need root on this host: run it with sudo, or use a cloud provider")
    effective = int(procfs.status(os.getpid())["CapEff"], 16)
    missing = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if missing:
        raise HostUnfit(f"Boxes need {' and '.join(missing)}: run on the host itself, or in a container with full privileges")
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise HostUnfit(f"Boxes need the program {tool}: apt-get install {package}")
    if not any(shutil.which(MAKERS[kind][0]) for kind in USUAL):
        raise HostUnfit("Boxes need mkfs.btrfs for their disks: apt-get install btrfs-progs")
    if not Path("/dev/loop-control").exists():
        raise HostUnfit("Boxes need loop devices for their disks: modprobe loop")
    return host_hierarchies()


def look(table: Mapping[str, object], _: ProviderHost) -> str:
    """For `spotsurfer doctor`: boxes can run here. Raises ConfigError, NotRoot, HostUnfit."""
    from spotsurfer_providers.local.settings import read_settings

    read_settings(table)
    check_host()
    return "this host has what it needs" + gpus_told()


def gpus_told() -> str:
    """Of the GPUs that boxes share, and of the driver's version. Empty if there are none."""
    count = gpus_of_host().count
    if not count:
        return ""
    driver = driver_version(DRIVER.read_text()) if DRIVER.exists() else ""
    fit = (
        "" if driver and int(driver.split(".")[0]) >= DRIVER_MIN else f"; jobs that use them can't be saved before {DRIVER_MIN}"
    )
    return f"; its boxes share {count} GPU{'s' if count > 1 else ''}, driver {driver or 'unknown'}{fit}"


def driver_version(text: str) -> str:
    """Of the NVIDIA driver, from its file in /proc; empty if it does not say."""
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)*\b", text)
    return found.group(0) if found else ""
