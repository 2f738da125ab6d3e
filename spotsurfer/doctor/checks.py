"""All checks of `spotsurfer doctor`, one function each: the host, the software on it, and the list of them."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from spotsurfer_agent.host import launch, preflight

from spotsurfer.common import plugins
from spotsurfer.common.units import size
from spotsurfer.config.settings import Settings
from spotsurfer.model.errors import Denied, ProviderError, SpotsurferError
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.provider import ProviderHost
from spotsurfer.state import db
from spotsurfer.store.open_store import open_for

# ---- Findings

Level = Literal["ok", "warn", "fail"]  # fail: jobs can't run here; warn: something works worse, or not at all


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor. `remedy` is the next step, `page` has more about it; both empty if none is needed."""

    level: Level
    text: str
    remedy: str = ""
    check: str = ""
    page: str = ""


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def warn(text: str, remedy: str) -> Finding:
    """It works, with a limit."""
    return Finding("warn", text, remedy)


def fail(text: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding("fail", text, remedy)


def closed(path: str) -> Finding:
    """This user may not look there."""
    return fail(f"{path} is closed to this user", "run as its owner (sudo)")


# ---- Host: rights, kernel, tools, room. These checks leave no lasting change.

NAMESPACES = ("--pid", "--mount", "--ipc", "--net", "--uts", "--time")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "nsenter": "util-linux", "mount": "mount", "tar": "tar"}
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = frozenset({"cpu", "memory", "freezer"})
MEMORY_FEW_BYTES = 2 << 30
DISK_LEAST_BYTES, DISK_FEW_BYTES = 1 << 30, 10 << 30
LIMIT_SECONDS = 20
TIME_ERROR = 5  # of adjtimex(2): the kernel's clock is not synchronized


def system(_: Settings) -> Finding:
    """Distribution, kernel, processor."""
    name = _release("PRETTY_NAME") or "unknown distribution"
    text = f"{name}, kernel {platform.release()}, {platform.machine()}, {os.cpu_count()} processors"
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return fail(text, "the agent's runtime is built for x86-64 Linux: use such a machine")
    return ok(text)


def root(_: Settings) -> Finding:
    """Boxes and CRIU need it."""
    if os.geteuid() != 0:
        return fail("not root", "boxes and CRIU need root on this host: run with sudo")
    return ok("root")


def rights(_: Settings) -> Finding:
    """Root of a container may lack some rights."""
    if lacks := launch.missing_capabilities():
        remedy = "CRIU needs them: run on the machine itself, or give them to the container"
        return fail(f"root without {', '.join(lacks)}", remedy)
    if not launch.has_capability(launch.SECOND_USER):
        text = "root without CAP_SYS_RESOURCE: a job whose processes belong to several users can't be saved"
        return warn(text, "give the container that right (--cap-add SYS_RESOURCE), or keep each job to one user")
    return ok("CRIU has the rights that it needs")


def namespaces(_: Settings) -> Finding:
    """New namespaces of every kind that boxes and jobs use."""
    refused = [n.removeprefix("--") for n in NAMESPACES if not _runs(["unshare", n, "--fork", "true"])]
    if refused:
        advice = "run on the machine itself or in a container with full root rights; kernels before 5.6 have no time namespace"
        return fail(f"no new namespaces of these kinds: {', '.join(refused)}", advice)
    return ok("pid, mount, ipc, net, uts and time namespaces can be made")


def control_groups(_: Settings) -> Finding:
    """CPU, memory and freezer, in either version; in version 2, whether a group of our own really gets them."""
    second = CGROUPS / "cgroup.controllers"
    unified = set(second.read_text().split()) | {"freezer"} if second.exists() else set[str]()  # version 2 can always freeze
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    old = {word for mount in mounts if mount[2] == "cgroup" for word in mount[3].split(",")}
    for version, controllers in ((2, unified), (1, old)):
        if controllers >= CONTROLLERS:
            found = preflight.try_cgroup([sys.executable]) if version == 2 and os.geteuid() == 0 else None
            return fail(found.what, found.remedy) if found else ok(f"version {version}, with {', '.join(sorted(CONTROLLERS))}")
    missing = ", ".join(sorted(CONTROLLERS - unified - old))
    return fail(
        f"control groups lack {missing}", "mount /sys/fs/cgroup as a stock distribution does (systemd, or a host kernel)"
    )


def loop_devices(_: Settings) -> Finding:
    """Private disks of boxes."""
    if not Path("/dev/loop-control").exists():
        return fail("no loop devices", "modprobe loop; in a container, give it /dev/loop-control and /dev/loop*")
    return ok("loop devices can be made")


