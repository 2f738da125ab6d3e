"""Finds what a job's processes hold that can't be saved: each named with its process, descriptor or path, and the remedy.

The agent looks before it promises protection and before each save, so only /proc is read: a few milliseconds for a usual job.
Each kind of thing has a check in CHECKS or a row of a table; the rest is left to CRIU.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.linux.procfs import mount_lines

from spotsurfer_agent.criu.command import GHOST_MEGABYTES
from spotsurfer_agent.files import identity
from spotsurfer_agent.gpu.process_discovery import DEVICES as GPUS
from spotsurfer_agent.host import launch, network, shim_protocol
from spotsurfer_agent.host.root_fs import PROC_OF_MACHINE
from spotsurfer_agent.save import process_inspection

# Anonymous descriptors that CRIU saves, by the name that the kernel gives them.
SAVED = frozenset({"eventfd", "eventpoll", "timerfd", "signalfd", "inotify", "fanotify", "pidfd"})
# What to do about the others; `other` stands for all that have no row.
ANONYMOUS = {
    "io_uring": "an io_uring, which can't be saved: make the program use another way of I/O (UV_USE_IO_URING=0 and the like)",
    "userfaultfd": "a userfaultfd, which can't be saved: switch off what uses it",
    "perf_event": "a performance counter, which can't be saved: run it without the profiler",
    "other": "a descriptor of kind {kind}, which can't be saved: switch off what uses it",
}
# Devices that are the same everywhere: null, zero, full, random, urandom; tty, console, ptmx and the job's own terminals.
DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)})
TERMINALS = range(136, 144)
NAMESPACES = {
    "pid": "process numbers",
    "mnt": "mounts",
    "user": "users",
    "net": "network",
    "ipc": "System V objects",
    "uts": "host name",
}
OF_EACH_JOB = ("/", "/proc", "/dev/pts", "/dev/ptmx")  # besides `root_fs.mounts`; see `root_fs.enter`
OWN = ("/tmp/", "/var/tmp/", "/dev/shm/", "/memfd:", "/SYSV", "/proc/", "/dev/")  # noqa: S108 -- the job's own, or not on a disk
# Network file systems: one that a job mounted by itself is on this machine alone.
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "9p", "glusterfs", "beegfs", "gpfs", "afs"})
MEMORY = ("/memfd:", "/SYSV", "/dev/zero", "/anon_hugepage")  # files that are memory, and saved as that
BLOCK = 512  # bytes, of `st_blocks`
# Of all that is made with MAP_HUGETLB, MFD_HUGETLB or SHM_HUGETLB.
RESERVED = "which a machine must have reserved and another one may lack: use transparent huge pages instead"
SECRET = "/secretmem"  # noqa: S105 -- what the kernel calls memory of memfd_secret(2)
HUGE = re.compile(r"/anon_hugepage|/dev/hugepages/")
PERHAPS_HUGE = ("/memfd:", "/SYSV")  # the name does not tell


@dataclass(frozen=True, slots=True)
class Process:
    """One process: its number as we see it and as the job does, and what people call it."""

    pid: int
    inside: int
    command: str

    def __str__(self) -> str:
        return f"process {self.inside} ({self.command})"


@dataclass(frozen=True, slots=True)
class Job:
    """The job to look at. `base` is the agent's folder: the job's own disk."""

    pids: Sequence[int]
    base: str
    tcp: str = "close"
    root: int = 0  # the first process; 0 = the one that is number 1 inside, else the first of `pids`
    scratch: str = ""  # the job's files on this machine; "" = they are not looked at
    mounts: tuple[str, ...] = ()  # where every machine mounts something for the job; () = they are not looked at
    own: tuple[str, ...] = ()  # further folders of the job's own disk, and what it declared, as it sees them


@dataclass(slots=True)
class _Tree:
    """The processes with what is shared by all checks."""

    job: Job
    processes: list[Process]
    root: int
    own_sockets: set[int]


def findings(job: Job) -> list[str]:
    """Everything that can't be saved, one sentence each; empty = nothing is known that stands in the way."""
    processes = [p for pid in job.pids if (p := _process(pid)) is not None]
    if not processes:
        return []
    root = job.root or next((p.pid for p in processes if p.inside == 1), processes[0].pid)
    held = {n for p in processes for _, name in procfs.descriptors(p.pid) if (n := _socket_inode(name))}
    tree = _Tree(job, processes, root, held)
    found: list[str] = []
    for p in processes:
        with contextlib.suppress(OSError):  # it ended while it was looked at
            for check in CHECKS:
                found += [f"{p} {what}" for what in check(tree, p)]
    found += _sessions(tree)
    found += _mounts(tree)
    return list(dict.fromkeys(found))


