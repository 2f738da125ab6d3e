"""The shim: one small process per job that outlives agents.

It is the parent of the job's first process and the reader of its output, so the agent can crash, restart or be upgraded while the
job runs on. It starts the job or CRIU's restore, keeps the exit status, runs CRIU's dumps and stands at their post-dump hook: the
tree is frozen there and CRIU waits for a verdict. Rules that it keeps even when no agent is left:

1. A live dump whose owner is gone or silent for some seconds ends: the job runs on, the save is void.
2. A final dump, once frozen, waits for its verdict for ever. The job never runs between its final entry and its death.
3. The end of the job is written down durably before anybody is told.

Single-threaded, standard library only, all imports at the top: its files may be replaced under it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_agent import hook, jobroot, launch, linux, netns, shimwire, spool
from spotsurfer_agent.cgroup import JobCgroup
from spotsurfer_agent.shimwire import VERSION
from spotsurfer_agent.tools import Tools

IDLE, STARTING, RUNNING, EXITED = "idle", "starting", "running", "exited"
CRIU_END_SECONDS = 10.0
RETRY_SECONDS = 1.0
Reply = dict[str, Any]


class Refused(Exception):
    """The request can't be met now; the sentence goes back to who asked."""


@dataclass(eq=False, slots=True)
class Client:
    """One connection."""

    socket: socket.socket
    rest: bytes = b""


@dataclass(slots=True)
class Dump:
    """A running `criu dump`."""

    checkpoint: str
    final: bool
    pid: int
    owner: Client | None
    verdict_seconds: float
    seized_at: float  # monotonic; from before the first process is stopped
    frozen_at: float | None = None
    verdict: bool | None = None
    resumed_at: float | None = None
    log: dict[str, int] = field(default_factory=dict)