def btrfs(_: Settings) -> Finding:
    """Snapshots of the scratch folder."""
    if shutil.which("mkfs.btrfs") is None:
        return fail("mkfs.btrfs is not there", "apt-get install btrfs-progs (or your distribution's package of it)")
    known = "btrfs" in Path("/proc/filesystems").read_text() or _runs(["modprobe", "--dry-run", "btrfs"])
    if not known:
        return warn("the kernel has no btrfs", "boxes fall back to slower copies: use a stock distribution kernel")
    return ok("btrfs in the kernel, mkfs.btrfs is there")


def tools(_: Settings) -> Finding:
    """Programs of the host."""
    missing = {tool: package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if missing:
        return fail(f"missing programs: {', '.join(missing)}", f"apt-get install {' '.join(sorted(set(missing.values())))}")
    return ok(f"{', '.join(TOOLS)} are there")


def memory(_: Settings) -> Finding:
    """Memory for jobs."""
    rows = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    facts = {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) == 3}
    total, free = facts.get("MemTotal", 0), facts.get("MemAvailable", 0)
    text = f"{size(free)} of {size(total)} memory are free"
    if free < MEMORY_FEW_BYTES:
        return warn(text, "a job's memory and its image must fit: end other programs, or ask for small jobs")
    return ok(text)


def disk(settings: Settings) -> Finding:
    """Room below the data folder."""
    folder = existing(settings.controller.data_dir)
    free = shutil.disk_usage(folder).free
    text = f"{size(free)} are free below {folder}"
    remedy = "make room, or set [controller] data_dir and [store] url to a larger disk"
    if free < DISK_LEAST_BYTES:
        return fail(text, remedy)
    return warn(text, remedy) if free < DISK_FEW_BYTES else ok(text)


def clock(_: Settings) -> Finding:
    """Times in reports and bills."""
    now = SystemClock().now()
    installed = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
    if now < installed:
        return fail(
            f"the clock says {now:%Y-%m-%d %H:%M}, which is before this program was installed",
            "set it: timedatectl set-ntp true",
        )
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # only reads: all modes are zero
    except (OSError, AttributeError):
        state = 0
    if state == TIME_ERROR:
        return warn(
            f"{now:%Y-%m-%d %H:%M:%S} UTC, but nobody keeps the clock in step", "timedatectl set-ntp true (or run chrony)"
        )
    return ok(f"{now:%Y-%m-%d %H:%M:%S} UTC, in step")


def existing(path: Path) -> Path:
    """The nearest existing parent folder of `path`."""
    return next(p for p in (path, *path.parents) if p.is_dir())


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=LIMIT_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


# ---- Software: the agent's runtime and its CRIU, the provider, the store, the controller.

BUILD = "`spotsurfer agent-runtime build` makes it, or says what is missing; `spotsurfer serve` does so by itself"
CHECK_SECONDS = 60
ANSWER_SECONDS = 5.0  # a slower controller counts as absent


def runtime(settings: Settings) -> Finding:
    """The tarball for machines, and whether it equals the tested one."""
    from spotsurfer.agent_runtime import find
    from spotsurfer.agent_runtime.recipe import read, shipped

    found = find(settings.runtime_dir)
    if found is None:
        return fail(f"no runtime of this version's agent in {settings.runtime_dir}", BUILD)
    text = f"agent {found.agent_version}, {found.path.name[:12]}… in {settings.runtime_dir}"
    built = json.loads((settings.runtime_dir / "current" / "RUNTIME.json").read_text())
    pinned = read(shipped())
    tested = {p.name: p.version for p in pinned.packages} | {w.name: w.version for w in pinned.wheels}
    taken = {p["name"]: p["version"] for kind in ("packages", "wheels") for p in built[kind]}
    other = sorted(name for name in tested.keys() | taken.keys() if tested.get(name) != taken.get(name))
    if other:
        names = f"{', '.join(other[:3])}{' …' if len(other) > 3 else ''}"
        return warn(
            f"{text}, with other versions than were tested: {names}", "build with --locked and a mirror that keeps old versions"
        )
    return ok(f"{text}, exactly the {len(tested)} pinned packages")


def mirror(settings: Settings) -> Finding:
    """The source of the runtime's packages."""
    if settings.runtime.mirror or os.environ.get("SPOTSURFER_DEBIAN_MIRROR"):
        return ok(f"Debian mirror: {settings.runtime.mirror or os.environ['SPOTSURFER_DEBIAN_MIRROR']}")
    if _release("ID") == "debian":
        return ok("Debian: its own mirror is used for the agent's packages")
    remedy = "set [runtime] mirror to the address of a Debian mirror before the runtime is built"
    if _facts(settings) is not None:
        return ok("not Debian, but the runtime is built already")
    return fail("this host is not Debian and no mirror is set", remedy)


