"""The file system and the devices that a box sees."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux import procfs, syscalls

from spotsurfer.model.market import NO_GPUS, Gpus

# ---- Devices: those that programs expect of any machine, and this host's GPUs. No disk but the box's own.

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
    """This host's devices that a box gets, too."""
    paths = [DEV / name for name in USUAL] + [p for pattern in GRAPHICS for p in sorted(DEV.glob(pattern))]
    return [of(str(p)) for p in paths if p.is_char_device()]  # a host may lack some


def gpus_of_host() -> Gpus:
    """This host's NVIDIA GPUs: each box has all of them, whatever its type has on a cloud. The chip is not asked for."""
    count = sum(p.is_char_device() for p in DEV.glob("nvidia[0-9]*"))
    return Gpus(count=count) if count else NO_GPUS


def of(path: str) -> Device:
    """The device node at a path below /dev. Raises OSError."""
    st = Path(path).stat()
    return Device(str(Path(path).relative_to(DEV)), st.st_mode, (st.st_uid, st.st_gid), st.st_rdev)


def make(target: str, devices: Sequence[Device]) -> None:
    """Make a private /dev at the folder `target`, with its own terminals. Raises OSError."""
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


# ---- File system: a read-only root, with private folders for a machine's writes.
# The root is the host's, or an unpacked tree (as debootstrap makes one). Such a box has nothing of the host, so a job that
# depends on something of the host fails as it would on a machine.

DISK_AT = "/var/lib/spotsurfer"
FOLDERS_AT = f"{DISK_AT}/folders"  # where boxes have folders of the host: what a machine's image mounts of a file server
# Mount points, not files of ours: a fresh machine has nothing there, but users of the host do.
PRIVATE = {"/tmp": "1777", "/run": "0755", "/var/tmp": "1777", "/dev/shm": "1777", "/root": "0700", "/home": "0755"}  # noqa: S108
_CGROUP_ROOT = "/sys/fs/cgroup"
_OPEN = syscalls.MS_NOSUID | syscalls.MS_NODEV
_PLAIN = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
# The parts of /proc that belong to the whole host, and the exceptions that are each box's own through its namespaces.
_PROC_OF_HOST = ("sys", "sysrq-trigger", "irq", "bus")
_PROC_OWN = ("sys/net", "sys/kernel/ns_last_pid", "sys/kernel/hostname", "sys/kernel/domainname", "sys/fs/mqueue")
_PROC_OWN_PATTERNS = ("sys/kernel/sem*", "sys/kernel/msg*", "sys/kernel/shm*", "sys/kernel/auto_msgmni")


@dataclass(frozen=True, slots=True)
class View:
    """The file system of one box. `hidden` are host folders that it must not even read; `root` "" is the host's.

    `cgroups`: path of each hierarchy to show inside, and the options that name it ("" for v2). `runtimes`: a host folder, or
    "". A box finds each runtime in it in place, read-only.
    """

    device: str
    disk_kind: str
    cgroups: Sequence[tuple[str, str]]
    hidden: Sequence[str]
    root: str
    runtimes: str
    folders: Mapping[str, str]  # of the host, by name: all boxes have them below `FOLDERS_AT`, for writing


def build(view: View) -> None:
    """Turn the calling process's (fresh) mount namespace into the box's. Its pid, net and cgroup namespaces are fresh, too.

    The order matters: it first drops mounts of the host that are covered anyway, so that a box neither keeps them busy
    nor passes them on to the mount namespaces of its jobs.
    """
    mounted, top = [m.point for m in procfs.mount_lines(procfs.text("self", "mountinfo"))], view.root
    nodes = [*of_host(), of(view.device)]
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    if top:
        syscalls.bind(top, top)
    syscalls.make_read_only(top or "/")
    if not top:
        _drop(mounted, ("/proc", "/sys", "/dev", DISK_AT, *PRIVATE, *view.hidden))
    make(top + "/dev", nodes)
    syscalls.mount(top + view.device, top + DISK_AT, view.disk_kind)
    if view.runtimes:  # before private and hidden folders cover it
        _bake_in(Path(view.runtimes), Path(top + DISK_AT) / "runtime")
    _show(view.folders, Path(top + FOLDERS_AT))
    _mount_proc(top + "/proc")
    _mount_sys(view, top)
    for folder, mode in PRIVATE.items():
        if os.path.isdir(top + folder) and not os.path.islink(top + folder):  # noqa: PTH112,PTH114 - as the kernel sees them
            syscalls.mount("tmpfs", top + folder, "tmpfs", _OPEN, f"mode={mode}")
    for folder in () if top else view.hidden:
        if os.path.isdir(folder):  # noqa: PTH112 - absent if a private folder covers it
            syscalls.mount("tmpfs", folder, "tmpfs", _PLAIN | syscalls.MS_RDONLY, "mode=0755,size=4k")
    if top:
        syscalls.pivot_root(top)


def _drop(mounted: Sequence[str], covered: Sequence[str]) -> None:
    for point in reversed(mounted):  # children come after their parents
        if any(Path(point).is_relative_to(c) for c in covered):
            syscalls.umount(point)


def _bake_in(runtimes: Path, at: Path) -> None:
    """Each runtime of the host's folder, read-only, as on a machine image that contains it."""
    for runtime in sorted(runtimes.iterdir()):
        target = at / runtime.name
        target.mkdir(parents=True, exist_ok=True)
        syscalls.bind(str(runtime.resolve()), str(target))
        syscalls.make_read_only(str(target))


def _show(folders: Mapping[str, str], at: Path) -> None:
    """Folders of the host, for writing, although they lie on mounts that are read-only by now."""
    for name, folder in folders.items():
        target = at / name
        target.mkdir(parents=True, exist_ok=True)
        syscalls.bind(folder, str(target))
        syscalls.mount("", str(target), flags=syscalls.MS_REMOUNT | syscalls.MS_BIND | _OPEN)


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
    """A mount of its own at this path, with the same content."""
    syscalls.bind(str(path), str(path))
    flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | _PLAIN | (syscalls.MS_RDONLY if read_only else 0)
    syscalls.mount("", str(path), flags=flags)


def _mount_sys(view: View, top: str) -> None:
    """A fresh /sys shows only the box's own network devices, and below it only the box's own part of the control groups.

    For an ext4 disk, the box may write the goal of the next inode number, as root of any machine may.
    """
    syscalls.mount("sysfs", top + "/sys", "sysfs", _PLAIN)
    if (goal := Path(f"{top}/sys/fs/ext4/{Path(view.device).name}/inode_goal")).exists():
        _bind(goal, read_only=False)
    syscalls.mount("", top + "/sys", flags=syscalls.MS_REMOUNT | syscalls.MS_BIND | _PLAIN | syscalls.MS_RDONLY)
    if [path for path, _ in view.cgroups] == [_CGROUP_ROOT]:
        syscalls.mount("cgroup2", top + _CGROUP_ROOT, "cgroup2", _PLAIN)
        return
    syscalls.mount("tmpfs", top + _CGROUP_ROOT, "tmpfs", _PLAIN, "mode=0755")
    for path, options in view.cgroups:
        Path(top + path).mkdir(parents=True, exist_ok=True)
        syscalls.mount("cgroup", top + path, "cgroup" if options else "cgroup2", _PLAIN, options)
