"""Builds the agent's runtime: the base by its lock, the agent's own files, the tarball, and an unpacked copy."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.agent_runtime import base_layer, recipe
from spotsurfer.agent_runtime.base_layer import Base, Say
from spotsurfer.agent_runtime.package_pins import Pins, base_for, replace_file, taken_before
from spotsurfer.model.errors import RuntimeBuildError

AGENT_PACKAGES = ("spotsurfer_agent", "spotsurfer_wire")
KEPT = 3  # of tarballs, bases and unpacked copies
KEPT_SECONDS = 3600  # a controller or a test may still read an older one


@dataclass(frozen=True, slots=True)
class Runtime:
    """A built runtime. `path` is `<out>/<sha256>.tar.gz`."""

    path: Path
    sha256: str
    agent_version: str


def find(out: Path) -> Runtime | None:
    """The runtime of the installed agent, if it was built and unpacked; writes and fetches nothing.

    None if none was built, or only one of another version: a build before an upgrade does not count.
    """
    found = _latest(out)
    if found is None or not (out / "current" / "RUNTIME.json").is_file():
        return None
    runtime, inputs = found
    wanted = recipe.read(recipe.shipped())
    possible = (wanted, taken_before(out, wanted))
    return runtime if any(x is not None and _inputs(base_layer.folder(out, x)) == inputs for x in possible) else None


def _latest(out: Path) -> tuple[Runtime, str] | None:
    """The last build, and a digest of its inputs."""
    try:
        latest = json.loads((out / "latest.json").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    path = out.absolute() / f"{latest['sha256']}.tar.gz"
    return (Runtime(path, latest["sha256"], latest["agent_version"]), latest["inputs"]) if path.exists() else None


def build(out: Path, *, pins: Pins = Pins.PREFER, mirror: str | None = None, say: Say = print) -> Runtime:
    """Builds what is missing and unpacks it; a second call with nothing changed returns at once.

    `mirror` is a Debian mirror's address; without it, the environment and this Debian's apt decide.

    Raises RuntimeBuildError: no mirror, no network, a package is gone (with Pins.REQUIRE), a part does not start.
    """
    out = out.absolute()
    base_layer.prepare(out)
    with _alone(out):
        foundation = base_for(out, pins, mirror, say)
        inputs = _inputs(foundation.folder)
        known = _latest(out)
        if known is not None and known[1] == inputs:
            runtime = known[0]
        else:
            runtime = _assemble(out, foundation)
            latest = {"sha256": runtime.sha256, "agent_version": runtime.agent_version, "inputs": inputs}
            replace_file(out / "latest.json", json.dumps(latest, indent=1).encode())
            _prune(out, runtime, foundation)
        _unpack_current(out, runtime)
        return runtime


def unpack(runtime: Runtime, folder: Path) -> None:
    """Unpacks as an instance would. The folder must not exist; it appears whole or not at all."""
    if folder.exists():
        raise RuntimeBuildError(f"{folder} exists: remove it or name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpack-") as scratch:
        inner = Path(scratch) / "runtime"
        inner.mkdir(mode=0o755)
        subprocess.run(["tar", "-xzf", runtime.path, "-C", inner, "--no-same-owner"], check=True)
        inner.rename(folder)


def _unpack_current(out: Path, runtime: Runtime) -> None:
    """`<out>/current`: a link to the unpacked runtime, switched at once to a new build."""
    folder = out / "unpacked" / runtime.sha256[:16]
    if not folder.exists():
        unpack(runtime, folder)
    link = out / "current"
    if not link.is_symlink() or link.resolve() != folder.resolve():
        fresh = out / "current.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(folder.relative_to(out))
        fresh.rename(link)
    for old in _oldest(out / "unpacked", "*", keep=folder):
        shutil.rmtree(old)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Allows one builder at a time in a folder; the lock ends with the process."""
    with (out / ".lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def agent_packages() -> list[Path]:
    """The installed folders of the agent's packages: controller and agent can't drift apart."""
    found = []
    for package in AGENT_PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise RuntimeBuildError(f"the package {package} is not installed: install spotsurfer again")
        found.append(Path(spec.origin).parent)
    return found


def _agent_files() -> dict[str, Path]:
    """By path below `site`."""
    files = [(folder, p) for folder in agent_packages() for p in sorted(folder.rglob("*"))]
    return {str(p.relative_to(folder.parent)): p for folder, p in files if p.is_file() and p.suffix != ".pyc"}


def _inputs(foundation: Path) -> str:
    digest = hashlib.sha256(foundation.name.encode())
    for name, path in _agent_files().items():
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _assemble(out: Path, foundation: Base) -> Runtime:
    with tempfile.TemporaryDirectory(dir=out, prefix="agent-") as scratch:
        tree = Path(scratch)
        _lay_agent(tree)
        base_layer.compile_python(foundation.tree, tree)
        version = str(importlib.import_module("spotsurfer_agent").__version__)
        (tree / "RUNTIME.json").write_text(json.dumps(_description(foundation, version), indent=1) + "\n")
        data = foundation.member.read_bytes() + base_layer.member(tree, last=True)
    sha256 = hashlib.sha256(data).hexdigest()
    path = out / f"{sha256}.tar.gz"
    replace_file(path, data)
    return Runtime(path, sha256, version)


def _lay_agent(tree: Path) -> None:
    for name, path in _agent_files().items():
        target = tree / "site" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (tree / "bin").mkdir()
    for name, text in base_layer.starters().items():
        starter = tree / "bin" / name
        starter.write_text(text)
        starter.chmod(0o755)
    for name, target_name in recipe.STATIC_TOOLS.items():
        (tree / "bin" / name).symlink_to(f"../prefix/{target_name}")


def _description(foundation: Base, agent_version: str) -> dict[str, object]:
    """RUNTIME.json: what is in the tarball and where."""
    return {
        "agent_version": agent_version,
        "architecture": recipe.ARCHITECTURE,
        "versions": foundation.facts,
        "loader": f"prefix/{recipe.LOADER}",
        "libraries": f"prefix/{recipe.LIBRARIES}",
        "tools": {n: f"prefix/{p}" for n, p in {**recipe.TOOLS, **recipe.STATIC_TOOLS}.items()},
        **json.loads(foundation.lock.text()),
    }


def _prune(out: Path, runtime: Runtime, foundation: Base) -> None:
    for old in _oldest(out, "*.tar.gz", keep=runtime.path):
        old.unlink()
    for old in _oldest(out, "base-*", keep=foundation.folder):
        shutil.rmtree(old)


def _oldest(folder: Path, pattern: str, keep: Path) -> list[Path]:
    """Files to delete: not among the newest few, and well older than the one that stays in any case."""
    limit = keep.stat().st_mtime - KEPT_SECONDS
    found = sorted((p for p in folder.glob(pattern) if p != keep), key=lambda p: p.stat().st_mtime)
    return [p for p in found[: max(0, len(found) - (KEPT - 1))] if p.stat().st_mtime < limit]