def criu(settings: Settings) -> Finding:
    """Can the kernel freeze and bring back processes?"""
    program = settings.runtime_dir / "current" / "bin" / "criu"
    if not program.exists():
        return fail("it comes with the agent's runtime, which is not built yet", BUILD)
    version = (_facts(settings) or {}).get("versions", {}).get("criu", "?")
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [program, "check"], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False, cwd=folder
            )
    except (OSError, subprocess.TimeoutExpired) as e:
        return fail(f"CRIU {version} does not run here: {e}", "use x86-64 Linux")
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if "Error" in line or "Warn" in line]
        reason = lines[0] if lines else f"it ended with {done.returncode}"
        return fail(f"the kernel lacks what CRIU {version} needs: {reason}", "run as root on a stock distribution kernel")
    return ok(f"CRIU {version}: the kernel has what it needs")


def provider(settings: Settings) -> Finding:
    """The provider's own check of its settings, this host, and its cloud. Creates nothing."""
    each = [_one_provider(settings, name) for name in settings.provider.names]
    bad = next((finding for finding in each if finding.level != "ok"), None)
    return bad or ok("; ".join(finding.text for finding in each))


def _one_provider(settings: Settings, name: str) -> Finding:
    known = plugins.plugins(plugins.PROVIDERS)
    if name not in known:
        return fail(f"there is no provider {name!r}", f"set [provider] name to one of {', '.join(sorted(known))}")
    if name not in plugins.plugins(plugins.DOCTOR):
        return ok(f"{name}: asks nothing special of this host")
    host = ProviderHost("doctor", settings.controller.data_dir, settings.store_url, SystemClock())
    try:
        said: str = plugins.plugin(plugins.DOCTOR, name)(settings.provider.table_of(name), host)
    except ProviderError as e:
        sentence, mark, remedy = str(e).rpartition("; ")  # what may pass by itself has no remedy
        return fail(f"{name}: {sentence if mark else e}", remedy if mark else "try again later: it may pass by itself")
    except SpotsurferError as e:
        sentence, remedy = _apart(str(e))
        return fail(f"{name}: {sentence}", remedy)
    return ok(f"{name}: {said}")


def _apart(problem: str) -> tuple[str, str]:
    """Splits a sentence that ends with a remedy into problem and remedy."""
    for mark in ("; ", ": "):
        sentence, _, remedy = problem.rpartition(mark) if mark == "; " else problem.partition(mark)
        if sentence and remedy:
            return sentence, remedy
    return problem, "correct it in the configuration"


def store(settings: Settings) -> Finding:
    """Write, read and delete one small object."""
    from obstore.exceptions import BaseError
    from spotsurfer_wire.store.port import StoreDenied, StoreError, StoreFull

    from spotsurfer.store.open_store import keeps_first

    url = settings.store_url
    local = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None
    if local is not None and not local.is_dir():
        parent = existing(local)
        if not os.access(parent, os.W_OK | os.X_OK):
            return fail(f"{local} can't be made: {parent} is not writable", "run as root, or set [store] url")
        return ok(f"{local} will be made by the controller")
    key, data = f"doctor-{secrets.token_hex(8)}", b"spotsurfer doctor"
    try:
        opened = open_for(settings)
        opened.put(key, data)
        same = opened.get(key) == data
        opened.delete([key])
        first_stays = keeps_first(opened)
    except StoreFull:
        return fail(f"{url} is full", "make room")
    except StoreDenied as e:
        return fail(f"{url} refuses us: {e}", "check credentials and rights")
    except (StoreError, BaseError, SpotsurferError, ValueError, OSError) as e:
        return fail(f"{url} can't be used: {str(e).splitlines()[0]}", "check [store] url and options")
    if not same:
        return fail(f"{url} gives back other bytes", "use another store")
    if not first_stays:
        return fail(f"{url} overwrites objects that were to be created only if absent", "use a store with conditional writes")
    return ok(f"{url} takes, keeps and deletes objects, and creates each one once")


def owner(settings: Settings) -> Finding:
    """The owner of the store."""
    from obstore.exceptions import BaseError
    from spotsurfer_wire import json_codec, messages, object_keys
    from spotsurfer_wire.store.port import StoreError

    url = settings.store_url
    if url.startswith("file://") and not Path(unquote(urlsplit(url).path)).is_dir():
        return ok("nobody's yet")
    try:
        body = open_for(settings).get(object_keys.store_key())
        family = json_codec.decode(messages.StoreInfo, body).family if body is not None else None
    except (StoreError, BaseError, SpotsurferError, ValueError, OSError) as e:
        return fail(f"its owner can't be read: {str(e).splitlines()[0]}", "check [store] url and options")
    if family is None:
        return ok("nobody's yet")
    try:
        ours = db.look_read_only(settings.controller.data_dir / "state.db").family
    except SpotsurferError:
        ours = None
    if ours is not None and ours != family:
        remedy = "use the data_dir of that family, `spotsurfer restore` or `spotsurfer adopt`, or another [store] url"
        return fail(f"belongs to controller family {family}, this data_dir is {ours}", remedy)
    if ours is None:
        remedy = "`spotsurfer restore` its backup, or `spotsurfer adopt` with its store.key; else use another store"
        return warn(f"belongs to controller family {family}; this data_dir has none yet", remedy)
    return ok(f"ours (family {family})")


