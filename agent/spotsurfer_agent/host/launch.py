"""The first instants of a job's processes: namespaces, privileges and the mount of its secrets. Standard library only.

This runs in a forked child of the shim, before the program is there. Everything that a process holds at this point ends up in
its image, so it holds nothing: descriptors 0 to 2 opened for it, all others closed, default signals, a small environment.
"""

from __future__ import annotations

import base64
import os
import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from spotsurfer_wire.linux import procfs, syscalls

from spotsurfer_agent.host import network, root_fs

# ---- Secrets: the memory in which a job finds those of its secrets that are files

SIZE_BYTES = 4 << 20  # more than a job may be given, as each file takes whole pages
_OPTIONS = f"mode=0700,size={SIZE_BYTES}"
_NO_SWAP = (6, 4)  # older kernels make no such promise, and log that they do not know the option
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


def mount_secrets(target: str, files: Mapping[str, bytes], uid: int, gid: int) -> None:
    """Mount the secrets there, readable by their owner alone and writable by nobody. Raises OSError."""
    never = ",noswap" if syscalls.kernel_version() >= _NO_SWAP else ""
    syscalls.mount("tmpfs", target, "tmpfs", _FLAGS, _OPTIONS + never)
    for name, value in files.items():
        fd = os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
        with os.fdopen(fd, "wb") as file:
            file.write(value)
            os.fchown(file.fileno(), uid, gid)
    os.chown(target, uid, gid)
    syscalls.mount("", target, flags=syscalls.MS_REMOUNT | syscalls.MS_RDONLY | _FLAGS)


# ---- Privileges beyond those of the job's user: none, and for root those that a root of files and processes needs.
#
# Whatever the job starts, no program gains any by a setuid bit or by capabilities of its file (`no_new_privs`), and what is not
# in the bounding set is gone for good. CRIU carries all of it in an image.

# Of capabilities(7), by number: what changes owners, modes and users, listens on any port, and ends processes. Docker's usual
# set without MKNOD (disks), NET_RAW, AUDIT_WRITE and SETFCAP. None that mounts, loads, traces, or sets up a network.
ROOT = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
    "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18,
}  # fmt: skip


# What the agent itself must have for CRIU; if one is missing, no job can be saved.
NEEDED = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
    "NET_ADMIN": 12, "SYS_CHROOT": 18, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "MKNOD": 27,
}  # fmt: skip
# Without SYS_RESOURCE (as in many containers) a job of one user can be saved, and no other: see `lend_identity`.
SECOND_USER = 24


def has_capability(capability: int) -> bool:
    """Whether the calling process has this capability."""
    return bool(int(procfs.status(os.getpid())["CapEff"], 16) >> capability & 1)


def missing_capabilities() -> list[str]:
    """Names of what the calling process needs for CRIU and does not have."""
    return [f"CAP_{name}" for name, number in NEEDED.items() if not has_capability(number)]


@dataclass(frozen=True, slots=True)
class Privileges:
    """`capabilities`: that programs may ever have, a bit for each. `gain`: setuid bits and capabilities of files count."""

    capabilities: int = 0
    gain: bool = False

    @staticmethod
    def of_user(uid: int) -> Privileges:
        """Those with which a job of this user is started."""
        return Privileges(sum(1 << number for number in ROOT.values()) if uid == 0 else 0)

    @staticmethod
    def of_process(pid: int) -> Privileges:
        """Those with which a process runs: a job that an earlier agent started has more. Raises OSError."""
        status = procfs.status(pid)
        return Privileges(int(status["CapBnd"], 16), status.get("NoNewPrivs") == "0")

    def take(self) -> None:
        """The calling process has them from its next exec on. It must be root, and may change its user before that.

        Raises OSError.
        """
        syscalls.bound_capabilities(self.capabilities)
        if not self.gain:
            syscalls.no_new_privileges()


# ---- The launch

FAILED = 127
DESCRIPTORS_OF_CRIU = 256
# Namespaces that a job gets at its start; those of mounts and network are made for it.
OWN = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWTIME


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What to run and as whom. Paths are those that the job sees, except for `root`, which is the agent's."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    uid: int
    gid: int
    groups: list[int]
    root: str  # an empty folder of the agent; the job's tree is mounted there
    base: str
    scratch: str
    host: str  # what it takes for its machine's name
    cgroups: list[str] = field(default_factory=list)  # files to write the pid into
    image: str = ""  # the unpacked tree of its container image; "" = the machine's own root
    extra: list[dict[str, Any]] = field(default_factory=list)  # root_fs.Mounts beyond the usual ones
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # files for its user alone: name -> value in base64
    hides: bool = False  # it was given secrets, in whatever form

    step: int = 0  # of the job's steps: reported again when it ends
    ports: list[int] = field(default_factory=list)  # of the job, reached from outside of its network

    def mounts(self) -> list[root_fs.Mount]:
        """The mounts below the job's root."""
        return root_fs.mounts(self.base, self.scratch, self.image, [root_fs.Mount(**m) for m in self.extra])

    def build(self) -> None:
        """Put the job's tree together below `root`, its secrets in it, in a private mount namespace of the caller."""
        root_fs.build(self.root, self.mounts(), self.image)
        files = {name: base64.b64decode(value) for name, value in self.secrets.items()}
        mount_secrets(self.root + root_fs.SECRETS.target, files, self.uid, self.gid)


