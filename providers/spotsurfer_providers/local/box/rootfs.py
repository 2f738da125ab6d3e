"""The file system and devices that a box sees."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.model.market import NO_GPUS, Gpus
from spotsurfer_providers.local.box import syscalls

# The devices of a box: what programs expect of any machine, and the graphics processors of this one. No disk but its own.

DEV = Path("/dev")
USUAL = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "fuse", "kvm", "net/tun")
GRAPHICS = ("nvidia*", "nvidia-caps/*", "dri/*", "kfd")
FOLDERS = ("pts", "shm", "mqueue", "net")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


@dataclass(frozen=True, slots=True)
class Device:
    """A device node: its name below /dev, its mode with the kind, owner and group, its number."""

    name: str
    mode: int
    owner: tuple[int, int]
    number: int


def of_host() -> list[Device]:
    """Those of this host that a box gets, too."""
    paths = [DEV / name for name in USUAL] + [p for pattern in GRAPHICS for p in sorted(DEV.glob(pattern))]
    return [of(str(p)) for p in paths if p.is_char_device()]  # not every host has each


def gpus_of_host() -> Gpus:
    """NVIDIA's of this host: each box has all of them, whatever its type would have elsewhere. Their chip is not asked for."""
    count = sum(p.is_char_device() for p in DEV.glob("nvidia[0-9]*"))
    return Gpus(count=count) if count else NO_GPUS


def of(path: str) -> Device:
    """The device node at a path below /dev. Raises OSError."""
    st = Path(path).stat()
    return Device(str(Path(path).relative_to(DEV)), st.st_mode, (st.st_uid, st.st_gid), st.st_rdev)