def connections(job: Job) -> list[str]:
    """Open TCP connections that leave the job, one sentence each."""
    found = []
    for pid in job.pids:
        p = _process(pid)
        if p is not None:
            found += [f"{p} is connected to {there}" for _, there in _outside(p.pid)]
            found += [f"{p} has a connection from {there} that it has not accepted yet" for _, there in _waiting(p.pid)]
    return list(dict.fromkeys(found))


def sentence(found: Sequence[str]) -> str:
    """All of it as one sentence; empty for nothing."""
    if not found:
        return ""
    more = f" (and {len(found) - 1} more such things)" if len(found) > 1 else ""
    return f"the job can't be saved: {found[0]}{more}"


def _process(pid: int) -> Process | None:
    try:
        status = procfs.status(pid)
        if status.get("State", "Z").startswith(("Z", "X")):
            return None
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        name = " ".join(" ".join(words).split()) or status["Name"]
        return Process(pid, int(status.get("NSpid", str(pid)).split()[-1]), name if len(name) <= 60 else name[:57] + "…")
    except (OSError, KeyError, ValueError):
        return None


def _socket_inode(name: str) -> int:
    return int(name[8:-1]) if name.startswith("socket:[") else 0


def _traced(tree: _Tree, p: Process) -> Iterator[str]:
    tracer = procfs.status(p.pid).get("TracerPid", "0")
    if tracer != "0" and not _saves(tree.job.base, int(tracer)):
        yield f"is traced by process {tracer} (a debugger or strace), which saving needs itself: detach it"


def _saves(base: str, pid: int) -> bool:
    """It is the CRIU of a save that an agent before us began: a child of the shim. Raises OSError if it is gone."""
    shim = shim_protocol.read_json(Path(base) / "job" / shim_protocol.STARTED) or {}
    return procfs.status(pid).get("PPid") == str(shim.get("pid"))


def _related(tree: _Tree, p: Process) -> Iterator[str]:
    """A process that was started in a way that CRIU can't repeat."""
    parent = int(procfs.status(p.pid).get("PPid", "0"))
    above = next((x for x in tree.processes if x.pid == parent), None)
    if above is None:
        return
    if process_inspection.waits_for_exec(above.pid, p.pid):
        yield (
            f"was started by vfork and has neither called exec nor ended, so {above}, which waits for that, can't be stopped: "
            "start it by fork or posix_spawn"
        )
    elif procfs.status(above.pid).get("State", "")[:1] != "D" and (what := process_inspection.common(p.pid, above.pid)):
        yield f"shares {what} with {above}: start it as a thread, or by fork"


def _sessions(tree: _Tree) -> list[str]:
    names = {p.inside: p for p in tree.processes}
    return [
        f"{names[m.inside]} is of session {m.session}, whose leader is gone, and {names.get(m.parent, m.parent)} took it in "
        "(a subreaper): start it in the foreground, or without that supervisor"
        for m in process_inspection.lost_sessions(process_inspection.members(tree.job.pids))
        if m.inside in names
    ]


def _controlling(tree: _Tree, p: Process) -> Iterator[str]:
    """/dev/tty is saved only if the same process has the terminal itself, and is in its foreground (criu/tty.c)."""
    for fd, name in procfs.descriptors(p.pid):
        if name == "/dev/tty" and not _alone_at(tree, p):
            yield (
                f"holds its terminal open as /dev/tty (descriptor {fd}), as programs do that ask for a password or show pages, "
                "while other processes have that terminal, too: let it end, or give it its input by a pipe"
            )
            return


def _alone_at(tree: _Tree, p: Process) -> bool:
    *_, session, terminal, foreground = procfs.text(p.pid, "stat").rpartition(") ")[2].split()[:6]
    index = os.minor(int(terminal))
    holder = next((x for x in _in_order(tree.root) if index in _terminals(x)), p.pid)
    return holder == p.pid and foreground == session


def _in_order(root: int) -> Iterator[int]:
    """The processes as CRIU looks at them."""
    yield root
    with contextlib.suppress(OSError):
        for child in procfs.children(root):
            yield from _in_order(child)


