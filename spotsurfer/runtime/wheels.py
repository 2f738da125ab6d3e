"""Python wheels for the runtime's interpreter, fetched by pip from the index that this host is set up for."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from spotsurfer.model.errors import RuntimeBuildError
from spotsurfer.runtime import recipe
from spotsurfer.runtime.lock import Wheel, file_sha256


def resolve(cache: Path) -> tuple[Wheel, ...]:
    """Wheels of the versions that this environment runs, downloaded into the cache."""
    return tuple(_newest(name, importlib.metadata.version(name), cache) for name in recipe.WHEELS)


def _newest(name: str, version: str, cache: Path) -> Wheel:
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        _pip_download([f"{name}=={version}"], Path(folder))
        (path,) = Path(folder).glob("*.whl")
        path.rename(cache / path.name)
        return Wheel(name, version, path.name, file_sha256(cache / path.name))


def fetch(wheels: Sequence[Wheel], cache: Path) -> None:
    """Makes sure that exactly these lie in the cache. Raises RuntimeBuildError."""
    todo = [w for w in wheels if not _have(w, cache)]
    if not todo:
        return
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in todo))
        _pip_download(["--require-hashes", "-r", str(wanted)], cache)
    if missing := [w.file for w in todo if not _have(w, cache)]:
        raise RuntimeBuildError(f"the package index gave other files than {', '.join(missing)}: see --update-lock")


def _have(wheel: Wheel, cache: Path) -> bool:
    path = cache / wheel.file
    return path.exists() and file_sha256(path) == wheel.sha256


def _pip_download(arguments: list[str], folder: Path) -> None:
    platforms = [f"--platform={p}" for p in recipe.WHEEL_PLATFORMS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += [f"--python-version={recipe.PYTHON}", "--implementation=cp", *platforms, f"--dest={folder}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RuntimeBuildError(
            f"pip could not fetch a wheel ({said[-1] if said else 'no message'}): check the network and pip's index"
        )


def unpack(wheels: Sequence[Wheel], cache: Path, site: Path) -> None:
    """Lays the wheels' files into `site`, licences included, without what only a package manager needs."""
    site.mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(cache / wheel.file) as archive:
            archive.extractall(site, [n for n in archive.namelist() if not _left_out(n)])


def _left_out(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in recipe.LEFT_OUT_OF_WHEELS)
