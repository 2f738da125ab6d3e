"""A root file system of its own for a test: a tree that nobody writes to below, a disk image above, no network, no checkout."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer_providers.local.box.cgroups import BoxGroup, host_hierarchies
from support.tree import ROOT

DISK_BYTES = 12 << 30  # sparse
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "AWS_EC2_METADATA_DISABLED": "true",
}
# Arguments: the tree, the disk image, a folder to bind at /mnt, the checkout. Control groups are "options=folder", those of
# version 2 without options. What spotsurfer keeps on this host is not there, and neither are the boxes that it runs here.
BEGIN = """\
set -eu
for group in $GROUPS_OF_ROOT; do echo $$ >"${group#*=}/cgroup.procs"; done
exec unshare --mount --pid --net --cgroup --fork --kill-child --propagation=private sh -c "$SET_UP" sh "$@"
"""
SET_UP = """\
set -eu
work=$2.d; mkdir "$work"; mount -o loop "$2" "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$1,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
cd "$work/root"
rm -rf etc/spotsurfer var/lib/spotsurfer var/lib/spotsurfer-controller
mount -t tmpfs -o mode=700 tmpfs root
mount --rbind /dev dev; mount -t sysfs sysfs sys; mount -t proc proc proc
mount -t tmpfs -o mode=1777 tmpfs tmp; mount -t tmpfs tmpfs run
for group in $GROUPS_OF_ROOT; do
    case $group in
    =*) mount -t cgroup2 cgroup2 sys/fs/cgroup; mkdir sys/fs/cgroup/init; echo $$ >sys/fs/cgroup/init/cgroup.procs ;;
    *)
        mountpoint -q sys/fs/cgroup || mount -t tmpfs tmpfs sys/fs/cgroup
        at=sys/fs/cgroup/${group%%=*}; mkdir "$at"; mount -t cgroup -o "${group%%=*}" cgroup "$at"
        ;;
    esac
done
mount --bind "$3" mnt
[ ! -d ".$4" ] || mount -t tmpfs tmpfs ".$4"
ip link set lo up
mkdir -p run/before; pivot_root . run/before; umount -l /run/before
echo ready
exec sleep infinity
"""


@dataclass(frozen=True)
class NewRoot:
    """`pid` is its first process, by the host's number."""

    pid: int

    def words(self, *command: str, environment: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs a command inside, as root in /root."""
        variables = [f"{k}={v}" for k, v in {**ENVIRONMENT, **(environment or {})}.items()]
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--cgroup", "--root", "--wdns=/root"]
        return [*enter, "env", "--ignore-environment", *variables, *command]

    def run(
        self, *command: str, code: int = 0, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs one, which has to end with this exit code."""
        done = subprocess.run(self.words(*command, environment=environment), capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{command} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    def json(self, *command: str) -> Any:
        """What one prints."""
        return json.loads(self.run(*command).stdout)

    def path(self, inside: str) -> Path:
        """A file of it as this host reaches it."""
        return Path(f"/proc/{self.pid}/root{inside}")


def only_child(pid: int) -> int:
    """Of a program like nsenter, which waits for it."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@contextmanager
def new_root(tree: Path, bound: Path, scratch: Path) -> Iterator[NewRoot]:
    """On top of a tree ("/": this host's own), with a folder of the host at /mnt; ends with all that runs in it."""
    image = scratch / "disk"
    with image.open("wb") as f:
        f.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with _control_groups() as groups:
        environment = {**os.environ, "SET_UP": SET_UP, "GROUPS_OF_ROOT": groups}
        command = ["sh", "-c", BEGIN, "sh", str(tree), str(image), str(bound), str(ROOT)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as outer:
            try:
                assert outer.stdout is not None
                assert outer.stdout.readline() == "ready\n", "the root file system could not be made: see standard error"
                yield NewRoot(only_child(outer.pid))
            finally:
                outer.kill()
    os.rmdir(f"{image}.d")  # noqa: PTH106 - fails where something is still mounted
    image.unlink()


@contextmanager
def _control_groups() -> Iterator[str]:
    """One in each hierarchy that boxes use, as the set-up wants them."""
    trees = host_hierarchies()
    groups = [BoxGroup([t], f"newroot-{os.getpid()}") for t in trees]
    for group in groups:
        group.create(cpus=1000, memory_bytes=1 << 50)
    try:
        yield " ".join(f"{t.options}={g.folders()[0]}" for t, g in zip(trees, groups, strict=True))
    finally:
        assert all(g.kill() and g.remove(10) for g in groups), "something still runs"
