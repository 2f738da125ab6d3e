"""Plain CRIU with image files, for the same process in the same box: what the engine is compared with."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent.criu import command
from spotsurfer_agent.host import network, root_fs, shim_protocol
from spotsurfer_agent.host.tools import Tools
from spotsurfer_wire.linux import syscalls

from bench.scenes import kit

FIRST_LINE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Plain:
    """A job that the shim holds, as CRIU needs to know it."""

    tools: Tools
    pid: int
    net: int
    pipes: dict[str, str]

    @staticmethod
    def here() -> Plain:
        """The job that runs on this machine."""
        told = shim_protocol.ask(kit.BASE / "job", "status")
        tools = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))
        return Plain(tools, told["root_pid"], told["net"], dict(told["pipes"]))


def fresh(images: Path) -> Path:
    """The folder, empty. Not on the clock: to remove gigabytes takes a second. What was removed is gone from the disk, too."""
    for folder in (images, _work(images)):
        shutil.rmtree(folder, ignore_errors=True)
    images.mkdir(parents=True)
    (_work(images) / "plugins").mkdir(parents=True)
    kit.settle()
    return images


def dump(images: Path, *, durable: bool = False) -> None:
    """`criu dump --leave-running` to files in a folder that `fresh` made; `durable`: and every file and folder synced."""
    job, work = Plain.here(), _work(images)
    outside = [x for m in _mounts(kit.BASE / "job/scratch") for x in ("--external", f"mnt[{m.target}]:{m.name}")]
    kit.run([
        *job.tools.criu, "dump", "--tree", str(job.pid), "--images-dir", str(images), "--work-dir", str(work),
        "--log-file", "dump.log", "--libdir", str(work / "plugins"), "--leave-running",
        "--external", f"net[{job.net}]:jobnet", *outside, *_common(),
    ])  # fmt: skip
    if durable:
        for path in (*images.iterdir(), images):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def keep_scratch(where: Path) -> None:
    """A copy of the job's files: CRIU wants them as they were."""
    shutil.rmtree(where, ignore_errors=True)
    kit.run(["cp", "-a", "--reflink=auto", str(kit.BASE / "job/scratch"), str(where)])


def restore(images: Path, scratch: Path, job: Plain) -> float:
    """`criu restore` from files, on a machine where the job does not run. Returns seconds from the order to its first line."""
    work, root = _work(images), kit.BASE / "job/root"
    (work / "pid").unlink(missing_ok=True)
    net, (read, write) = network.prepare(job.tools), os.pipe()
    quiet = os.open("/dev/null", os.O_WRONLY)
    mounts = _mounts(scratch)
    named = [x for m in mounts for x in ("--external", f"mnt[{m.name}]:{root}{m.target}")]
    streams = [x for fd, n in ((write, "out"), (quiet, "err")) for x in ("--inherit-fd", f"fd[{fd}]:{job.pipes[n]}")]
    argv = [
        *job.tools.criu, "restore", "--restore-detached", "--images-dir", str(images), "--work-dir", str(work),
        "--log-file", "restore.log", "--libdir", str(work / "plugins"), "--pidfile", str(work / "pid"), "--root", str(root),
        "--inherit-fd", f"fd[{net}]:jobnet", *streams, *named, *_common(),
    ]  # fmt: skip
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            _become(argv, mounts, str(root), (net, write, quiet))
        os._exit(127)
    _, status = os.waitpid(child, 0)
    os.close(write)
    assert status == 0, f"criu restore ended with {status}: {(work / 'restore.log').read_text()[-1500:]}"
    first = os.read(read, 1)  # everything is in by now: a plain restore lets nobody run before
    seconds = time.monotonic() - began
    assert first, "the restored job printed nothing"
    _end(int((work / "pid").read_text()))
    for fd in (read, net, quiet):
        os.close(fd)
    network.remove(job.tools)
    return seconds


def _become(argv: list[str], mounts: list[root_fs.Mount], root: str, fds: tuple[int, ...]) -> None:
    os.setsid()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.private_mounts()
    root_fs.build(root, mounts)
    for fd in fds:
        os.set_inheritable(fd, True)
    os.execvp(argv[0], argv)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _mounts(scratch: Path) -> list[root_fs.Mount]:
    return root_fs.mounts(str(kit.BASE), str(scratch))


def _common() -> list[str]:
    return [x for x in command.COMMON if not x.startswith("--stream")]


def _work(images: Path) -> Path:
    return images.with_name(images.name + ".work")
