"""The distribution as others get it: sdist and wheel, made by the build tool that this environment pins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from support.tree import ROOT

from spotsurfer.agent_runtime import recipe

FETCHED = ROOT / "build" / "wheelhouse"


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


def wheelhouse(wheel: Path, folder: Path, python: str, *extras: str) -> Path:
    """Fill a new folder with the wheel and all that it needs, in the versions of requirements.lock; what is new is fetched.

    `python` is the version of the Python that is to install from it, like "3.11".
    """
    FETCHED.mkdir(parents=True, exist_ok=True)
    pins = re.findall(r"^([\w.-]+==\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    folder.mkdir()
    (folder / "constraints.txt").write_text("\n".join(pins) + "\n")
    wanted = f"spotsurfer[{','.join(extras)}] @ {wheel.as_uri()}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", f"--find-links={FETCHED}"]
    command += [f"--python-version={python}", "--implementation=cp", *(f"--platform={p}" for p in recipe.WHEEL_PLATFORMS)]
    command += ["--only-binary=:all:", f"--constraint={folder / 'constraints.txt'}", wanted]
    if subprocess.run([*command, "--no-index"], capture_output=True, check=False).returncode != 0:
        subprocess.run(command, check=True)
    for fetched in folder.glob("*.whl"):
        if fetched.name != wheel.name and not (FETCHED / fetched.name).exists():
            shutil.copy(fetched, FETCHED / f".{os.getpid()}.new")
            (FETCHED / f".{os.getpid()}.new").replace(FETCHED / fetched.name)  # other tests read there meanwhile
    return folder
