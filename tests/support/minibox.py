"""The least that looks like a machine to the agent: own namespaces, a private disk, a read-only root. Knows no provider."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from spotsurfer_wire.linux import cgroups
from support import levels
from support.patience import FACTOR
from support.runtime import unpacked_runtime
from support.tree import ROOT

BASE = "/var/lib/spotsurfer"
CGROUPS = Path("/sys/fs/cgroup")
MAKING = {"ext4": ("-E", "hash_seed=6f1d3c1e-88d0-4c3b-9c55-2a7c1b1f4e10")}  # as of machines that boot one image
DISK_BYTES = 1200 << 20
SET_UP = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
hostname minibox
ip link set lo up
mkdir -p {base}
mount {device} {base}
mount -t tmpfs run /run
mkdir /run/store /run/share /run/tree
mount --bind {tree} /run/tree
mount --bind {store} /run/store
mount --bind {share} /run/share
mount -t tmpfs tmp /tmp
mount -t tmpfs other /mnt
[ -e {python} ] || {{ mkdir -p {tree}; mount --bind /run/tree {tree}; }}
mount -o remount,bind,ro /
cd /run/share
umask 077
exec {python} -m {module} {scene}
"""


class Minibox:
    """One machine. Its disk lasts as long as the object; each `run` boots it anew on that disk."""

    def __init__(
        self,
        folder: Path,
        store: Path,
        fs: str = "btrfs",
        disk_bytes: int = DISK_BYTES,
        module: str = "support.engine_scenes",
    ) -> None:
        """`module` has the scenes; its folder is on PYTHONPATH where it is below tests/ or the tree's root."""
        levels.only_for_real_tests("a minibox")
        self._folder, self._store, self._module = folder, store, module
        self._name = f"minibox-{uuid.uuid4().hex[:8]}"
        for path in (folder, store):
            path.mkdir(parents=True, exist_ok=True)
        self._image = folder / f"{self._name}.disk"
        with self._image.open("wb") as f:
            f.truncate(disk_bytes)
        subprocess.run([f"mkfs.{fs}", "-q", *MAKING.get(fs, ()), str(self._image)], check=True, capture_output=True)
        self._device = _out("losetup", "--find", "--show", str(self._image))
        self._cgroups = [d / self._name for d in _hierarchies()]

    def run(self, scene: str, *arguments: object, timeout_seconds: float = 120.0) -> str:
        """Run a scene as the machine's only program; returns what it printed. It must end well."""
        for folder in self._cgroups:
            folder.mkdir(exist_ok=True)
        words = " ".join([scene, *map(str, arguments)])
        text = SET_UP.format(
            base=BASE,
            device=self._device,
            store=self._store,
            share=self._folder,
            tree=ROOT,
            python=sys.executable,
            module=self._module,
            scene=words,
        )
        prefix = unpacked_runtime() / "prefix"
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", "SPOTSURFER_PREFIX": str(prefix)}
        enter = "".join(f"echo 0 > {self._entered(d)}/cgroup.procs\n" for d in self._cgroups)
        argv = ["unshare", "--pid", "--fork", "--mount", "--net", "--ipc", "--uts", "--kill-child", "bash", "-c", text]
        done = subprocess.run(
            ["bash", "-c", enter + 'exec setpriv --pdeathsig KILL "$@"', "-", *argv],  # it ends with who waits for it
            env=environment, capture_output=True, text=True, timeout=timeout_seconds * FACTOR, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{scene} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        left = [str(p) for d in self._cgroups for p in d.iterdir() if p.is_dir() and p.name != cgroups.LEAF]
        assert not left, f"control groups left behind: {left}"
        return done.stdout

    @staticmethod
    def _entered(folder: Path) -> Path:
        """Where the machine's first process is: on v2 in a leaf, for what is inside can't move the one that started it."""
        if not (folder / "cgroup.controllers").exists():
            return folder
        cgroups.delegate(folder)
        leaf = folder / cgroups.LEAF
        leaf.mkdir(exist_ok=True)
        return leaf

    def close(self) -> None:
        """Give everything back."""
        subprocess.run(["losetup", "--detach", self._device], check=True)
        for folder in self._cgroups:
            for below in [*folder.glob("*/*"), *folder.glob("*"), folder]:
                if below.is_dir():
                    with contextlib.suppress(OSError):
                        below.rmdir()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def minibox(
    folder: Path, store: Path, fs: str = "btrfs", disk_bytes: int = DISK_BYTES, module: str = "support.engine_scenes"
) -> Iterator[Minibox]:
    """A machine for the length of a block."""
    box = Minibox(folder, store, fs, disk_bytes, module)
    try:
        yield box
    finally:
        box.close()


def _hierarchies() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [d for name in ("freezer", "cpuacct", "memory") if (d := CGROUPS / name).is_dir()]


def _out(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