def make(target: str, devices: Sequence[Device]) -> None:
    """A /dev of its own at the folder `target`, with terminals that nobody else sees. Raises OSError."""
    syscalls.mount("tmpfs", target, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "mode=0755,size=1m")
    for folder in FOLDERS:
        os.makedirs(f"{target}/{folder}")  # noqa: PTH103 - as the kernel sees them
    for d in devices:
        path = Path(target, d.name)
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, d.mode, d.number)
        path.chmod(stat.S_IMODE(d.mode))  # whatever the umask
        os.chown(path, *d.owner)
    for name, to in LINKS.items():
        Path(target, name).symlink_to(to)
    syscalls.mount(
        "devpts", target + "/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )


# What a box sees of the file system: a root that it can't write, with folders of its own where a machine writes.
#
# The root is the host's, or an unpacked tree (as debootstrap makes one): then nothing of the host's is there at all, and a job
# that leans on something of it fails as it would on a machine.

DISK_AT = "/var/lib/spotsurfer"
# Mount points, not files of ours: a fresh machine has nothing there, and whoever lives on the host does.
PRIVATE = {"/tmp": "1777", "/run": "0755", "/var/tmp": "1777", "/dev/shm": "1777", "/root": "0700", "/home": "0755"}  # noqa: S108
_CGROUP_ROOT = "/sys/fs/cgroup"
_OPEN = syscalls.MS_NOSUID | syscalls.MS_NODEV
_PLAIN = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
# Of /proc, what belongs to the whole host; and what of that is each box's own, through its namespaces.
_PROC_OF_HOST = ("sys", "sysrq-trigger", "irq", "bus")
_PROC_OWN = ("sys/net", "sys/kernel/ns_last_pid", "sys/kernel/hostname", "sys/kernel/domainname", "sys/fs/mqueue")
_PROC_OWN_PATTERNS = ("sys/kernel/sem*", "sys/kernel/msg*", "sys/kernel/shm*", "sys/kernel/auto_msgmni")


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A hierarchy to be shown inside: where, and the options that name it ("" for v2)."""

    path: str
    options: str


@dataclass(frozen=True, slots=True)
class View:
    """How one box's file system is made. `hidden` are host folders that it must not even read; `root` "" is the host's.

    `runtimes`: a host folder, or "". A box finds each runtime in it in place, read-only.
    """

    device: str
    disk_kind: str
    cgroups: Sequence[CgroupMount]
    hidden: Sequence[str]
    root: str = ""
    runtimes: str = ""


def build(view: View) -> None:
    """Make the calling process's (fresh) mount namespace the box's. In fresh pid, net and cgroup namespaces already.

    The order matters: mounts of the host that are covered anyway are dropped first, so that a box neither keeps them busy
    nor hands them on to the mount namespaces of its jobs.
    """
    mounted, top = _mount_points(Path("/proc/self/mountinfo").read_text()), view.root
    nodes = [*of_host(), of(view.device)]
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    if top:
        syscalls.mount(top, top, None, syscalls.MS_BIND)
    syscalls.make_read_only(top or "/")
    if not top:
        _drop(mounted, ("/proc", "/sys", "/dev", DISK_AT, *PRIVATE, *view.hidden))
    make(top + "/dev", nodes)
    syscalls.mount(top + view.device, top + DISK_AT, view.disk_kind, 0)
    if view.runtimes:  # before private and hidden folders cover it
        _bake_in(Path(view.runtimes), Path(top + DISK_AT) / "runtime")
    _mount_proc(top + "/proc")
    _mount_sys(view, top)
    for folder, mode in PRIVATE.items():
        if os.path.isdir(top + folder) and not os.path.islink(top + folder):  # noqa: PTH112,PTH114 - as the kernel sees them
            syscalls.mount("tmpfs", top + folder, "tmpfs", _OPEN, f"mode={mode}")
    for folder in () if top else view.hidden:
        if os.path.isdir(folder):  # noqa: PTH112 - gone where a private folder covers it
            syscalls.mount("tmpfs", folder, "tmpfs", _PLAIN | syscalls.MS_RDONLY, "mode=0755,size=4k")
    if top:
        syscalls.pivot_root(top)


def _bake_in(runtimes: Path, at: Path) -> None:
    """Each runtime of the host's folder, read-only, as on a machine image that was made with it."""
    for runtime in sorted(runtimes.iterdir()):
        target = at / runtime.name
        target.mkdir(parents=True, exist_ok=True)
        syscalls.mount(str(runtime.resolve()), str(target), None, syscalls.MS_BIND)
        syscalls.make_read_only(str(target))


def _mount_proc(target: str) -> None:
    syscalls.mount("proc", target, "proc", _PLAIN)
    proc = Path(target)
    for name in _PROC_OF_HOST:
        if (path := proc / name).exists():
            _bind(path, read_only=True)
    for path in [*(proc / n for n in _PROC_OWN), *(p for pattern in _PROC_OWN_PATTERNS for p in sorted(proc.glob(pattern)))]:
        if path.exists():
            _bind(path, read_only=False)


def _bind(path: Path, *, read_only: bool) -> None:
    """A mount of its own at this place, with what lies there."""
    syscalls.mount(str(path), str(path), None, syscalls.MS_BIND)
    syscalls.mount(
        None, str(path), None, syscalls.MS_REMOUNT | syscalls.MS_BIND | _PLAIN | (syscalls.MS_RDONLY if read_only else 0)
    )


def _mount_sys(view: View, top: str) -> None:
    """A fresh /sys shows the box's own network devices; below it only the box's own part of the control groups.

    Of an ext4 disk, as root of any machine may, the box writes where the next inode number is looked for.
    """
    cgroups = view.cgroups
    syscalls.mount("sysfs", top + "/sys", "sysfs", _PLAIN)
    if (goal := Path(f"{top}/sys/fs/ext4/{Path(view.device).name}/inode_goal")).exists():
        _bind(goal, read_only=False)
    syscalls.mount(None, top + "/sys", None, syscalls.MS_REMOUNT | syscalls.MS_BIND | _PLAIN | syscalls.MS_RDONLY)
    if [c.path for c in cgroups] == [_CGROUP_ROOT]:
        syscalls.mount("cgroup2", top + _CGROUP_ROOT, "cgroup2", _PLAIN)
        return
    syscalls.mount("tmpfs", top + _CGROUP_ROOT, "tmpfs", _PLAIN, "mode=0755")
    for c in cgroups:
        Path(top + c.path).mkdir(parents=True, exist_ok=True)
        syscalls.mount("cgroup", top + c.path, "cgroup" if c.options else "cgroup2", _PLAIN, c.options or None)


def _mount_points(table: str) -> list[str]:
    return [line.split()[4].encode().decode("unicode_escape") for line in table.splitlines()]


def _drop(mounted: Sequence[str], covered: Sequence[str]) -> None:
    for point in reversed(mounted):  # children come after their parents
        if any(point == c or point.startswith(c + "/") for c in covered):
            syscalls.detach(point)
