"""The job's view of the file system: the same set of mounts on every machine. Standard library only: shims use it.

The job does not get the machine's mounts but a small set with names: the machine's root and its other disks, read-only; its
scratch over the agent's own folder (so that the scratch has one path everywhere and the agent's files are hidden), over /tmp,
/var/tmp and /dev/shm; /sys of the machine, read-only; a /dev and a /run of its own. CRIU gets each one as a *named* external
mount, so an image does not depend on what else is mounted where it was made, nor on who made it: images of agents that still
gave the machine's /dev and /run are restored.

A job that brings a container image gets that image's unpacked tree as its root instead, read-only; of the machine it then sees
nothing but /sys, and its /run is a folder of its scratch.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.linux.procfs import MountLine, mount_lines

# ---- /dev: what programs expect of any machine, and this one's accelerators, because the machine is the job's.
#
# It holds no disk, no memory of the machine, and nothing that reaches the kernel's log or its modules. It is memory that nobody
# can write to, made anew on each machine, so an image holds nothing of it; terminals and shared memory are mounted there.

USUAL = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
ACCELERATORS = ("nvidia*", "nvidia-caps/*", "dri/*", "kfd", "accel/*", "neuron*", "infiniband/*")
FOLDERS = ("pts", "shm", "mqueue")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_DEV_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_WAKE_SECONDS = 60.0


def mount_dev(target: str, machine: Path = Path("/dev")) -> None:
    """Make it at the folder `target`, after what the machine has in its own. Raises OSError."""
    _wake()
    syscalls.mount("tmpfs", target, "tmpfs", _DEV_FLAGS, "mode=0755,size=64k")
    for folder in FOLDERS:
        make_folder(Path(target, folder))
    nodes = [machine / name for name in USUAL] + [p for pattern in ACCELERATORS for p in sorted(machine.glob(pattern))]
    for node in nodes:
        if node.is_char_device():  # not every machine has each
            _copy(node, Path(target) / node.relative_to(machine))
    for name, to in LINKS.items():
        Path(target, name).symlink_to(to)
    syscalls.mount("", target, flags=syscalls.MS_REMOUNT | syscalls.MS_RDONLY | _DEV_FLAGS)


def _copy(node: Path, to: Path) -> None:
    st = node.stat()
    make_folder(to.parent)
    os.mknod(to, st.st_mode, st.st_rdev)
    to.chmod(stat.S_IMODE(st.st_mode))  # whatever the umask
    os.chown(to, st.st_uid, st.st_gid)


def _wake() -> None:
    """NVIDIA's nodes are made by the first program that uses the driver, and a job could not make them."""
    if _NVIDIA.is_dir() and not Path("/dev/nvidia-uvm").exists():
        numbers = [f"--create-nvidia-device-file={i}" for i in range(len(list(_NVIDIA.iterdir())))]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["nvidia-modprobe", "--unified-memory", *numbers], capture_output=True, check=False, timeout=_WAKE_SECONDS
            )


# ---- /run of a job with the machine's root: of the machine it holds only how names are looked up.
#
# What listens in the machine's /run is out of the job's reach. The job's is memory that nobody can write to, made anew on each
# machine.

RUN_FOLDER = "/run"
RESOLVER = "/etc/resolv.conf"
_RESOLVED = "/run/systemd/resolve/resolv.conf"  # of a machine with a name server of its own: that one's name servers
_RUN_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


def mount_run(target: str, folders: tuple[str, ...]) -> None:
    """Make it at the folder `target`, with these empty folders in it. Raises OSError."""
    syscalls.mount("tmpfs", target, "tmpfs", _RUN_FLAGS, "mode=0755,size=1m")
    for name in folders:
        make_folder(Path(target, name))
    real = os.path.realpath(RESOLVER)
    if real.startswith(f"{RUN_FOLDER}/"):
        path = Path(target + real.removeprefix(RUN_FOLDER))
        make_folder(path.parent)
        path.write_text(resolver())
        path.chmod(0o644)
    syscalls.mount("", target, flags=syscalls.MS_REMOUNT | syscalls.MS_RDONLY | _RUN_FLAGS)


