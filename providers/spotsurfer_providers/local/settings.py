"""Settings of the local provider: the table `[provider.local]` of the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer.model.errors import ConfigError
from spotsurfer.model.market import Pool
from spotsurfer_providers.catalog import instance_types
from spotsurfer_providers.local.box.disk import MAKERS
from spotsurfer_providers.local.box.network import GATEWAY_PORT
from spotsurfer_providers.local.object_gateway.server import BUCKET
from spotsurfer_providers.toml_tables import build

REGION = "local"
_GIB = 1 << 30
_CLOCK_OFFSET_MAX = 10 * 365 * 86400
# Of any system: mount points of a box, and the shell for user-data.
_ROOT_NEEDS = ("bin/sh", "dev", "proc", "sys", "run", "tmp", "root", "var/lib")
_DISK_BYTES_MIN = 256 << 20  # btrfs needs about half of it for itself
_DEFAULT_TYPES = tuple(f"{family}.{size}" for family in ("m6i", "c6i", "r6i") for size in ("large", "xlarge", "2xlarge"))


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """All optional. `scenario` is a TOML file; sizes in bytes, the link's rate in bits per second."""

    scenario: str | None = None
    disk_bytes: int = 20 * _GIB
    disk_kind: str | None = None  # "btrfs", "ext4" or "xfs"; None: btrfs if mkfs.btrfs is installed, else ext4
    notice_seconds: float = 120.0
    link_bits_per_second: int | None = None
    instances_max: int = 16
    sockets: dict[str, str] = field(default_factory=dict)  # port of 10.77.0.1 -> Unix socket of the host that it leads to
    buckets: dict[str, str] = field(default_factory=dict)  # name -> folder of the host: s3://name/… for inputs of jobs
    folders: dict[str, str] = field(
        default_factory=dict
    )  # name -> folder of the host: all boxes see it, see `rootfs.FOLDERS_AT`
    runtimes: str | None = None  # folder of unpacked runtimes of the agent, named by SHA-256, that boxes find in place
    root: str | None = None  # folder of an unpacked system, as debootstrap makes it, as the root of boxes instead of the host's
    clock_offset_seconds_max: int = 90 * 86400  # machines differ in uptime: each box by another amount, up to this
    zones: list[str] = field(default_factory=lambda: ["local-a", "local-b"])
    instance_types: list[str] = field(default_factory=lambda: list(_DEFAULT_TYPES))
    pools: list[str] | None = None  # "zone/instance-type"; instead of every type in every zone

    def pool_list(self) -> list[Pool]:
        """The pools, in a fixed order."""
        names = self.pools or [f"{zone}/{kind}" for zone in self.zones for kind in self.instance_types]
        return [Pool("local", REGION, *name.split("/")) for name in names]

    def scenario_path(self) -> Path | None:
        """The scenario's file, absolute."""
        return None if self.scenario is None else Path(self.scenario).resolve()


def read_settings(table: Mapping[str, object]) -> LocalSettings:
    """Settings from their table. Raises ConfigError, naming the key."""
    settings = build(LocalSettings, table, "provider.local")
    checks = (
        ("disk_bytes", settings.disk_bytes >= _DISK_BYTES_MIN, f"at least {_DISK_BYTES_MIN}"),
        ("disk_kind", settings.disk_kind in (None, *MAKERS), f"one of {', '.join(MAKERS)}"),
        ("notice_seconds", settings.notice_seconds >= 0, "0 or more"),
        ("link_bits_per_second", (settings.link_bits_per_second or 8000) >= 8000, "at least 8000"),
        ("clock_offset_seconds_max", 0 <= settings.clock_offset_seconds_max <= _CLOCK_OFFSET_MAX, f"0 to {_CLOCK_OFFSET_MAX}"),
        ("instances_max", settings.instances_max >= 1, "at least 1"),
        ("zones", all(_is_texts(x) for x in (settings.zones, settings.instance_types)), "a list of names"),
        ("pools", settings.pools is None or _is_texts(settings.pools), "a list of zone/instance-type"),
    )
    for key, good, must in checks:
        if not good:
            raise ConfigError(f"provider.local.{key} must be {must}")
    _check_pools(settings)
    _check_buckets(settings.buckets, "buckets")
    _check_buckets(settings.folders, "folders")
    _check_sockets(settings.sockets)
    _check_root(settings.root)
    _check_runtimes(settings.runtimes)
    return settings


def _is_texts(value: Sequence[object]) -> bool:
    return len(value) > 0 and all(isinstance(x, str) and x != "" for x in value)


def _check_root(root: str | None) -> None:
    if root is None:
        return
    if not Path(root).is_absolute():
        raise ConfigError(f"provider.local.root must be an absolute path, not {root!r}")
    missing = [name for name in _ROOT_NEEDS if not Path(root, name).exists()]
    if missing:
        raise ConfigError(f"provider.local.root {root} has no {', '.join(missing)}: unpack a system there, as debootstrap does")


def _check_runtimes(folder: str | None) -> None:
    if folder is not None and not (Path(folder).is_absolute() and Path(folder).is_dir()):
        raise ConfigError(f"provider.local.runtimes is {folder!r}; it must be the absolute path of a folder")


def _check_sockets(sockets: Mapping[str, object]) -> None:
    for port, path in sockets.items():
        if not port.isdigit() or not 1024 <= int(port) <= 65535 or int(port) == GATEWAY_PORT:
            raise ConfigError(f"provider.local.sockets has {port!r}; it must be a port from 1024 on, {GATEWAY_PORT} is taken")
        if not isinstance(path, str) or not Path(path).is_absolute():
            raise ConfigError(f"provider.local.sockets.{port} is {path!r}; it must be the absolute path of a Unix socket")


def _check_buckets(buckets: Mapping[str, object], key: str) -> None:
    for name, folder in buckets.items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{2,62}", name) or name == BUCKET:
            raise ConfigError(
                f"provider.local.{key} has {name!r}: a name has 3 to 63 small letters, digits, .-, and is not {BUCKET!r}"
            )
        if not isinstance(folder, str) or not Path(folder).is_absolute() or not Path(folder).is_dir():
            raise ConfigError(f"provider.local.{key}.{name} is {folder!r}; it must be the absolute path of a folder")


def _check_pools(settings: LocalSettings) -> None:
    for name in settings.pools or []:
        if name.count("/") != 1 or not all(name.split("/")):
            raise ConfigError(f"provider.local.pools has {name!r}; write zone/instance-type, as local-a/m6i.large")
    for pool in settings.pool_list():
        if pool.instance_type not in instance_types():
            raise ConfigError(f"provider.local: no price is known of {pool.instance_type!r}; see the EC2 type names")
