"""Checks of what runs on the machine: the agent's runtime and its CRIU, the provider, the store, the controller."""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from spotsurfer import plugins
from spotsurfer.doctor.finding import Finding, closed, fail, ok, warn
from spotsurfer.doctor.host import existing
from spotsurfer.model.errors import Denied, SpotsurferError
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.provider import ProviderHost
from spotsurfer.settings import Settings
from spotsurfer.state import peek
from spotsurfer.storeway import open_for

BUILD = "`spotsurfer agent-runtime build` makes it, or says what is missing; `spotsurfer serve` does so by itself"
CHECK_SECONDS = 60
ANSWER_SECONDS = 5.0  # a controller that takes longer is none
HERE = "local"  # the provider whose machines are boxes on this host


def runtime(settings: Settings) -> Finding:
    """The tarball that machines get, and whether it is what was tested."""
    from spotsurfer.runtime import find
    from spotsurfer.runtime.lock import read, shipped

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
    """Where the runtime's packages come from."""
    if settings.runtime.mirror or os.environ.get("SPOTSURFER_DEBIAN_MIRROR"):
        return ok(f"Debian mirror: {settings.runtime.mirror or os.environ['SPOTSURFER_DEBIAN_MIRROR']}")
    if _distribution() == "debian":
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
    """What the provider itself says: of its settings, of this host, of its cloud. Nothing is made."""
    name = settings.provider.name
    known = plugins.plugins(plugins.PROVIDERS)
    if name not in known:
        return fail(f"there is no provider {name!r}", f"set [provider] name to one of {', '.join(sorted(known))}")
    if name not in plugins.plugins(plugins.DOCTOR):
        return ok(f"{name}: asks nothing special of this host")
    host = ProviderHost("doctor", settings.controller.data_dir, settings.store_url, SystemClock())
    try:
        said: str = plugins.plugin(plugins.DOCTOR, name)(settings.provider.table, host)
    except SpotsurferError as e:
        sentence, remedy = _apart(str(e))
        return fail(f"{name}: {sentence}", remedy)
    return ok(f"{name}: {said}")


def _apart(problem: str) -> tuple[str, str]:
    """A sentence that ends with what to do, and that end."""
    for mark in ("; ", ": "):
        sentence, _, remedy = problem.rpartition(mark) if mark == "; " else problem.partition(mark)
        if sentence and remedy:
            return sentence, remedy
    return problem, "correct it in the configuration"


def store(settings: Settings) -> Finding:
    """Write, read and delete one small object."""
    from obstore.exceptions import BaseError
    from spotsurfer_agent.storeport import StoreDenied, StoreError, StoreFull

    from spotsurfer.store.creating import keeps_first

    url = settings.store_url
    local = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None
    if local is not None and not local.is_dir():
        return _to_be_made(local)
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
    """Whose store it is."""
    from obstore.exceptions import BaseError
    from spotsurfer_agent import coding, objectkeys, protocol
    from spotsurfer_agent.storeport import StoreError

    url = settings.store_url
    if url.startswith("file://") and not Path(unquote(urlsplit(url).path)).is_dir():
        return ok("nobody's yet")
    try:
        body = open_for(settings).get(objectkeys.store_key())
        family = coding.decode(protocol.StoreInfo, body).family if body is not None else None
    except (StoreError, BaseError, SpotsurferError, ValueError, OSError) as e:
        return fail(f"its owner can't be read: {str(e).splitlines()[0]}", "check [store] url and options")
    if family is None:
        return ok("nobody's yet")
    ours = _family(settings.controller.data_dir)
    if ours is not None and ours != family:
        remedy = "use the data_dir of that family, `spotsurfer restore` or `spotsurfer adopt`, or another [store] url"
        return fail(f"belongs to controller family {family}, this data_dir is {ours}", remedy)
    if ours is None:
        remedy = "`spotsurfer restore` its backup, or `spotsurfer adopt` with its store.key; else use another store"
        return warn(f"belongs to controller family {family}; this data_dir has none yet", remedy)
    return ok(f"ours (family {family})")


def controller(settings: Settings) -> Finding:
    """Does one answer?"""
    from spotsurfer.cli.client import on_socket

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
    """How much of the operator's limits is in use, as `/v1/info` tells it. Of what has no limit only what is in use."""
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


def _to_be_made(folder: Path) -> Finding:
    parent = existing(folder)
    if not os.access(parent, os.W_OK | os.X_OK):
        return fail(f"{folder} can't be made: {parent} is not writable", "run as root, or set [store] url")
    return ok(f"{folder} will be made by the controller")


def _facts(settings: Settings) -> dict[str, Any] | None:
    try:
        facts: dict[str, Any] = json.loads((settings.runtime_dir / "current" / "RUNTIME.json").read_text())
    except (OSError, ValueError):
        return None
    return facts


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("ID", "")
    except OSError:
        return ""


def _family(data_dir: Path) -> str | None:
    """Of the controller's database, read without making or changing one."""
    try:
        return peek.look(data_dir / "state.db").family
    except SpotsurferError:
        return None