def resolver() -> str:
    """The machine's name servers; a job asks them from a network of its own, so those on the machine itself are no use."""
    for name in (RESOLVER, _RESOLVED):
        try:
            lines = Path(name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        kept = [x for x in lines if x.split()[:1] != ["nameserver"] or not x.split()[-1].startswith(("127.", "::1"))]
        if any(x.split()[:1] == ["nameserver"] for x in kept):
            return "".join(f"{x}\n" for x in kept)
    return ""


# ---- The mounts

# File systems that hold programs and data; all others (proc, cgroup, tmpfs, automounts …) differ from machine to machine.
DISKS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "nfs", "nfs4", "lustre", "ceph", "overlay", "squashfs", "erofs"}
)
NAMES = "names"  # folder of the job: what its programs look names up in, written anew on each machine
NAME_FILES = ("hosts", "resolv.conf")  # a job with the machine's root gets the first alone
HOSTS = "/etc/hosts"
MACHINE_ID = "/etc/machine-id"  # the job's own: the machine's changes with each move
# Never carried: they belong to the machine, not to the programs on it.
OWN = ("/boot", "/dev", "/proc", "/run", "/snap", "/sys", "/tmp", "/var/tmp")  # noqa: S108


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of the job: where it comes from on this machine, where the job sees it, its name in an image."""

    name: str
    source: str
    target: str
    read_only: bool = False


# Memory of the job's own: in every job, so that all have the same mounts. See `mount_dev`, `mount_run`, `launch.mount_secrets`.
DEV = Mount("dev", "", "/dev", True)
RUN = Mount("run", "", "/run", True)
SECRETS = Mount("secrets", "", "/run/secrets", True)
# Of the job's own /proc, what is the machine's: to write there takes root's rights over files and no capability. A write to
# `sysrq-trigger` restarts the machine, one to `scsi` takes its disks away, one to `driver` puts its GPUs to sleep,
# one to `dynamic_debug` (distributions' kernels have it) fills its kernel's log.
PROC_OF_MACHINE = ("sys", "bus", "fs", "irq", "driver", "sysrq-trigger", "scsi", "acpi", "dynamic_debug")


def kind_at(path: Path) -> str:
    """Kind of the file system that holds an absolute path of this machine."""
    found = ("", "")
    for line in mount_lines(procfs.text("self", "mountinfo")):
        if _below(str(path), line.point) and len(line.point) >= len(found[0]):
            found = (line.point, line.kind)
    return found[1]


def carried(table: list[MountLine], base: str) -> list[str]:
    """Mount points of the machine's other disks that the job sees, outer ones first.

    One that lies below a mount which the job does not see is left out, as is one that a later mount hides.
    """
    visible: dict[str, str] = {}
    for line in table:
        visible = {x: k for x, k in visible.items() if not _below(x, line.point)}
        visible[line.point] = line.kind
    found: list[str] = []
    for point in sorted(visible):
        above = [x for x in visible if x not in ("/", point) and _below(point, x)]
        own = any(_below(point, x) for x in (*OWN, base))
        if point != "/" and not own and visible[point] in DISKS and all(x in found for x in above):
            found.append(point)
    return found


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def mounts(base: str, scratch: str, image: str = "", extra: Sequence[Mount] = ()) -> list[Mount]:
    """All mounts of the job below its root, in the order of mounting; /proc and /dev/pts are its own and not among them.

    `image` is the unpacked tree that is its root, "" for the machine's own; `extra` are mounted last.
    """
    above, own = _of_image(base, scratch) if image else _of_machine(base)
    fixed = [
        DEV,
        Mount("sys", "/sys", "/sys", True),
        *own,
        Mount("scratch", scratch, base),
        Mount("tmp", scratch + "/tmp", "/tmp"),  # noqa: S108 -- the job's own
        Mount("vartmp", scratch + "/tmp", "/var/tmp"),  # noqa: S108
        Mount("shm", scratch + "/shm", "/dev/shm"),  # noqa: S108
    ]
    # An image has all mount points, for they were made, and so has the job's /dev; the machine's root has what it has.
    there = (m for m in fixed if image or _below(m.target, DEV.target) or Path(m.target).is_dir())
    return [*above, *there, SECRETS, *extra]


def _of_machine(base: str) -> tuple[list[Mount], list[Mount]]:
    table = mount_lines(procfs.text("self", "mountinfo"))
    disks = [
        Mount("disk" + point.replace("/", "-"), point, point, True) for point in carried(table, base) if Path(point).is_dir()
    ]
    files = (HOSTS, MACHINE_ID)
    own = [Mount(Path(f).name, f"{base}/job/{NAMES}/{Path(f).name}", f, True) for f in files if has(f)]
    return [*disks, *own], [RUN]


def has(file: str) -> bool:
    """Whether the machine has a file to mount one on; through a link CRIU would see it elsewhere than we say."""
    return Path(file).is_file() and not Path(file).is_symlink()


def _of_image(base: str, scratch: str) -> tuple[list[Mount], list[Mount]]:
    names = [Mount("etc-" + n, f"{base}/job/{NAMES}/{n}", f"/etc/{n}", True) for n in NAME_FILES]
    return names, [Mount("run", scratch + "/run", "/run")]


def compared(plan: Iterable[Mount]) -> list[str]:
    """Targets of the mounts that a machine must have; the agent makes the one of secrets on each machine."""
    return [m.target for m in plan if m is not SECRETS]


def on_machine(path: str, plan: Sequence[Mount], image: str = "") -> str:
    """The path on this machine of a path that the job sees; `plan` are its mounts."""
    for m in reversed(plan):
        if _below(path, m.target):
            return m.source.rstrip("/") + path[len(m.target.rstrip("/")) :]
    return image + path


def proc_of_machine(proc: str = "/proc") -> list[str]:
    """Those of PROC_OF_MACHINE that this kernel has: mounts of the job, which a machine that restores it must have, too."""
    return [name for name in PROC_OF_MACHINE if Path(proc, name).exists()]


def make_folder(path: Path) -> None:
    """Make a folder that the job's user may enter, and those that are missing above it, whatever the agent's umask."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        path.chmod(0o755)