def enter_cgroups(files: list[str]) -> None:
    """Move the calling process into the cgroups with these `cgroup.procs` files."""
    for name in files:
        fd = os.open(name, os.O_WRONLY)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)


def start(plan: LaunchPlan, net: int, out: int, err: int) -> int:
    """Start the job's first process in namespaces of its own; returns its pid, a child of this (subreaper) process.

    `net` is the prepared network namespace, `out` and `err` the writing ends of its output. Raises OSError with the step that
    failed.
    """
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.close(read)
        guard(write, lambda: _middle(plan, net, (out, err), write))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read().decode(errors="replace").splitlines()
    os.waitpid(middle, 0)
    pid = next((int(line) for line in told if line.isdigit()), 0)
    failure = next((line for line in told if not line.isdigit()), "")
    if failure or not pid:
        raise OSError(0, failure or "the launcher ended without a word")
    return pid


def guard(tell: int, body: Callable[[], None]) -> NoReturn:
    """Run `body` in a forked child; a failure is one line through `tell`, and nothing returns into the parent's code."""
    try:
        body()
    except BaseException as e:
        where = f"{e.filename}: {e.strerror}" if isinstance(e, OSError) and e.filename else f"{type(e).__name__}: {e}"
        os.write(tell, f"{where}\n".encode())
    os._exit(FAILED)


def _middle(plan: LaunchPlan, net: int, streams: tuple[int, int], tell: int) -> NoReturn:
    enter_cgroups(plan.cgroups)
    syscalls.setns(net, syscalls.CLONE_NEWNET)
    syscalls.unshare(OWN)
    network.take_hostname(plan.host)
    pid = os.fork()  # the first one in the new namespaces; when we exit, the shim inherits it
    if pid == 0:
        guard(tell, lambda: _first(plan, streams, tell))
    os.write(tell, f"{pid}\n".encode())
    os._exit(0)


def _first(plan: LaunchPlan, streams: tuple[int, int], tell: int) -> None:
    os.setsid()
    syscalls.private_mounts()
    plan.build()
    root_fs.enter(plan.root)
    _descriptors(streams, tell)
    plain_signals()
    not_dearer_than_others()
    leave_room_for_criu()
    if plan.hides:  # a core file of the job would hold its secrets; it may ask for one itself
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    Privileges.of_user(plan.uid).take()
    syscalls.refuse_io_uring()
    os.umask(0o022)
    os.setgroups(plan.groups)
    os.setgid(plan.gid)
    os.setuid(plan.uid)
    os.chdir(plan.folder)
    os.execve(plan.argv[0], plan.argv, plan.environment)  # noqa: S606 -- exactly this program


def _descriptors(streams: tuple[int, int], tell: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)  # opened inside: CRIU looks its mount up in the job's own namespace
    for number, fd in enumerate((null, *streams)):
        os.dup2(fd, number)
    os.closerange(3, tell)
    os.closerange(tell + 1, 1 << 20)  # `tell` itself closes with the exec


def not_dearer_than_others() -> None:
    """Spare the job no more than others when memory runs out: the agent is spared, but a job does not inherit that."""
    score = Path("/proc/self/oom_score_adj")
    if int(score.read_text()) < 0:
        score.write_text("0")


def leave_room_for_criu() -> None:
    """Limit the job's descriptors, so that a restore finds numbers for its own above them.

    CRIU wants some forty (criu/servicefd.c) below a multiple of 128, and a root without SYS_RESOURCE can't raise its limit.
    Valgrind, for one, opens its own at the very top.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard -= DESCRIPTORS_OF_CRIU
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))


def plain_signals() -> None:
    """Default actions, nothing blocked. CRIU too needs this: it ends a helper of its own with SIGTERM."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue  # the C library keeps a few for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def owner_of(pid: int) -> tuple[int, int]:
    """Real user and group of a process."""
    with open(f"/proc/{pid}/status") as f:  # noqa: PTH123
        fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in f)}
    return int(fields["Uid"][0]), int(fields["Gid"][0])


def lends(uid: int) -> bool:
    """Whether `lend_identity` would do anything for this user."""
    return uid != 0 and not has_capability(SECOND_USER)


def lend_identity(uid: int, gid: int) -> None:
    """If root may not look at another user's resource limits (no CAP_SYS_RESOURCE, as in many containers): be that user too.

    The effective user stays root and keeps all rights; only the real one changes, and that is the one the kernel asks for here.
    """
    if not lends(uid):
        return
    os.setresgid(gid, 0, 0)
    os.setresuid(uid, 0, 0)