def controller(settings: Settings) -> Finding:
    """Whether a controller answers."""
    from spotsurfer.web.client import on_socket

    client = on_socket(settings.socket_path)
    client.answer_seconds = ANSWER_SECONDS
    try:
        info = client.get("/v1/info")
        text = f"version {info['version']}, generation {info['generation']}, {', '.join(_in_use(info))}"
    except Denied:
        return closed(str(settings.socket_path))
    except (SpotsurferError, ValueError, KeyError, TypeError):
        return warn(f"none answers at {settings.socket_path}", "start one: spotsurfer serve")
    return warn(f"{text}; last tick: {info['last_error']}", "see its log") if info.get("last_error") else ok(text)


def _in_use(info: dict[str, Any]) -> list[str]:
    """Use of the operator's limits, from `/v1/info`. Without a limit, only the use."""
    from spotsurfer.model.money import usd

    limits = (
        ("instances", "instances_max", str, "machines"),
        ("gpus", "gpus_max", str, "GPUs"),
        ("hourly_usd_micros", "hourly_max_usd_micros", usd, "USD an hour"),
        ("spent_usd_micros", "budget_usd_micros", usd, "USD spent"),
        ("front_ports", "front_ports_max", str, f"ports at {info['front_address']}"),
    )
    return [
        f"{say(info[used])} of {say(info[most])} {what}" if info[most] is not None else f"{say(info[used])} {what}"
        for used, most, say, what in limits
        if info[used] or info[most] is not None
    ]


def _facts(settings: Settings) -> dict[str, Any] | None:
    try:
        facts: dict[str, Any] = json.loads((settings.runtime_dir / "current" / "RUNTIME.json").read_text())
    except (OSError, ValueError):
        return None
    return facts


def _release(key: str) -> str:
    """What os-release(5) says of this host; "" = nothing."""
    try:
        return platform.freedesktop_os_release().get(key, "")
    except OSError:
        return ""


# ---- List of checks

Check = Callable[[Settings], Finding]
CHECKS: Sequence[tuple[str, Check]] = (
    ("system", system),
    ("root", root),
    ("rights", rights),
    ("namespaces", namespaces),
    ("control groups", control_groups),
    ("loop devices", loop_devices),
    ("btrfs", btrfs),
    ("tools", tools),
    ("memory", memory),
    ("disk", disk),
    ("clock", clock),
    ("runtime", runtime),
    ("mirror", mirror),
    ("CRIU", criu),
    ("provider", provider),
    ("store", store),
    ("store's owner", owner),
    ("controller", controller),
)

PAGE = "docs/guides/troubleshooting.md#the-host-is-not-fit"
PAGES = {  # of checks that have one of their own
    "runtime": "docs/guides/operate.md#install",
    "mirror": "docs/guides/operate.md#install",
    "store": "docs/reference/configuration.md",
    "store's owner": "docs/recovery.md",
    "controller": "docs/guides/troubleshooting.md#no-controller-answers",
    "notify": "docs/notifications.md",
}
OF_RUNTIME = frozenset({"runtime", "CRIU"})  # a build of the agent's runtime fixes these
# A controller needs these only if its machines are boxes on its own host.
OF_BOXES = frozenset({"root", "namespaces", "control groups", "loop devices", "btrfs", "tools", "CRIU"})


def examine(settings: Settings, checks: Sequence[tuple[str, Check]] = CHECKS) -> list[Finding]:
    """All findings, in the order of the list; a check that breaks is a finding too."""
    findings = []
    for name, check in checks:
        try:
            names = settings.provider.names
            far = name in OF_BOXES and not set(names) & set(plugins.plugins(plugins.HOSTS))
            found = ok(f"not needed: machines are those of {' and '.join(names)}") if far else check(settings)
        except Exception as e:
            if isinstance(e, PermissionError) and e.filename:
                found = closed(e.filename)
            else:
                found = fail(f"could not be checked: {type(e).__name__}: {e}", "report this")
        findings.append(with_page(replace(found, check=name)))
    return findings


def with_page(found: Finding) -> Finding:
    """The finding with the page that says more, if all is not well."""
    return found if found.level == "ok" else replace(found, page=PAGES.get(found.check, PAGE))