def build(root: str, plan: Sequence[Mount], image: str = "") -> None:
    """Put the tree together below the folder `root`, in a private mount namespace of the caller.

    A device that lies on a disk, in an image or among files that were brought can't be opened: the job's are in its /dev.
    """
    syscalls.bind(image or "/", root, syscalls.MS_RDONLY | syscalls.MS_NODEV)
    for m in plan:
        if m is DEV:
            mount_dev(root + m.target)
        elif m is RUN:
            mount_run(root + m.target, (Path(SECRETS.target).name,))
        elif m is not SECRETS:
            syscalls.bind(m.source, root + m.target, syscalls.MS_NODEV | (syscalls.MS_RDONLY if m.read_only else 0))


def enter(root: str) -> None:
    """Make the built tree the root, with a /proc and terminals of the caller's own pid namespace."""
    syscalls.mount("proc", root + "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    for name in proc_of_machine(root + "/proc"):
        syscalls.bind(f"{root}/proc/{name}", f"{root}/proc/{name}", syscalls.MS_RDONLY)
    syscalls.mount(
        "devpts", root + "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    syscalls.bind(
        root + "/dev/pts/ptmx", root + "/dev/ptmx"
    )  # CRIU sets its owner anew: it must be the job's, not the machine's
    syscalls.pivot_root(root)
    os.chdir("/")