def _terminals(pid: int) -> Iterator[int]:
    """Numbers of the job's terminals of which a process holds either end."""
    for fd, name in procfs.descriptors(pid):
        if name.startswith("/dev/pts/") and name[9:].isdigit():
            yield int(name[9:])
        elif name.endswith("/ptmx"):
            with contextlib.suppress(OSError):
                yield from (int(x) for x in re.findall(r"^tty-index:\s*(\d+)", procfs.text(pid, f"fdinfo/{fd}"), re.M))


def _signals(_: _Tree, p: Process) -> Iterator[str]:
    status = procfs.status(p.pid)
    if any(int(status.get(name, "0"), 16) >> (signal.SIGTRAP - 1) & 1 for name in ("SigPnd", "ShdPnd")):
        yield "blocks a SIGTRAP that was sent to it, which saving needs itself: let it take that signal"


def _users(tree: _Tree, p: Process) -> Iterator[str]:
    """CRIU reads the limits of processes of one user; see `launch.lend_identity`."""
    if launch.has_capability(launch.SECOND_USER):
        return
    uid, gid = launch.owner_of(tree.root)
    status = procfs.status(p.pid)
    users, groups = ({int(x) for x in status[name].split()[:3]} for name in ("Uid", "Gid"))
    if users | {uid} != {uid} or groups | {gid} != {gid}:
        other = max(users - {uid}, default=uid)
        yield (
            f"runs as user {other} in a job of user {uid}, and this machine's root may not save both (it lacks "
            "CAP_SYS_RESOURCE): give the agent's container that right, or let the job be of one user (`user` in the job file)"
        )


def _nested(tree: _Tree, p: Process) -> Iterator[str]:
    for name, what in NAMESPACES.items():
        here, root = (_link(f"/proc/{pid}/ns/{name}") for pid in (p.pid, tree.root))
        if here and root and here != root:
            yield f"has a namespace of its own for {what}: run it without a container or sandbox inside the job"
            return


def _anonymous(_: _Tree, p: Process) -> Iterator[str]:
    for fd, name in procfs.descriptors(p.pid):
        if name.startswith("anon_inode:"):
            kind = name.removeprefix("anon_inode:").strip("[]")
            if kind not in SAVED:
                text = ANONYMOUS.get(kind.strip("[]"), ANONYMOUS["other"]).format(kind=kind)
                yield f"holds, as descriptor {fd}, {text}"


def _files(tree: _Tree, p: Process) -> Iterator[str]:
    for fd, name in procfs.descriptors(p.pid):
        if not name.startswith("/"):
            continue
        st = os.stat(f"/proc/{p.pid}/fd/{fd}")  # noqa: PTH116
        if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
            yield from _device(fd, name, st)
        elif stat.S_ISREG(st.st_mode) and name.count("/") == 1 and _lies_on(f"/proc/{p.pid}/fd/{fd}", syscalls.MQUEUE):
            yield (
                f"has the POSIX message queue {name} open (descriptor {fd}), which can't be saved: make it use pipes, sockets "
                "or System V messages"
            )
        elif stat.S_ISREG(st.st_mode) and not st.st_nlink:
            yield from _deleted(fd, name, st)
        elif (
            stat.S_ISREG(st.st_mode)
            and not name.endswith(" (deleted)")
            and not name.startswith((*OWN, tree.job.base + "/", *tree.job.own))
            and procfs.flags(p.pid, fd) & os.O_ACCMODE
        ):
            yield (
                f"has {name} open for writing (descriptor {fd}), which lies outside the job's folder: "
                "it would not be carried along; write below the job's folder"
            )


def _watches(tree: _Tree, p: Process) -> Iterator[str]:
    """Files that inotify or fanotify watches by number alone: one without a name can't be found again."""
    for fd, name in procfs.descriptors(p.pid):
        if name in ("anon_inode:inotify", "anon_inode:[inotify]"):
            watched = {int(x, 16) for x in re.findall(r"^inotify wd:\S+ ino:(\w+)", procfs.text(p.pid, f"fdinfo/{fd}"), re.M)}
            for inode, gone in _nameless(tree.job.pids).items() if watched else ():
                if inode in watched:
                    yield (
                        f"watches {gone} (inotify, descriptor {fd}), which was deleted and is still open: let it stop watching "
                        "that, or close the file"
                    )


def _nameless(pids: Sequence[int]) -> dict[int, str]:
    """Files that were deleted and are open, by number."""
    found = {}
    for pid in pids:
        for fd, name in procfs.descriptors(pid):
            if name.startswith("/") and name.endswith(" (deleted)"):
                with contextlib.suppress(OSError):
                    found[os.stat(f"/proc/{pid}/fd/{fd}").st_ino] = name.removesuffix(" (deleted)")  # noqa: PTH116
    return found


