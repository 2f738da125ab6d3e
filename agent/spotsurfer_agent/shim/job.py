"""The job as its shim holds it: start, freeze, network, exit.

The shim is the parent of the job's first process and the reader of its output, so the agent can crash, restart or be upgraded
while the job runs on. It starts the job or CRIU's restore, keeps the exit status, runs CRIU's dumps and stands at their
post-dump hook: the tree is frozen there and CRIU waits for a verdict. Rules that hold even when no agent is left:

1. A live dump ends if its owner is gone or silent for some seconds: the job runs on, the save is void.
2. A final dump, once frozen, waits for its verdict for ever. The job never runs between its final entry and its death.
3. The end of the job is written down durably before it is reported to anybody.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import syscalls

from spotsurfer_agent.criu import datagrams, interrupted_calls, process_numbers, terminals, thread_attributes
from spotsurfer_agent.criu.interrupted_calls import Wait
from spotsurfer_agent.host import launch, network, shim_protocol
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.network import JobNetwork
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.linux import sockets
from spotsurfer_agent.restore import pager_process as pager
from spotsurfer_agent.shim import criu_runs
from spotsurfer_agent.shim.criu_runs import Dump, Owner, Refused, Restore
from spotsurfer_agent.shim.oom_guard import Guard
from spotsurfer_agent.shim.output import Output

RETRY_SECONDS = 1.0  # until the disk is asked again to take the end of the command
IDLE, STARTING, RUNNING, EXITED, LOST = "idle", "starting", "running", "exited", "lost"
Reply = dict[str, Any]
Request = dict[str, Any]


class Job:
    """One job. `send` answers an owner, `watch` and `unwatch` tie a descriptor to a call."""

    def __init__(
        self,
        folder: Path,
        send: Callable[[Owner, Reply], None],
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
    ) -> None:
        self._folder, self._send = folder, send
        self._phase, self._firm = IDLE, False
        self._root_pid, self._cpu_baseline, self._held, self._stays, self._killed, self._step = 0, 0.0, False, False, False, 0
        self._output = Output(watch, unwatch, self._write_exit)
        self._exit_code: int | None = None  # of the command: it counts once it is on disk, after all that was printed
        self._retry_at: float | None = None  # the disk did not take it: try again then
        self._net = JobNetwork()
        self._cgroup: JobCgroup | None = None
        self._guard, self._levels, self._freezes = Guard(watch, unwatch, self._settle), None, True
        self._dump: Dump | None = None
        self._restore: Restore | None = None
        self._broken: list[Wait] = []  # calls that the freeze broke off: made once more when the job runs again
        self.over, self._gate = False, criu_runs.FreezeHook(folder)
        watch(self._gate.asks, self._hook)
        self.verbs: dict[str, Callable[[Owner, Request], Reply | None]] = {
            "hello": lambda _o, _r: {"version": shim_protocol.VERSION, "pid": os.getpid()},
            "status": lambda _o, _r: self.status(),
            "start": self.start,
            "restore": self.restore,
            "dump": self.begin_dump,
            "alive": lambda _o, r: self._waiting(r).heard(),
            "verdict": self.give_verdict,
            "give_up": self.give_up,
            "end_restore": self.end_restore,
            "hold": lambda _o, _r: self.hold(),
            "release": lambda _o, _r: self.release(),
            "stay": lambda _o, r: self.stay(bool(r["on"]), firm=bool(r.get("firm"))),
            "lead": lambda o, _r: self._guard.lead(o),
            "guard": lambda _o, r: self.guard(r),
            "unguard": lambda _o, _r: self.unguard(),
            "kill": lambda _o, _r: self.kill(),
        }

    @property
    def idle(self) -> bool:
        """Nothing was asked of it yet, or all is over."""
        return self._phase == IDLE

    # ------------------------------------------------------------ verbs

    def status(self) -> Reply:
        """The state of the job, for a client."""
        d = self._dump
        pending = d if d is not None and d.final and d.waits else None
        return {
            "version": shim_protocol.VERSION,
            "phase": self._phase,
            "exit_code": self._exit_code,
            "step": self._step,
            "held": self._held,
            "stays": self._firm,
            "pressed": self._guard.pressed,
            "root_pid": self._root_pid,
            "log": self._output.positions(),
            "pipes": self._output.names,
            "net": self._net.number,
            "cpu_baseline": self._cpu_baseline,
            "dumping": d.checkpoint if d is not None else None,
            "pending_final": pending.checkpoint if pending is not None else None,
            "pending_seconds": time.monotonic() - pending.seized_at if pending is not None else 0.0,
        }

    def start(self, _owner: Owner, request: Request) -> Reply:
        """Start the command from the beginning; `used` seconds of processor count as its own already."""
        plan = self._prepare(request)
        try:
            self._output.give(plan.uid, plan.gid)
            self._root_pid = launch.start(plan, self._net.fd, *self._output.ends.values())
        except OSError as e:
            self._abandon()
            raise Refused(e.strerror or str(e)) from e
        self._running()
        return {"root_pid": self._root_pid}

    def restore(self, owner: Owner, request: Request) -> None:
        """Run `criu restore`; the answer comes when it ended."""
        plan = self._prepare(request, hushed=True)
        inherit = {"net": self._net.fd, **self._output.ends}

        def enter() -> None:
            launch.enter_cgroups(plan.cgroups)
            syscalls.private_mounts()
            plan.build()
            for fd in inherit.values():
                os.set_inheritable(fd, True)

        pid = self._criu(request, inherit, enter, final=False)
        stays = tuple(str(x) for x in request.get("stays", ()))
        self._restore = Restore(pid, owner, Path(request["pidfile"]), bool(request.get("whole")), stays)

    def _prepare(self, request: Request, *, hushed: bool = False) -> launch.LaunchPlan:
        if self._phase != IDLE:
            raise Refused(f"the job is {self._phase} here already")
        plan = launch.LaunchPlan(**request["plan"])
        self._cgroup, self._step = JobCgroup(dict(request["cgroup"])), plan.step
        self._cpu_baseline = self._cgroup.cpu_seconds() - float(request.get("used", 0.0))
        self._limit_memory(request)
        self._phase = STARTING
        try:
            self._net.make(Tools.from_json(request["tools"]), plan.ports, hushed=hushed)
            self._output.open(self._folder / "log", request["log"])
            shim_protocol.write_durably(self._folder / shim_protocol.STARTED, {"pid": os.getpid()})
        except OSError:
            self._abandon()
            raise
        return plan

    def _running(self) -> None:
        self._phase = RUNNING
        self._output.listen()
        self._settle_freezer()  # it may have been told to hold meanwhile
        self._guard.begin(self._cgroup, self._levels, freezes=self._freezes)

    def _limit_memory(self, request: Request) -> None:
        self._levels, self._freezes = request.get("guard"), bool(request.get("freezes", True))

    def _abandon(self) -> None:
        """Back to nothing after a start or restore that failed."""
        self._kill_tree()
        self._output.close()
        self._net.close()
        self._root_pid, self._phase = 0, IDLE
        (self._folder / shim_protocol.STARTED).unlink(missing_ok=True)

    def hold(self) -> Reply:
        """Stop the job; while CRIU works on it, as soon as CRIU lets go."""
        self._held = not self.idle  # nothing is here that could run
        if self._dump is None and self._phase == RUNNING and self._cgroup is not None:
            self._cgroup.freeze()
        return {}

    def release(self) -> Reply:
        """Undo `hold`. A dump keeps its own grip."""
        self._held = False
        return self._settle()

    def guard(self, request: Request) -> Reply:
        """Other levels hold from now on: the job has another part of the machine's memory. One that is pressed stays so."""
        self._limit_memory(request)
        if self._phase == RUNNING and self._guard.pressed is None:
            self._guard.begin(self._cgroup, self._levels, freezes=self._freezes)
        return {}

    def unguard(self) -> Reply:
        """Let a job go on that can't be saved: what its memory does is the kernel's business from now on."""
        self._guard.end()
        return self._settle()

    def _settle(self) -> Reply:
        if self._dump is None:
            self._settle_freezer()
        return {}

    def stay(self, on: bool, *, firm: bool = False) -> Reply:
        """Stand still until told otherwise, after a dump too: others hold its threads. Answers whether `hold` keeps it so.

        `firm`: not even for the moment in which CRIU lets go of it.
        """
        self._stays, self._firm = on, on and firm
        return {**self._settle(), "held": self._held}

    def kill(self) -> Reply:
        """Kill everything of the job, whatever is going on, and then end."""
        self._killed = True
        self._kill_tree()
        for running in (self._dump, self._restore):
            criu_runs.end(running.pid if running is not None else 0)
        if not self._kill_tree():
            raise Refused("some processes of the job can't be killed: they hang in the kernel")
        self.over = True
        return {}

    def _kill_tree(self) -> bool:
        self._guard.end()
        return self._cgroup is None or self._cgroup.kill()

    def owner_gone(self, owner: Owner) -> None:
        """A connection broke: nobody will finish what its owner began."""
        d, r = self._dump, self._restore
        if d is not None and d.owner is owner:
            d.owner = None
            if d.waits and not d.final:
                self._answer_hook(d, False)
        if r is not None and r.owner is owner:
            r.owner = None
        self._guard.left(owner)

    # ------------------------------------------------------------ dumps

    def begin_dump(self, owner: Owner, request: Request) -> None:
        """Run `criu dump`; the answer comes when the tree is frozen and written, or CRIU failed."""
        if self._phase != RUNNING:
            raise Refused(f"the job is {self._phase}")
        if self._held:
            raise Refused("the job is held still")
        if self._dump is not None:
            raise Refused(f"the save {self._dump.checkpoint} is under way")
        entries, final = [str(x) for x in request["cgroups"]], bool(request["final"])
        fill = {"pid": self._root_pid, "net": self._net.number}
        uid, gid = launch.owner_of(self._root_pid)

        def enter() -> None:
            launch.enter_cgroups(entries)
            launch.lend_identity(uid, gid)

        self._gate.open_to(uid, gid)
        if hushed := launch.lends(uid):  # nft refuses a user that is root only in effect
            self._net.hush()
            request = criu_runs.without_lock(request)
        pid = self._criu(request, fill, enter, final=final)
        name, seconds = str(request["checkpoint"]), float(request["verdict_seconds"])
        self._dump = Dump(name, final, pid, owner, self._cgroup, seconds, time.monotonic(), hushed=hushed)

    def give_verdict(self, owner: Owner, request: Request) -> None:
        """Live: go on, the snapshot was taken (or not). Final: die, the image is committed (or live). Answers at CRIU's end."""
        d = self._waiting(request)
        d.owner = owner
        self._answer_hook(d, bool(request["good"]))
        if not d.pid:
            self._dump_ended(d, 1)

    def give_up(self, _owner: Owner, request: Request) -> Reply:
        """End a `criu dump` that hangs before its tree was written; the job runs on then."""
        d = self._dump
        if d is None or d.frozen_at is not None or d.checkpoint != request["checkpoint"]:
            raise Refused("no save hangs")
        d.end()
        return {}

    def end_restore(self, _owner: Owner, _request: Request) -> Reply:
        """End a `criu restore` that hangs; what there is of the job goes with it."""
        if self._restore is None:
            raise Refused("no restore hangs")
        criu_runs.end(self._restore.pid)
        return {}

    def _waiting(self, request: Request) -> Dump:
        d = self._dump
        if d is None or not d.waits or d.checkpoint != request["checkpoint"]:
            raise Refused("no save waits for a verdict")
        return d

    def _hook(self) -> None:
        for action in self._gate.asked():
            d = self._dump
            if action == "pre-resume":
                self._resumes()
            elif action == "pre-dump" and d is not None:
                d.seized_at = time.monotonic()
            elif action == "post-dump" and d is not None:
                self._frozen(d)

    def _resumes(self) -> None:
        """CRIU is about to let the job run, which it does whatever the answer."""
        if self._cgroup is not None:
            sockets.abort_severed(self._net.fd, network.INSIDE)
            if self._restore is not None:
                self._output.give(*self._restore.account())
                noted, pids = self._restore.pidfile.parent, self._cgroup.pids()
                terminals.restored(noted, pids)
                thread_attributes.restored(noted, pids)
                datagrams.restored(noted, pids, self._net.fd)
                process_numbers.restored(noted, self._restore.first())
                self._net.speak()
        self._let_go()

    def _let_go(self) -> None:
        """Let CRIU go on, once the job has what it must have before it runs."""
        r = self._restore
        if r is not None:
            r.holds = r.whole and pager.arrives(self._folder)
            if r.holds:
                return
            if r.whole and pager.incomplete(self._folder):
                with contextlib.suppress(OSError):  # the agent writes it down, too
                    pager.Loss(pager.DEAD).write(self._folder)
                self._kill_tree()
        if self._cgroup is not None:
            self._cpu_baseline = self._cgroup.cpu_seconds()  # so far it was CRIU that worked
            if r is not None and r.stays:
                self._stays = self._firm = True
                criu_runs.step_out_and_freeze(self._cgroup, r.stays)
            self._gate.answer(True)

    def _frozen(self, d: Dump) -> None:
        d.frozen_at = d.heard_at = time.monotonic()
        try:
            self._output.drain()  # output that can't be kept would be missing after a restore
            if self._cgroup is not None:
                self._cgroup.freeze()  # so that the job stands still even if CRIU dies now
                self._broken = interrupted_calls.found(self._cgroup.pids())
        except OSError:
            self._answer_hook(d, False)
            return
        if d.owner is None and not d.final:
            self._answer_hook(d, False)
        elif d.owner is not None:
            following = process_numbers.following(self._root_pid)
            self._send(d.owner, {"log": self._output.positions(), "waits": self._broken, "following": following})

    def _answer_hook(self, d: Dump, good: bool) -> None:
        d.verdict, d.answered_at = good, time.monotonic()
        if d.final and good:
            self._killed = True
            self._kill_tree()
        elif self._stays and not self._firm and self._cgroup is not None:
            self._cgroup.thaw()  # CRIU has it in its hands, and freezes it again when it lets go
        elif not (self._broken or self._firm):  # else it runs once CRIU, which still holds its threads, has ended
            self._settle_freezer()
        self._gate.answer(good)

    def _dump_ended(self, d: Dump, code: int) -> None:
        if code != 0 or d.hushed:
            self._net.unlock()
        d.came_to(code)
        if d.final and d.waits:
            d.pid = 0  # CRIU died, but the final entry may exist: the control group holds the job until the verdict
            return
        self._dump = None
        if not self._killed:
            self._settle_freezer()
        self._send(d.owner, d.result(code))

    def _settle_freezer(self) -> None:
        """Frozen if it is to be held, else not."""
        if self._cgroup is not None and self._phase == RUNNING:
            plain = self._cgroup.freeze if self._held or self._stays else self._thaw
            with contextlib.suppress(OSError):
                (self._guard.grip if self._guard.grips else plain)()

    def _thaw(self) -> None:
        if self._cgroup is not None:
            broken, self._broken = self._broken, []
            interrupted_calls.let_run(broken, self._cgroup.thaw)

    # ------------------------------------------------------------ children

    def _criu(self, request: Request, fill: dict[str, int], enter: Callable[[], None], *, final: bool) -> int:
        self._gate.begin(final=final)
        argv = criu_runs.filled([*request["argv"], *self._guard.freezer()], fill)
        return criu_runs.spawn(argv, self._folder / "criu.err", enter)

    def child_ended(self, pid: int, code: int) -> None:
        """A child or an orphan of the job is gone."""
        d, r = self._dump, self._restore
        if d is not None and pid == d.pid:
            self._dump_ended(d, code)
        elif r is not None and pid == r.pid:
            self._restore_ended(r, code)
        elif r is not None:
            r.ended[pid] = code
        elif pid == self._root_pid and self._phase == RUNNING:
            self._exited(code)

    def _restore_ended(self, r: Restore, code: int) -> None:
        self._restore = None
        self._root_pid = r.root_pid(code)
        if not self._root_pid or self._killed:
            self._abandon()
            self._send(r.owner, {"ok": False, "error": f"criu restore ended with {code}"})
            return
        self._running()
        self._send(r.owner, {"root_pid": self._root_pid})
        if self._root_pid in r.ended:
            self._exited(r.ended[self._root_pid])

    def _exited(self, code: int) -> None:
        if self._killed:
            self._phase = IDLE  # its death was ours: no exit of the command
            return
        if pager.incomplete(self._folder):
            self._phase = LOST  # its memory could not be brought
            return
        self._exit_code = code if code >= 0 else 128 - code
        with contextlib.suppress(OSError):  # the disk takes no output: the end waits for that
            self._output.drain()
        self._write_exit()

    def _write_exit(self) -> None:
        """Write the end of the command down with what it used, once all output is on disk."""
        if self._phase != RUNNING or self._cgroup is None or self._exit_code is None or not self._output.is_kept():
            return
        used = self._cgroup.used_since(self._cpu_baseline)
        told = {"exit_code": self._exit_code, "step": self._step, "log": self._output.positions(), "cpu_seconds": used}
        try:
            shim_protocol.write_durably(self._folder / shim_protocol.EXIT, told)
        except OSError:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return
        self._phase = EXITED

    # ------------------------------------------------------------ time

    def pause_seconds(self) -> float | None:
        """How long the loop may sleep."""
        d = self._dump
        if self._restore is not None:
            return self._restore.pause_seconds
        if d is not None and (d.answered_at is not None or (d.waits and not d.final)):
            return 0.1
        return RETRY_SECONDS if self._retry_at is not None else self._guard.seconds

    def look_at_clock(self) -> None:
        """Do what is due."""
        now, d, r = time.monotonic(), self._dump, self._restore
        self._guard.look_at_clock()
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._write_exit()
        if r is not None:
            r.end_if_stuck(now)
            if r.holds:
                self._let_go()
        if d is not None:
            if d.forsaken(now):
                self._answer_hook(d, False)
            d.end_if_stuck(now)
