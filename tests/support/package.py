"""The distribution as others get it: sdist and wheel, made by the build tool that this environment pins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.tree import ROOT

from spotsurfer.runtime import recipe

WHEELHOUSE = ROOT / "build" / "wheelhouse"


def build(kind: str, source: Path, folder: Path) -> Path:
    """An `sdist` or a `wheel` of the sources in a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (path,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


def unpacked(sdist: Path, folder: Path) -> Path:
    """Its sources."""
    folder.mkdir()
    subprocess.run(["tar", "-xzf", sdist, "-C", folder], check=True)
    (source,) = folder.iterdir()
    return source


def wheelhouse(wheel: Path, python: str, *extras: str) -> Path:
    """A folder with the wheel and all that it needs, in the versions of requirements.lock. What is absent is fetched.

    `python` is the version of the Python that is to install from it, like "3.11".
    """
    WHEELHOUSE.mkdir(parents=True, exist_ok=True)
    pins = re.findall(r"^([\w.-]+==\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (WHEELHOUSE / "constraints.txt").write_text("\n".join(pins) + "\n")
    wanted = f"spotsurfer[{','.join(extras)}] @ {wheel.as_uri()}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={WHEELHOUSE}", f"--find-links={WHEELHOUSE}"]
    command += [f"--python-version={python}", "--implementation=cp", *(f"--platform={p}" for p in recipe.WHEEL_PLATFORMS)]
    command += ["--only-binary=:all:", f"--constraint={WHEELHOUSE / 'constraints.txt'}", wanted]
    for old in WHEELHOUSE.glob("spotsurfer-*.whl"):
        old.unlink()
    if subprocess.run([*command, "--no-index"], capture_output=True, check=False).returncode != 0:
        subprocess.run(command, check=True)
    return WHEELHOUSE
