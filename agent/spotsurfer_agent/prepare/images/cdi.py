"""Devices of the machine for a job with a container image, as the Container Device Interface describes them.

For each kind of device, the vendor's tool describes what a container needs besides the device nodes: above all libraries of
the machine's driver. NVIDIA's container toolkit writes this to /etc/cdi or /run/cdi; if only the tool is there, the agent
runs it. The job has the machine's accelerators in its /dev anyway, and its root is read-only. So the files are mounted at
the described paths, and a folder of links, which the loader searches, replaces the description's hooks (links beside the
libraries, the loader's cache).
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_agent.host.root_fs import Mount, make_folder
from spotsurfer_agent.prepare.images.registry import ImageError, Kind

FOLDERS = ("/etc/cdi", "/run/cdi")
GENERATORS = {"nvidia.com/gpu": ("nvidia-ctk", "cdi", "generate", "--format=json")}  # kind -> the tool that describes it
TOOL_SECONDS = 60
SEARCHED = "LD_LIBRARY_PATH"
DRIVER = "/run/driver"  # of the job: libraries under the names that programs ask for


@dataclass(frozen=True, slots=True)
class Devices:
    """What the requested devices add to a job."""

    mounts: list[Mount] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)  # name in DRIVER -> the file that the job sees

    def added_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """An image's variables and those of the devices; the loader searches the driver's libraries before the image's own."""
        searched = [DRIVER] if self.links else []
        searched += [x for x in (environment.get(SEARCHED, ""),) if x]
        return {**environment, **self.environment, **({SEARCHED: ":".join(searched)} if searched else {})}


@functools.cache  # a machine's devices stay, and its tool takes a second
def find(names: tuple[str, ...], folders: tuple[str, ...] = FOLDERS) -> Devices:
    """What "vendor.com/class=device" needs of this machine. Raises ImageError if nothing here describes it."""
    found = Devices()
    for name in names:
        kind, _, device = name.partition("=")
        for edits in _edits(name, kind, device, folders):
            _add(found, edits)
    return found


def lay_links(devices: Devices, run: Path) -> None:
    """Put the links to libraries into the job's own /run, which is `run` on this machine."""
    folder = run / Path(DRIVER).name
    shutil.rmtree(folder, ignore_errors=True)
    if devices.links:
        make_folder(folder)
    for name, target in devices.links.items():
        (folder / name).symlink_to(target)


def _edits(name: str, kind: str, device: str, folders: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    described = [x for x in _descriptions(kind, folders) if x.get("kind") == kind]
    for description in described:
        devices = [x for x in description.get("devices") or [] if x.get("name") == device]
        if devices:
            yield description.get("containerEdits") or {}
            yield devices[0].get("containerEdits") or {}
            return
    known = sorted(f"{kind}={x.get('name')}" for d in described for x in d.get("devices") or [])
    raise ImageError(
        Kind.MACHINE,
        f"this machine has no device {name} (it has {', '.join(known) or 'none of that kind'}): ask for a machine type that "
        "has, with the vendor's container toolkit on it",
    )


def _descriptions(kind: str, folders: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Descriptions from files, then from the vendor's tool. YAML files are left to the tool."""
    for path in sorted(p for folder in folders for p in Path(folder).glob("*.json")):
        yield from _parsed(path.read_text(errors="replace"))
    tool = GENERATORS.get(kind, ())
    if tool and shutil.which(tool[0]):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            yield from _parsed(subprocess.run(tool, capture_output=True, text=True, check=False, timeout=TOOL_SECONDS).stdout)


def _parsed(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return [value] if isinstance(value, dict) else []


def _add(found: Devices, edits: Mapping[str, Any]) -> None:
    for pair in edits.get("env") or []:
        name, _, value = str(pair).partition("=")
        found.environment[name] = value
    for mount in edits.get("mounts") or []:
        source, target = str(mount.get("hostPath", "")), str(mount.get("containerPath", ""))
        if not target.startswith("/") or not Path(source).exists() or any(m.target == target for m in found.mounts):
            continue
        found.mounts.append(Mount("cdi" + target.replace("/", "-"), source, target, True))
        if ".so" in Path(target).name:
            found.links.update(_names(Path(source), target))


def _names(library: Path, target: str) -> dict[str, str]:
    """Further names of this library: links in its folder that lead to it."""
    real = library.resolve()
    beside = (x for x in library.parent.glob(f"{library.name.partition('.so')[0]}.so*") if x.resolve() == real)
    return {library.name: target, **{x.name: target for x in beside}}