def _undelivered(tree: _Tree, p: Process) -> Iterator[str]:
    """Files on a file system of the network that no other machine would mount for the job."""
    declared = (tree.job.base + "/", *tree.job.own)
    mounted = mount_lines(procfs.text(p.pid, "mountinfo"))
    points = [x for x in mounted if x.kind in NETWORK and not (x.point + "/").startswith(declared)]
    for fd, name in procfs.descriptors(p.pid) if points else ():
        where = next((x for x in points if name.startswith(x.point.rstrip("/") + "/")), None)
        if where is not None:
            yield (
                f"has {name} open (descriptor {fd}), which lies on {where.point} ({where.kind}), and no other machine mounts "
                "that: declare it under [[mounts]] in the job file"
            )


def _deleted(fd: int, name: str, st: os.stat_result) -> Iterator[str]:
    """CRIU carries the content of files without a name in its image, up to a limit of what they take of the disk."""
    takes = st.st_blocks * BLOCK
    if takes > GHOST_MEGABYTES << 20 and not name.startswith(MEMORY):
        yield (
            f"holds the deleted file {name.removesuffix(' (deleted)')} open (descriptor {fd}), which takes {takes >> 20} MiB "
            f"of the disk, more than the {GHOST_MEGABYTES} that can be carried: let it keep its name while it is open"
        )


def _numbered(tree: _Tree, p: Process) -> Iterator[str]:
    """A process that goes on with a file of another number would fail at the next write."""
    if not tree.job.scratch:
        return
    scratch = Path(tree.job.scratch)
    for fd, name, number in identity.databases(p.pid, scratch.stat().st_dev):
        if why := identity.why_not(scratch, number):
            yield (
                f"has the SQLite database {name} open (descriptor {fd}) and knows it by its inode number {number}, "
                f"which {why}: {identity.REMEDY}"
            )


def _device(fd: int, name: str, st: os.stat_result) -> Iterator[str]:
    if name.startswith(GPUS):  # the driver closes them before a save, or says why it can't: see `engines.criu_cuda`
        return
    number = (os.major(st.st_rdev), os.minor(st.st_rdev))
    same = stat.S_ISCHR(st.st_mode) and (number in DEVICES or number[0] in TERMINALS)
    if not same:
        yield f"has the device {name} open (descriptor {fd}), whose state is the machine's: close it, or run it elsewhere"


def _sockets(tree: _Tree, p: Process) -> Iterator[str]:
    held = [(fd, _socket_inode(name)) for fd, name in procfs.descriptors(p.pid) if name.startswith("socket:[")]
    if not held:
        return
    unix = process_inspection.unix_sockets(p.pid)
    for fd, inode in held:
        if (odd := process_inspection.odd_kind(p.pid, fd)) is not None:
            remedy = process_inspection.REMEDIES.get(odd, "make it use TCP or UDP")
            yield f"holds, as descriptor {fd}, a socket of family {odd}, which can't be saved: {remedy}"
        if process_inspection.corked(p.pid, fd):
            yield f"has begun a datagram and not sent it yet (descriptor {fd}, UDP_CORK): let it send, and it can be saved"
        if unix.lost(inode):
            yield (
                f"was written to over its Unix socket {process_inspection.unix_name(p.pid, fd)} (descriptor {fd}), but has not "
                "accepted that connection yet: let it accept, and it can be saved"
            )
        peer = unix.peers.get(inode)
        if peer is not None and peer not in tree.own_sockets:
            name = process_inspection.unix_name(p.pid, fd) or "without a name"
            yield (
                f"talks over the Unix socket {name} (descriptor {fd}) to a program outside of the job: "
                "start that program inside the job, or do without it"
            )


def _tcp(tree: _Tree, p: Process) -> Iterator[str]:
    if tree.job.tcp == "forbid":
        for fd, there in _outside(p.pid):
            yield f'is connected to {there} (descriptor {fd}), which tcp = "forbid" rules out: close it, or say tcp = "close"'
        for fd, there in _waiting(p.pid):
            yield (
                f"has a connection from {there} that it has not accepted yet (descriptor {fd}), which "
                'tcp = "forbid" rules out: accept and close it, or say tcp = "close"'
            )


def _waiting(pid: int) -> Iterator[tuple[int, str]]:
    held = {inode: fd for fd, name in procfs.descriptors(pid) if (inode := _socket_inode(name))}
    for inode, there in process_inspection.unaccepted(pid) if held else ():
        if inode in held:
            yield held[inode], there


