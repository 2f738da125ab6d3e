"""How CRIU is called: every flag with its reason, and its errors as sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.host.root_fs import Mount

GHOST_MEGABYTES = 512  # on a disk, of a deleted file in use; CRIU's default of 1 MiB is too small

COMMON = (
    "--manage-cgroups=ignore",  # the agent puts the tree into the job's control group
    "--tcp-established",  # connections inside the job's own network survive …
    "--skip-in-flight",  # … except one that nobody has accepted yet: its client gets an error, see `linux.sockets`
    "--network-lock", "nftables",  # … and nothing is delivered there while their queues are read
    "--file-locks",
    "--ext-unix-sk",
    "--link-remap",
    "--ghost-limit", f"{GHOST_MEGABYTES}M",
    "--force-irmap",
    "--cpu-cap=none",  # the agent compares beforehand: CRIU's own check demands equal machines
    "-v4",
)  # fmt: skip
NET = "jobnet"
FREEZE_SECONDS = 60


def dump(
    criu: tuple[str, ...], where: tuple[Path, Path, Path], mounts: Iterable[Mount], *, final: bool, frozen: str = ""
) -> list[str]:
    """Arguments of a dump; {pid} and {net} are filled in by the shim.

    `where`: folders of the images, of CRIU's own files, and of the job. `frozen`: a frozen control group that holds the whole
    tree, and that must be frozen again when CRIU lets go.
    """
    images, work, folder = where
    outside = [x for m in mounts for x in ("--external", f"mnt[{m.target}]:{m.name}")]
    return [
        *criu, "dump", "--stream", "--tree", "{pid}", "--images-dir", str(images), "--work-dir", str(work),
        "--log-file", "dump.log", "--libdir", str(work / "plugins"), "--action-script", str(folder / shim_protocol.HOOK),
        "--timeout", str(FREEZE_SECONDS),
        "--external", f"net[{{net}}]:{NET}", *outside, *COMMON, *(["--leave-running"] if not final else []),
        *(["--freeze-cgroup", frozen] if frozen else []),
    ]  # fmt: skip


def restore(
    criu: tuple[str, ...], where: tuple[Path, Path, Path], inside: tuple[list[Mount], dict[str, str]], *, lazy: bool
) -> list[str]:
    """Arguments of a restore; {net}, {out} and {err} are descriptors that the shim fills in.

    `where`: folders of the image server, of CRIU's own files (with the server of faults), and of the job, with hook and root;
    `inside`: its mounts and the names that the image has for its output pipes.
    """
    images, work, folder = where
    mounts, pipes = inside
    root, hook = folder / "root", folder / shim_protocol.HOOK
    named = [x for m in mounts for x in ("--external", f"mnt[{m.name}]:{root}{m.target}")]
    streams = [x for name, pipe in pipes.items() for x in ("--inherit-fd", f"fd[{{{name}}}]:{pipe}")]
    return [
        *criu, "restore", "--restore-detached", "--images-dir", str(images), "--work-dir", str(work),
        "--log-file", "restore.log", "--libdir", str(work / "plugins"), "--action-script", str(hook),
        "--pidfile", str(work / "pid"), "--root", str(root),
        "--inherit-fd", f"fd[{{net}}]:{NET}", *streams, *named, *COMMON, "--stream",
        *(["--lazy-pages"] if lazy else []),
    ]  # fmt: skip


# Pattern of CRIU's error -> the sentence for the user. The first that matches an error line counts.
SENTENCES = (
    (r"io_uring", "the job uses io_uring, which can't be saved"),
    (r"No space left", "the machine's disk is full"),
    (
        r"Unable to map|Unable to remap|an't map|an't remap|mmap.*Cannot allocate",
        "the kernel refused a mapping of the job's memory: compare vm.overcommit_memory and vm.max_map_count with the machine "
        "that it comes from",
    ),
    (r"Cannot allocate memory|Out of memory", "the kernel refused CRIU something for which there is memory"),
    (r"has bad size (\d+) \(expect (\d+)\)", r"a file outside the job's folder changed its size: \1 bytes, \2 expected"),
    (r"File (\S+) has bad build-ID", r"the program file \1 is another version here"),
    (r"Can't lookup mount=\S+ for fd=(-?\d+) path=(\S+)", r"the job holds \2 open, which lies on a mount that it does not own"),
    (r"Can't open file (\S+)", r"the file \1 is not there"),
    (r"Can't fork for (\d+): File exists", r"process number \1 is taken already"),
    (
        r"Unseizable non-zombie (\d+) found, state D",
        r"process \1 can't be stopped: it waits in the kernel, for a child that it started by vfork or for a file system",
    ),
    (
        r"Unseizable non-zombie (\d+) found",
        r"process \1 can't be stopped: a debugger or tracer holds it, or this machine forbids it",
    ),
    (r"Can't make VM id for (\d+)", r"process \1 shares its memory with another one (clone with CLONE_VM, vfork)"),
    (r"Can't make FS id for (\d+)", r"process \1 shares its working folder with another one (clone with CLONE_FS)"),
    (r"Can't make IO id for (\d+)", r"process \1 shares its signal handlers with another one (clone with CLONE_SIGHAND)"),
    (
        r"Can't get rlimit \d+: Operation not permitted",
        "the job has processes of several users, and this machine's root lacks CAP_SYS_RESOURCE, which saving both takes",
    ),
    (r"ctty inheritance detected", "a process holds its terminal open as /dev/tty, and others have that terminal, too"),
    (r"Can't find a session leader for (\d+)", r"session \1 has no leader any more, and a subreaper took its processes in"),
    (r"pending SIGTRAP", "a process blocks a SIGTRAP that was sent to it, which saving needs itself"),
    (r"corked dgram socket", "a process has begun a datagram and not sent it yet (UDP_CORK)"),
    (r"Can't dump that handle", "the job watches a file (inotify) that was deleted and is still open"),
    (r"tracer|Can't seize|ptrace", "a debugger or tracer is attached to the job"),
    (
        r"Can't dump (ghost|unlinked) file.* of (\d+) size",
        r"a deleted file of \2 bytes is still open, more than can be carried",
    ),
    (
        r"Non-empty write queue on an in-flight socket|Found a closed in-flight socket",
        "something was written over a Unix socket to a program that has not accepted the connection yet",
    ),
    (r"unix: .*external", "the job talks over a Unix socket to a program outside of it"),
    (r"Unsupported|not supported|Can't dump", "the job uses something that can't be saved"),
)

ERROR = re.compile(r"\(\d+\.\d+\)\s+(\w+: )*Error")
HARMLESS = re.compile(r"RLIMIT_NOFILE")  # CRIU goes on without it

LEFTOVER = re.compile(r"Can't link remap to .*: File exists")


def is_leftover(log: Path) -> bool:
    """Whether a dump failed only because of a helper name that a killed CRIU left among the job's files."""
    try:
        return LEFTOVER.search(log.read_text(errors="replace")) is not None
    except OSError:
        return False


# The kernel's words for a lack of memory, and the shim's words if it ended CRIU for that.
NO_MEMORY = re.compile(r"Cannot allocate memory|Out of memory")
KILLED = re.compile(r"ended with -9\b")


def sentence(log: Path, fallback: str, short: str = "") -> str:
    """CRIU's first error as a sentence, followed by its own words.

    `short`: the sentence for a lack of memory; "" = the machine has enough, so the error itself is reported.
    """
    try:
        lines = [x for x in log.read_text(errors="replace").splitlines() if ERROR.match(x) and not HARMLESS.search(x)]
    except OSError:
        lines = []
    if not lines:
        return short if short and KILLED.search(fallback) else fallback
    raw = re.sub(r"^\(\d+\.\d+\)\s+", "", lines[0]).strip()
    if short and any(NO_MEMORY.search(line) for line in lines):
        return f"{short} (CRIU: {raw})"
    for pattern, text in SENTENCES:
        for line in lines:
            if found := re.search(pattern, line):
                return f"{found.expand(text)} (CRIU: {raw})"
    return f"CRIU could not do it: {raw}"
