"""Process 1 of a box: makes its namespaces, runs user-data as a machine's first boot would, reaps, and ends on SIGTERM.

Its supervisor starts it in a fresh pid namespace and speaks to it over the socket in its argument: it sends `unshared`,
receives the description of the box, sends `up`, receives `run`. If the supervisor dies, the kernel kills this process (and
with it everything in the box); the end of the socket means the same, in case the supervisor died before we asked for that.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from spotsurfer_wire.linux import syscalls

from spotsurfer_providers.local.box import network, rootfs

USER_DATA_AT = Path("/run/spotsurfer-user-data")
POWERED_OFF = 0
FAILED = 1
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def main() -> int:
    """The life of process 1; its exit code."""
    syscalls.die_with_parent()
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    stop, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # a handler: process 1 gets no other signals from inside
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    try:
        _boot(line)
    except Exception as e:  # the supervisor must learn of every failure
        line.sendall(json.dumps({"failed": f"{type(e).__name__}: {e}"}).encode() + b"\n")
        return FAILED
    return _watch(line, stop)


def _boot(line: socket.socket) -> None:
    told = line.makefile("r", encoding="utf-8")
    line.sendall(b'"unshared"\n')
    how = json.loads(told.readline())
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)  # only now are we in the box's control group
    socket.sethostname(how["name"])
    network.set_up_box_end()
    rootfs.build(rootfs.View(**how["view"]))
    line.sendall(b'"up"\n')
    if json.loads(told.readline()) != "run":
        raise RuntimeError("the supervisor gave up")
    _start_user_data(how["user_data"])


def _start_user_data(text: str) -> None:
    USER_DATA_AT.write_text(text, encoding="utf-8")
    USER_DATA_AT.chmod(0o700)
    if not text.startswith("#!"):
        sys.stderr.write("user-data does not begin with #!, so it is not run\n")
        return
    try:
        subprocess.Popen([str(USER_DATA_AT)], stdin=subprocess.DEVNULL, env=_ENVIRONMENT, cwd="/", start_new_session=True)
    except OSError as e:
        sys.stderr.write(f"user-data can't be run: {e}\n")
    sys.stderr.flush()


def _watch(line: socket.socket, stop: int) -> int:
    """Reap until ordered to end, from inside (SIGTERM) or outside (the socket closes)."""
    while True:
        ready, _, _ = select.select([line.fileno(), stop], [], [])
        if line.fileno() in ready:
            return POWERED_OFF
        if signal.SIGTERM in os.read(stop, 4096):
            return POWERED_OFF
        _reap()


def _reap() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


if __name__ == "__main__":
    os._exit(main())  # nothing to clean up: the kernel ends the box with us