def _outside(pid: int) -> Iterator[tuple[int, str]]:
    for fd, name in procfs.descriptors(pid):
        if name.startswith("socket:[") and (there := process_inspection.outside(pid, fd)) is not None:
            yield fd, there


def _mappings(_: _Tree, p: Process) -> Iterator[str]:
    mappings = list(procfs.mappings(procfs.text(p.pid, "maps")))
    if {"[vvar]", "[vdso]"} & {m.name for m in mappings} == {"[vvar]"}:  # criu/pie/parasite-vdso.c restores both or none
        yield "has unmapped the kernel's clock code (vDSO), as Valgrind does, so it can't be restored: run it without"
    for m in mappings:
        if m.name.startswith(SECRET):
            yield "has memory that the kernel shows to nobody else (memfd_secret): do without it, as most programs can"
            return
        there = f"/proc/{p.pid}/map_files/{m.start:x}-{m.end:x}"
        if HUGE.match(m.name) or (m.name.startswith(PERHAPS_HUGE) and _lies_on(there, syscalls.HUGETLB)):
            yield f"has mapped huge pages ({m.name.removesuffix(' (deleted)')}), {RESERVED}"
            return
    for fd, name in procfs.descriptors(p.pid):
        if name.startswith(PERHAPS_HUGE) and _lies_on(f"/proc/{p.pid}/fd/{fd}", syscalls.HUGETLB):
            yield f"has huge pages ({name.removesuffix(' (deleted)')}, descriptor {fd}), {RESERVED}"
            return


def _lies_on(path: str, file_system: int) -> bool:
    with contextlib.suppress(OSError):
        return syscalls.file_system(path) == file_system
    return False


def _system_v(_: _Tree, p: Process) -> Iterator[str]:
    """Segments inside an own namespace travel along; in the machine's they don't."""
    if _link(f"/proc/{p.pid}/ns/ipc") != _link("/proc/self/ns/ipc"):
        return
    for m in procfs.mappings(procfs.text(p.pid, "maps")):
        if m.name.startswith("/SYSV"):
            name = m.name.removesuffix(" (deleted)")
            yield f"has mapped the System V segment {name} of the machine: give the job an IPC namespace of its own"
            return


def _network(tree: _Tree, p: Process) -> Iterator[str]:
    """Links that the job made: each machine gives it the two of `network.prepare`."""
    if p.pid != tree.root or _link(f"/proc/{p.pid}/ns/net") == _link("/proc/self/ns/net"):
        return
    links = {line.split(":")[0].strip() for line in procfs.lines(procfs.text(p.pid, "net/dev"))[2:]}
    for name in sorted(links - {"lo", network.LINK, *network.OF_THE_KERNEL}):
        yield f"has the network link {name}, which no other machine makes for the job: remove it (ip link delete {name})"


Check = Callable[[_Tree, Process], Iterable[str]]  # yields the second half of a sentence
CHECKS: tuple[Check, ...] = (
    _anonymous,
    _files,
    _watches,
    _numbered,
    _undelivered,
    _sockets,
    _tcp,
    _controlling,
    _traced,
    _nested,
    _related,
    _users,
    _signals,
    _network,
    _mappings,
    _system_v,
)


def _mounts(tree: _Tree) -> list[str]:
    """FUSE file systems, and other mounts that the job made by itself."""
    if _link(f"/proc/{tree.root}/ns/mnt") == _link("/proc/self/ns/mnt"):
        return []
    try:
        lines = mount_lines(procfs.text(tree.root, "mountinfo"))
    except OSError:
        return []
    found = [
        f"{x.point} is a FUSE file system ({x.kind}), whose server can't be saved: copy what is needed into the job's folder"
        for x in lines
        if x.kind.startswith("fuse") and x.kind != "fusectl"
    ]
    if not tree.job.mounts:
        return found
    known = Counter([*OF_EACH_JOB, *(f"/proc/{name}" for name in PROC_OF_MACHINE), *tree.job.mounts])
    first = next(p for p in tree.processes if p.pid == tree.root)
    for x in lines:
        known[x.point] -= 1
        if known[x.point] < 0 and not x.kind.startswith("fuse"):
            found.append(
                f"{first} has {x.kind} mounted on {x.point}, which is none of the mounts that the job gets on each machine: "
                "unmount it, or have the files in the job's folder"
            )
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""
