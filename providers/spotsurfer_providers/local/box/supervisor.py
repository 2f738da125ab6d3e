"""The process that keeps one box: `python -m spotsurfer_providers.local.box.supervisor FOLDER`, with the folder's lock as fd 3.

It is the cloud of its box: it plays the scenario, serves metadata and objects, takes orders, and ends the box. It runs in a
session of its own and outlives its starter. If it dies, the kernel ends the box with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import syscalls

from spotsurfer.ports.clock import SystemClock
from spotsurfer_providers.local.box import metadata_aws, metadata_google, network, scenario, supervisor_client
from spotsurfer_providers.local.box.cgroups import BoxGroup, host_hierarchies
from spotsurfer_providers.local.box.records import BoxFolder, BoxRecord, BoxState, BoxStatus, Home, is_kept, job_and_attempt
from spotsurfer_providers.local.box.scenario import load
from spotsurfer_providers.local.box.start_stop import Box, start_box
from spotsurfer_providers.local.box.supervisor_client import LOCK_FD
from spotsurfer_providers.local.object_gateway.folder_store import Objects
from spotsurfer_providers.local.object_gateway.server import Gateway, Keys, Scope

# ---- Console: the output of a box, kept in its folder within bounds.

BYTES_MAX = 4 << 20
NAME = "console.log"


def copy_console(source: int, folder: Path) -> None:
    """Append everything from the pipe `source` to console.log until its end; at 4 MiB the file becomes console.log.1."""
    path = folder / NAME
    try:
        while data := os.read(source, 65536):
            if path.exists() and path.stat().st_size > BYTES_MAX:
                path.replace(folder / f"{NAME}.1")
            with path.open("ab") as file:
                file.write(data)
    except FileNotFoundError:
        return  # the folder was removed meanwhile
    finally:
        os.close(source)


# ---- Forwards: ports of the cloud's side that lead to Unix sockets of the host, for example to a registry.
# They use the box's own link, so a cut or slow link affects them, too.

PIECE_BYTES = 1 << 18


class Forward:
    """Relays connections until the process ends; an absent server means a refused connection, as anywhere."""

    def __init__(self, listening: socket.socket, path: str) -> None:
        self._listening, self._path = listening, path

    def serve_forever(self, poll_interval: float = 0.0) -> None:  # noqa: ARG002 - as the servers of the standard library
        """Take connections."""
        while True:
            client, _ = self._listening.accept()
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(self._path)
            except OSError:
                return
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


# ---- Supervisor

DIALECTS: Mapping[str, Callable[[BoxRecord, datetime], metadata_aws.Metadata | metadata_google.Metadata]] = {
    "aws": metadata_aws.metadata_of,
    "gcp": metadata_google.metadata_of,
}


@dataclass(frozen=True, slots=True)
class End:
    """Why a box ends."""

    reason: str
    reclaimed: bool = False


class Supervisor:
    """One box from its start to its end."""

    def __init__(self, folder: BoxFolder) -> None:
        self.folder = folder
        self.record = folder.record()
        self.home = Home(folder.path.parent.parent.parent)
        self.clock = SystemClock()
        self.box: Box | None = None
        self.objects: Objects | None = None
        self.metadata = DIALECTS[self.record.metadata_dialect](self.record, self.clock.now())
        self.end: End | None = None
        self.timers: list[tuple[float, Callable[[], None]]] = []  # monotonic seconds, what to do
        self.stop_read, self.stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        """Start the box, keep it, end it, and record its fate."""
        signal.set_wakeup_fd(self.stop_write)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is meant for the controller
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        control = supervisor_client.listen(self.folder.path)
        syscalls.unshare(syscalls.CLONE_NEWNET)
        group = BoxGroup(host_hierarchies(), self.home.group_name(self.record.id))
        end = End("failed to start")
        try:
            plot = load(Path(self.record.scenario) if self.record.scenario else None)
            hidden = [str(self.home.path.parent)] + ([self.record.store_root] if self.record.store_root else [])
            self.box = start_box(self.record, group, self.folder.path, hidden, self._serve)
            threading.Thread(target=copy_console, args=(self.box.console, self.folder.path), daemon=True).start()
            self._plan_fate(plot)
            self.folder.write_status(BoxStatus(BoxState.RUNNING, pid=self.box.pid))
            end = self._keep(control)
        except Exception as e:
            traceback.print_exc()
            end = End(f"failed: {e}")
        finally:
            self._finish(end)

    # ------------------------------------------------------------ services for the box

    def _serve(self, pid: int) -> None:
        listening = network.listening_socket(network.METADATA_ADDRESS, network.METADATA_PORT, netns_of=pid)
        _in_background(self.metadata.server(listening))
        for port, path in self.record.sockets.items():
            _in_background(Forward(network.listening_socket(network.CLOUD_ADDRESS, int(port)), path))
        whose = job_and_attempt(self.record.tags)
        if self.record.store_root is None or whose is None:
            return
        self.objects = Objects(Path(self.record.store_root), self.home.group_name(self.record.id))
        listening = network.listening_socket(network.CLOUD_ADDRESS, network.GATEWAY_PORT)
        buckets = {name: Objects(Path(folder), "box") for name, folder in self.record.buckets.items()}
        kept = is_kept(self.record.tags)
        scope = Keys(self.home.gateway_secret(), self.record.token) if kept else Scope(*whose)
        _in_background(Gateway(listening, self.objects, scope, buckets))

    # ------------------------------------------------------------ the scenario

    def _seconds(self) -> float:
        """Since the scenario's epoch."""
        now = self.clock.now()
        return (now - self.home.epoch(now)).total_seconds()

    def _plan_fate(self, plot: scenario.Scenario) -> None:
        fate = scenario.fate(plot, self.record.facts, self.record.notice_seconds)
        if fate is None:
            return
        offset = time.monotonic() - self._seconds()
        if fate.rebalance_seconds is not None:
            self.timers.append((offset + fate.rebalance_seconds, self.rebalance))
        notice = fate.gone_seconds - fate.notice_seconds
        self.timers.append((offset + fate.notice_seconds, lambda: self.reclaim(notice)))

    def rebalance(self) -> None:
        """Advise the box to move."""
        self.metadata.advise(self.clock.now())

    def reclaim(self, notice_seconds: float) -> None:
        """Warn the box and take it `notice_seconds` later; 0 = without a notice. A second order never gives more time."""
        self.home.note_reclaim(self.record.id, self._seconds())
        if notice_seconds <= 0:
            self.end = self.end or End("reclaimed without notice", reclaimed=True)
            return
        self.metadata.warn(self.clock.now() + timedelta(seconds=notice_seconds))
        self.timers.append((time.monotonic() + notice_seconds, self._take))

    def _take(self) -> None:
        self.end = self.end or End("reclaimed", reclaimed=True)

    # ------------------------------------------------------------ orders

    def order(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one order; raises KeyError, TypeError or ValueError for an invalid one."""
        name = what["order"]
        if name == "terminate":
            self.end = self.end or End("terminated")
        elif name == "reclaim":
            self.reclaim(float(what["notice_seconds"]))
        elif name == "rebalance":
            self.rebalance()
        elif name == "link":
            self._set_link(what)
        elif name == "metadata":
            self.metadata.change({str(k): str(v) for k, v in what["entries"].items()})
        elif name != "status":
            raise ValueError(f"no order {name!r}")
        action = self.metadata.action_at
        pid = self.box.pid if self.box else None
        return {"ok": True, "pid": pid, "supervisor": os.getpid(), "action_at": action.isoformat() if action else None}

    def _set_link(self, what: Mapping[str, Any]) -> None:
        if self.box is None:
            raise ValueError("the box has not started")
        if "up" in what:
            network.set_carrier(bool(what["up"]))
        else:
            rate = what["bits_per_second"]
            network.shape(self.box.pid, None if rate is None else int(rate))

    # ------------------------------------------------------------ the loop

    def _keep(self, control: socket.socket) -> End:
        assert self.box is not None
        alive = os.pidfd_open(self.box.pid)
        if self.folder.ordered_to_end():  # before we listened
            return End("terminated")
        while self.end is None:
            ready, _, _ = select.select([control.fileno(), alive, self.stop_read], [], [], self._wait_seconds())
            if alive in ready:
                return self._why_it_ended()
            if self.stop_read in ready and signal.SIGTERM in os.read(self.stop_read, 4096):
                return End("its supervisor was told to stop")
            if control.fileno() in ready:
                supervisor_client.answer(control, self.order)
            self._fire()
        return self.end

    def _why_it_ended(self) -> End:
        assert self.box is not None
        code = self.box.process.wait()
        # 0: SIGTERM to process 1. SIGINT, SIGHUP: the kernel's translation of reboot(2) in a pid namespace.
        return End("powered off" if code in (0, -signal.SIGINT, -signal.SIGHUP) else f"crashed ({code})")

    def _wait_seconds(self) -> float | None:
        return max(0.0, min(at for at, _ in self.timers) - time.monotonic()) if self.timers else None

    def _fire(self) -> None:
        now = time.monotonic()
        due = [t for t in self.timers if t[0] <= now]
        self.timers = [t for t in self.timers if t[0] > now]
        for _, do in sorted(due, key=lambda t: t[0]):
            do()

    def _finish(self, end: End) -> None:
        """Records each step before it happens: if we die in between, the cleanup knows."""
        self.folder.write_status(BoxStatus(BoxState.STOPPING, end.reason, end.reclaimed))
        if self.box is not None:
            self.box.kill()
        if self.objects is not None:
            self.objects.close()
        with contextlib.suppress(FileNotFoundError):
            (self.folder.path / supervisor_client.SOCKET).unlink()
        self.folder.write_status(BoxStatus(BoxState.ENDED, end.reason, end.reclaimed, self.clock.now().isoformat()))


def _in_background(server: ThreadingHTTPServer | Forward) -> None:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()


def main() -> None:
    """Keep the box whose folder is the argument."""
    os.set_inheritable(LOCK_FD, False)
    os.chdir("/")  # keeps no folder busy
    folder = BoxFolder(Path(sys.argv[1]))
    Supervisor(folder).run()
    os._exit(0)  # threads of open connections don't matter any more


if __name__ == "__main__":
    main()