class Shim:
    """The job of one base folder."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "job"
        self.phase = IDLE
        self.exit_code: int | None = None
        self.root_pid, self.cpu_baseline, self.held, self.killed = 0, 0.0, False, False
        self.spools: dict[str, spool.Spool] = {}
        self.net = -1
        self.cgroup: JobCgroup | None = None
        self.tools: Tools | None = None
        self.dump: Dump | None = None
        self.restoring: tuple[int, Client | None, str] | None = None  # pid of criu, who waits, pid file
        self.selector = selectors.DefaultSelector()
        self.clients: set[Client] = set()
        self.orphans: dict[int, int] = {}  # exit statuses seen while a restore goes on
        self.quitting = False
        self.stuck_until = 0.0  # the disk took no more output: try again then
        self.verbs: dict[str, Callable[[Client, dict[str, Any]], Reply | None]] = {
            "hello": lambda _c, _r: {"version": VERSION, "pid": os.getpid()},
            "status": lambda _c, _r: self.status(),
            "start": self.start,
            "restore": self.restore,
            "dump": self.begin_dump,
            "verdict": self.give_verdict,
            "hold": lambda _c, _r: self.hold(),
            "release": lambda _c, _r: self.release(),
            "kill": lambda _c, _r: self.kill(),
        }

    # ------------------------------------------------------------ loop

    def run(self) -> None:
        """Serve until told to go."""
        listener = shimwire.listen(self.folder / shimwire.SOCKET)
        self.gate = hook.Gate(self.folder)
        wake, woken = os.pipe()
        for fd in (wake, woken):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self.selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        self.selector.register(wake, selectors.EVENT_READ, lambda: self._reap(wake))
        self.selector.register(self.gate.asks, selectors.EVENT_READ, self._hook)
        while not self.quitting:
            for key, _ in self.selector.select(self._pause_seconds()):
                key.data()
            self._timers()

    def _pause_seconds(self) -> float | None:
        d = self.dump
        if d is not None and (d.frozen_at is not None and not d.final or d.verdict is not None):
            return 0.1
        return RETRY_SECONDS if self.stuck_until else None

    def _timers(self) -> None:
        now, d = time.monotonic(), self.dump
        if self.stuck_until and now > self.stuck_until:
            self.stuck_until = 0.0
            for s in self.spools.values():
                self._listen_to(s)
        if (
            d is not None
            and d.frozen_at is not None
            and not d.final
            and d.verdict is None
            and now > d.frozen_at + d.verdict_seconds
        ):
            self._answer_hook(False)
        if d is not None and d.resumed_at is not None and now > d.resumed_at + CRIU_END_SECONDS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(d.pid, signal.SIGKILL)

    def _accept(self, listener: socket.socket) -> None:
        s, _ = listener.accept()
        s.setblocking(False)
        client = Client(s)
        self.clients.add(client)
        self.selector.register(s, selectors.EVENT_READ, lambda: self._readable(client))

    def _readable(self, client: Client) -> None:
        try:
            data = client.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.rest += data
        if not data or len(client.rest) > shimwire.LINE_BYTES:
            self._drop(client)
            return
        while b"\n" in client.rest:
            line, _, client.rest = client.rest.partition(b"\n")
            self._request(client, line)

    def _drop(self, client: Client) -> None:
        if client not in self.clients:
            return
        self.clients.discard(client)
        self.selector.unregister(client.socket)
        client.socket.close()
        d = self.dump
        if d is not None and d.owner is client:
            d.owner = None
            if not d.final and d.frozen_at is not None and d.verdict is None:
                self._answer_hook(False)
        if self.restoring is not None and self.restoring[1] is client:
            self.restoring = (self.restoring[0], None, self.restoring[2])

    def _request(self, client: Client, line: bytes) -> None:
        try:
            request = json.loads(line)
            verb = self.verbs.get(request.get("verb"))
            if verb is None:
                raise Refused(f"this shim (version {VERSION}) does not know {request.get('verb')!r}")
            reply = verb(client, request)
        except Refused as e:
            reply = {"ok": False, "error": str(e)}
        except (OSError, ValueError, KeyError, TypeError) as e:
            reply = {"ok": False, "error": f"{type(e).__name__}: {e}"}
        if reply is not None:
            self._send(client, reply)

    def _send(self, client: Client | None, reply: Reply) -> None:
        if client is None or client not in self.clients:
            return
        try:
            client.socket.setblocking(True)
            client.socket.settimeout(2.0)
            client.socket.sendall(json.dumps({"ok": True, **reply}).encode() + b"\n")
            client.socket.setblocking(False)
        except OSError:
            self._drop(client)

    # ------------------------------------------------------------ verbs

    def status(self) -> Reply:
        """What there is to know."""
        d = self.dump
        pending = d is not None and d.final and d.frozen_at is not None and d.verdict is None
        return {
            "version": VERSION,
            "phase": self.phase,
            "exit_code": self.exit_code,
            "held": self.held,
            "root_pid": self.root_pid,
            "log": {name: s.position for name, s in self.spools.items()},
            "pipes": {name: s.name for name, s in self.spools.items()},
            "net": os.fstat(self.net).st_ino if self.net >= 0 else 0,
            "cpu_baseline": self.cpu_baseline,
            "dumping": d.checkpoint if d is not None else None,
            "pending_final": d.checkpoint if d is not None and pending else None,
        }

    def start(self, _client: Client, request: dict[str, Any]) -> Reply:
        """Start the command from the beginning."""
        plan = self._prepare(request)
        try:
            self.root_pid = launch.start(plan, self.net, self.spools["out"].write_fd, self.spools["err"].write_fd)
        except OSError as e:
            self._abandon()
            raise Refused(e.strerror or str(e)) from e
        self._running()
        return {"root_pid": self.root_pid}

    def restore(self, client: Client, request: dict[str, Any]) -> None:
        """Run `criu restore`; the answer comes when it ended."""
        plan = self._prepare(request)
        fill = {"{net}": str(self.net), "{out}": str(self.spools["out"].write_fd), "{err}": str(self.spools["err"].write_fd)}
        inherit = (self.net, self.spools["out"].write_fd, self.spools["err"].write_fd)

        def enter() -> None:
            launch.enter_cgroups(plan.cgroups)
            linux.private_mounts()
            jobroot.build(plan.root, jobroot.mounts(plan.base, plan.scratch))
            for fd in inherit:
                os.set_inheritable(fd, True)

        self.gate.begin(final=False)
        pid = self._criu([_fill(x, fill) for x in request["argv"]], enter)
        self.restoring = (pid, client, str(request["pidfile"]))

    def _prepare(self, request: dict[str, Any]) -> launch.LaunchPlan:
        if self.phase != IDLE:
            raise Refused(f"the job is {self.phase} here already")
        plan = launch.LaunchPlan.from_json(request["plan"])
        self.tools = Tools.from_json(request["tools"])
        self.cgroup = JobCgroup(dict(request["cgroup"]))
        self.phase = STARTING
        try:
            self.net = netns.prepare(self.tools)
            self.spools = {n: spool.Spool(self.folder / "log", n, int(request["log"].get(n, 0))) for n in spool.NAMES}
        except OSError:
            self._abandon()
            raise
        shimwire.write_durably(self.folder / shimwire.STARTED, {"pid": os.getpid()})
        return plan

    def _running(self) -> None:
        self.phase = RUNNING
        for s in self.spools.values():
            s.close_writer()
            self._listen_to(s)

    def _abandon(self) -> None:
        """Back to nothing after a start or restore that failed."""
        if self.cgroup is not None:
            self.cgroup.kill()
        for s in self.spools.values():
            s.close()
        if self.net >= 0:
            os.close(self.net)
        self.net, self.spools, self.root_pid, self.phase = -1, {}, 0, IDLE
        (self.folder / shimwire.STARTED).unlink(missing_ok=True)

    def hold(self) -> Reply:
        """Stop the job; while CRIU works on it, as soon as CRIU lets go."""
        self.held = True
        if self.dump is None and self.phase == RUNNING and self.cgroup is not None:
            self.cgroup.freeze()
        return {}

    def release(self) -> Reply:
        """Undo `hold`. A final dump keeps its own grip."""
        self.held = False
        if self.dump is None and self.cgroup is not None:
            self.cgroup.thaw()
        return {}

    def kill(self) -> Reply:
        """Kill everything of the job, whatever is going on, and then end."""
        self.killed = True
        gone = self._kill_tree()
        for pid in [x for x in (self.dump and self.dump.pid, self.restoring and self.restoring[0]) if x]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        gone = self._kill_tree() and gone
        if not gone:
            raise Refused("some processes of the job can't be killed: they hang in the kernel")
        self.quitting = True
        if self.tools is not None:
            netns.remove(self.tools)
        return {}

    def _kill_tree(self) -> bool:
        return self.cgroup is None or self.cgroup.kill()

    # ------------------------------------------------------------ dumps

    def begin_dump(self, client: Client, request: dict[str, Any]) -> None:
        """Run `criu dump`; the answer comes when the tree is frozen and written, or CRIU failed."""
        if self.phase != RUNNING:
            raise Refused(f"the job is {self.phase}")
        if self.held:
            raise Refused("the job is held still")
        if self.dump is not None:
            raise Refused(f"the save {self.dump.checkpoint} is under way")
        fill = {"{pid}": str(self.root_pid), "{net}": str(self.status()["net"])}
        self.gate.begin(final=bool(request["final"]))
        entries = [str(x) for x in request["cgroups"]]
        pid = self._criu([_fill(x, fill) for x in request["argv"]], lambda: launch.enter_cgroups(entries))
        self.dump = Dump(
            str(request["checkpoint"]), bool(request["final"]), pid, client, float(request["verdict_seconds"]), time.monotonic()
        )

    def give_verdict(self, client: Client, request: dict[str, Any]) -> Reply | None:
        """Live: go on, the snapshot was taken (or not). Final: die, the image is committed (or live)."""
        d = self.dump
        if d is None or d.frozen_at is None or d.verdict is not None or d.checkpoint != request["checkpoint"]:
            raise Refused("no save waits for this verdict")
        d.owner = client
        self._answer_hook(bool(request["good"]))
        return None

    def _hook(self) -> None:
        for action in self.gate.asked():
            if action == "pre-resume" and self.cgroup is not None:
                self.cpu_baseline = self.cgroup.cpu_seconds()  # so far it was CRIU that worked
                self.gate.answer(True)
            elif action == "pre-dump" and self.dump is not None:
                self.dump.seized_at = time.monotonic()
            elif action == "post-dump" and self.dump is not None:
                try:
                    self._frozen(self.dump)
                except OSError:
                    self._answer_hook(False)

    def _frozen(self, d: Dump) -> None:
        d.frozen_at = time.monotonic()
        if not self._drain_all():
            self._answer_hook(False)  # the output of before the freeze can't be kept: the image would lose it
            return
        d.log = {name: s.position for name, s in self.spools.items()}
        if d.final and self.cgroup is not None:
            self.cgroup.freeze()  # so that the job stands still even if CRIU dies now
        if d.owner is None and not d.final:
            self._answer_hook(False)
            return
        self._send(d.owner, {"log": d.log, "frozen_for_seconds": d.frozen_at - d.seized_at})

    def _answer_hook(self, good: bool) -> None:
        d = self.dump
        assert d is not None
        d.verdict, d.resumed_at = good, time.monotonic()
        if d.final and good:
            self.killed = True
            self._kill_tree()
        else:
            self._settle_freezer()
        self.gate.answer(good)

    def _dump_ended(self, code: int) -> None:
        d = self.dump
        assert d is not None
        self.dump, now = None, time.monotonic()
        if not (d.final and d.verdict):
            self._settle_freezer()
        took = now - d.seized_at
        if d.verdict and (d.final or code == 0):
            self._send(d.owner, {"frozen_seconds": took})
        elif d.verdict is False and d.owner is not None and d.frozen_at is not None:
            self._send(d.owner, {"frozen_seconds": took, "void": True})
        else:
            self._send(d.owner, {"ok": False, "error": f"criu dump ended with {code}"})

    def _settle_freezer(self) -> None:
        """Frozen if it is to be held, else not."""
        if self.cgroup is not None and self.phase == RUNNING:
            with contextlib.suppress(OSError):
                (self.cgroup.freeze if self.held else self.cgroup.thaw)()

    # ------------------------------------------------------------ children

    def _criu(self, argv: list[str], enter: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        err = os.open(self.folder / "criu.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        null = os.open("/dev/null", os.O_RDONLY)

        def body() -> None:
            os.setsid()
            enter()
            for target, fd in enumerate((null, err, err)):
                os.dup2(fd, target)
            signal.set_wakeup_fd(-1)
            launch.plain_signals()
            os.execvp(argv[0], argv)  # noqa: S606 -- the agent's own CRIU

        launch.guard(err, body)

    def _reap(self, wake: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._child_ended(pid, os.waitstatus_to_exitcode(status))

    def _child_ended(self, pid: int, code: int) -> None:
        if self.dump is not None and pid == self.dump.pid:
            self._dump_ended(code)
        elif self.restoring is not None and pid == self.restoring[0]:
            self._restore_ended(code)
        elif self.restoring is not None:
            self.orphans[pid] = code
        elif pid == self.root_pid and self.phase == RUNNING:
            self._exited(code)

    def _restore_ended(self, code: int) -> None:
        assert self.restoring is not None
        _, client, pidfile = self.restoring
        self.restoring = None
        with contextlib.suppress(OSError, ValueError):
            self.root_pid = int(Path(pidfile).read_text()) if code == 0 else 0
        if not self.root_pid:
            self._abandon()
            self._send(client, {"ok": False, "error": f"criu restore ended with {code}"})
            return
        self._running()
        self._send(client, {"root_pid": self.root_pid})
        if self.root_pid in self.orphans:
            self._exited(self.orphans[self.root_pid])

    def _exited(self, code: int) -> None:
        for s in self.spools.values():
            s.close_writer()
        self._drain_all()
        self.phase, self.exit_code = EXITED, code if code >= 0 else 128 - code
        if self.killed:
            self.phase, self.exit_code = IDLE, None  # its death was ours: no exit of the command
            return
        log = {name: s.position for name, s in self.spools.items()}
        shimwire.write_durably(self.folder / shimwire.EXIT, {"exit_code": self.exit_code, "log": log})

    # ------------------------------------------------------------ output

    def _listen_to(self, s: spool.Spool) -> None:
        if not s.ended and s.read_fd not in self.selector.get_map():
            self.selector.register(s.read_fd, selectors.EVENT_READ, lambda: self._output(s))

    def _output(self, s: spool.Spool) -> None:
        try:
            s.drain()
        except OSError:
            self.stuck_until = time.monotonic() + RETRY_SECONDS  # disk full: the job waits at its pipe, nothing is lost
        if s.ended or self.stuck_until:
            self.selector.unregister(s.read_fd)

    def _drain_all(self) -> bool:
        try:
            for s in self.spools.values():
                s.drain()
        except OSError:
            return False
        return True


def _fill(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def main(argv: list[str]) -> None:
    """`python -m spotsurfer_agent.shim BASE`."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its job, not with its starter
    os.umask(0o077)
    linux.become_subreaper()
    Shim(Path(argv[1])).run()


if __name__ == "__main__":
    main(sys.argv)
