"""The real loop, tables, head log and database in a virtual world, with invariants that hold at every second."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from simulation.agents import LEASE_SECONDS, config_of, spec_of
from simulation.chances import Chances
from simulation.fallible import Flaky, Strict, copied
from simulation.objects import WRITES, Objects
from simulation.strand import Strand
from simulation.trouble import Trouble, mend
from simulation.virtual import Cloud, Crash
from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import HeadKind
from spotsurfer_wire.store.port import StoreError

from spotsurfer.controller.jobs.commands import Commands
from spotsurfer.controller.jobs.rightsizing import Sizes
from spotsurfer.controller.loop import Loop, Policies
from spotsurfer.controller.machines.circuit_breaker import Guarded
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.controller.observe import Observer
from spotsurfer.core.moves import NOTICED
from spotsurfer.model.errors import Conflict, StoreUnwritable, Superseded
from spotsurfer.model.job import ENDED, HOLDS, OVER, WAITS, Attempt, AttemptState, Job, JobId, JobSpec, JobState, Wish
from spotsurfer.model.snapshot import Limits
from spotsurfer.model.state_machine import AttemptEvent
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.policies import Interval, Purchase
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.agent_reports import Reports
from spotsurfer.store.head_logs import HeadLogs
from spotsurfer.store.leadership import Leadership, claim_store

START = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = ("resume", "move to", "go back")  # of users who want it tried again at once
WISHES = 0.022  # the chance that a user has one, a second and job
RESUMED_EVERY = 100  # seconds of quiet between looks of users at what is held
LIMITS = Limits(
    lease_seconds=LEASE_SECONDS,
    lease_margin_seconds=4.0,
    boot_limit_seconds=30.0,
    listing_lag_seconds=6.0,
    instances_max=12,
    launch_failures_max=1000,
    last_report_seconds=3.0,
    release_again_seconds=5.0,
    warm_wait_seconds=15.0,
    keep_seconds=60.0,
)


class World:
    """One run: some jobs, one cloud, one store, one controller that may die at any call."""

    def __init__(
        self,
        seed: int,
        jobs: int = 2,
        work: int = 400,
        chances: Chances | None = None,
        purchase: Purchase | None = None,
        interval: Interval | None = None,
        sizes: Sizes | None = None,
        limits: Limits = LIMITS,
        **spec: Any,
    ) -> None:
        self.limits = limits
        self.purchase, self.interval, self.sizes, self.spec = purchase, interval, sizes, spec
        self.stride = 1  # seconds from one look to the next
        self.rand = random.Random(seed)
        self.chances = chances or Chances()
        self.clock = ManualClock(START)
        self.store = Objects()
        self.cloud = self._cloud(work)
        self.engine = open_database(None)
        self.crashes, self.ended, self.returns, self.edges = 0, 0, 0, Counter[str]()
        self.old: list[tuple[Strand, Loop]] = []  # controllers that stand still, and what they are in the middle of
        self.away: list[datetime] = []  # seconds in which the store, the cloud's API or the controller was away
        self.committed: dict[str, float] = {}
        self.most_alive = 0
        self.users_busy = self.users_ask = self.stormy = True
        self.rewinds: dict[JobId, set[str]] = defaultdict(set)
        self.begin()
        self.ids: list[JobId] = []
        self.attempts: dict[Any, list[Attempt]] = {}  # by job, as of the last check
        self.coming: dict[int, int] = {}  # jobs that come later: second -> priority
        for _ in range(jobs):
            self.submit()

    def _cloud(self, work: int) -> Cloud:
        return Cloud(self.clock, self.store, self.chances, self.rand, work)

    def submit(self, priority: int = 0) -> None:
        """One job more."""
        job = JobId(f"job-{len(self.ids)}")
        self.ids.append(job)
        asked = {"cpus": 1, "memory_bytes": 1 << 30, "retries": self.rand.choice([0, 1, 2]), "priority": priority}
        self.store.data[object_keys.spec_key(job)] = (json_codec.encode(spec_of(job)), 0)
        spec = JobSpec(name=job, command=("work",), **{**asked, **self.spec})
        with self.engine.begin() as c:
            rows.add_job(c, Job(job, spec, JobState.QUEUED, 1, self.clock.now()))

    def begin(self) -> None:
        """A new controller process: nothing is kept but the database. Raises StoreUnwritable where the store takes nothing."""
        claim_store(self.store, "fam", "memory:///")
        leadership = Leadership(self.store, self.clock)
        leadership.take()
        heads, reports = HeadLogs(self._flaky(self.store)), Reports(self.store)
        clouds = Clouds([Guarded(self._flaky(self.cloud), self.clock)], "memory:///")
        observer = Observer(self.engine, clouds, reports, heads, self.limits, (5.0, 0.0))
        apply = Strict(
            engine=self.engine,
            clouds=clouds,
            store=self._flaky(self.store),
            heads=heads,
            clock=self._flaky(self.clock),
            family="fam",
            user_data=self._user_data,
            on_end=lambda _c, _j: None,
            instance_of=observer.instance_of,
            orders=self,
            first_cooldown_seconds=5.0,
            lease_seconds=self.limits.lease_seconds,
        )
        policy = Cheapest(stay_seconds=10.0, margin=0.2)
        policies = Policies(policy, self.purchase, self.interval, self.sizes)
        self.loop = Loop(self.engine, observer, apply, policies, self.clock, leadership)
        self.commands = Commands(self.engine, self.clock, heads, lambda: None)

    def _user_data(self, attempt: Attempt) -> str:
        limits = self.limits
        keeps = limits.keep_seconds + limits.lease_seconds if limits.keep_seconds else 0.0
        return config_of(attempt, warm_wait_seconds=limits.warm_wait_seconds, keep_seconds=keeps)

    def of(self, attempt: Attempt) -> bytes:
        """The order for one more agent on a machine that is kept."""
        return self._user_data(attempt).encode()

    def void(self, attempt: Attempt) -> bytes:
        """The order by which no agent comes."""
        assert attempt.slot
        return b""

    def restart(self) -> None:
        """A new controller process: one that can't begin ends, and is started again."""
        while True:
            try:
                return self.begin()
            except StoreUnwritable:
                self._pass()

    def _flaky(self, inner: Any) -> Any:
        return Flaky(inner, self.cloud)

    def _tick(self) -> None:
        """One of the controller. If it stands still, another one on another host takes over, and the old one wakes up later."""
        tick = Strand(self.loop.tick, lambda: self.clock.now().timestamp())
        tick.turn()
        if not tick.over:
            self.old.append((tick, self.loop))
            self.engine = copied(self.engine)
            self._restart()
        for one in list(self.old):
            self.old.remove(one)
            self._old(*one)

    def _old(self, tick: Strand, loop: Loop) -> None:
        """What a controller does that has lost its right and may not know it."""
        try:
            tick.turn()
        except Superseded:
            self.ended += 1
        except Crash:
            return
        else:
            fresh = Strand(loop.tick, lambda: self.clock.now().timestamp()) if tick.over else tick
            self.old.append((fresh, loop))

    def _restart(self) -> None:
        """A new process, maybe with other settings."""
        if self.rand.random() < self.chances.settings:
            lease, margin = self.rand.choice([4.0, LEASE_SECONDS, 12.0]), self.rand.choice([3.0, 4.0, 6.0])
            self.limits = replace(self.limits, lease_seconds=lease, lease_margin_seconds=margin)
        self.restart()

    def run(self, limit: int = 6000, quiet_after: int = 2500) -> str:
        """ "ok" when every job ended and nothing is left, else "stuck"."""
        for second in range(limit):
            if second == quiet_after:
                self._quiet()
            if second > quiet_after and second % RESUMED_EVERY == 0:
                self._resume()
            self._pass()
            if second in self.coming:
                self.submit(self.coming.pop(second))
            try:
                self._users()
                self._tick()
            except Crash:
                self.crashes += 1
                for _ in range(self.rand.randint(1, 30)):
                    self._pass()
                    self.away.append(self.clock.now())
                self._restart()
            self.check()
            if self._over():
                return "ok"
        return "stuck"

    def until_running(self, number: int = 1) -> None:
        """Nobody but us interferes, and this attempt of each job runs."""
        self.users_busy = False
        for _ in range(200):
            self.run(limit=1)
            newest = [some[-1] for some in self.attempts.values() if some]
            runs = [a.state is AttemptState.RUNNING and a.number == number for a in newest]
            if len(runs) == len(self.ids) and all(runs):
                return
        raise AssertionError(f"they do not run: {self.attempts}")

    def _quiet(self) -> None:
        """From now on nothing goes wrong: every job must come to its end."""
        c = self.chances
        c.refused = c.never_boots = c.notice = c.killed = c.cut = c.restore_fails = c.image_bad = 0.0
        c.unfit = c.useless = c.registry = c.save_fails = c.zombie = c.outage = c.crash = c.command_fails = c.agent_dies = 0.0
        c.stands_still = c.single = 0.0
        self.users_busy = False
        self.store.down = self.cloud.spot_out = False
        mend(self.store)
        self._resume()

    def _resume(self) -> None:
        """Users let go on what was held: by themselves, by a limit, or because of what went wrong before."""
        for job in self._jobs():
            if job.wish is Wish.HOLD and job.state not in ENDED:
                self.commands.resume(job.id)

    def _pass(self) -> None:
        self.clock.advance(self.stride)
        if self.users_busy:
            self._weather()
        outage = self.cloud.outage_until
        if self.store.down or (outage is not None and outage > self.clock.now()):
            self.away.append(self.clock.now())
        self.cloud.step()

    def _weather(self) -> None:
        if self.rand.random() < 0.002:
            self.cloud.spot_out = not self.cloud.spot_out
        if self.store.down:
            self.store.down = self.rand.random() > 0.05
        elif self.rand.random() < 0.001 and self.stormy:
            self.store.down = True
        if self.rand.random() < self.chances.single:
            self._stumble()

    def _stumble(self) -> None:
        """For a while single calls fail, or none does any more."""
        if self.store.is_well:
            by, n = self.rand.choice(["agent", "controller", ""]), self.rand.choice([1.5, 3.0, 10.0])
            picked = self.rand.choice([WRITES, ("get", "list"), ("get", "list", *WRITES)])
            hits = lambda who, verb, _: by in ("", who) and verb in picked and self.rand.random() < 1 / n  # noqa: E731
            Trouble(hits, lost=self.rand.random() < 0.3).strike(self.store)
        else:
            mend(self.store)

    def _users(self) -> None:
        if not (self.users_busy and self.users_ask) or self.store.down:
            return
        wishes = [self.rand.random() for _ in self.ids]
        if min(wishes, default=1.0) >= WISHES:
            return
        for job, wish in zip(self._jobs(), wishes, strict=False):
            with suppress(Conflict, StoreError):
                self._wish(job, wish)

    def _wish(self, job: Job, wish: float) -> None:
        if wish < 0.002:
            self.commands.hold(job.id)
        elif wish < WISHES and job.wish is Wish.HOLD:
            self.commands.resume(job.id)
        elif wish < 0.006:
            self.commands.move(job.id, None, None)
        elif wish < 0.009:
            self.commands.checkpoint(job.id)
        elif wish < 0.0092:
            self.commands.cancel(job.id)
        elif wish < 0.0107:
            self._go_back(job)

    def _go_back(self, job: Job) -> None:
        """A user goes back: now and then, and a job that ended only once, or no run would end."""
        log = HeadLog(self.store, job.id)
        log.refresh()
        made = [e.checkpoint for e in log.entries if e.kind is HeadKind.COMMIT and e.checkpoint]
        if made and (job.state not in ENDED or not self.rewinds[job.id]):
            checkpoint = self.rand.choice(made)
            self.rewinds[job.id].add(checkpoint)
            self.commands.go_back(job.id, checkpoint)

    def _jobs(self) -> list[Job]:
        with self.engine.connect() as c:
            return rows.all_jobs(c)

    def _over(self) -> bool:
        released = all(a.state in OVER for some in self.attempts.values() for a in some)
        alive = any(m.gone_at is None for m in self.cloud.machines.values())
        return released and not alive and not self.coming and all(j.state in ENDED for j in self._jobs())

    def end(self) -> None:
        """Nothing goes on, not even what stands still."""
        for machine in self.cloud.machines.values():
            self.cloud.end(machine)
        for tick, _ in self.old:
            tick.drop()

    # ---- what must hold at every second

    def check(self) -> None:
        with self.engine.connect() as c:
            attempts = self.attempts = rows.attempts(c, self.ids)
        alive = [m for m in self.cloud.machines.values() if m.gone_at is None]
        self.most_alive = max(self.most_alive, len(alive))
        for job in self.ids:
            held = [a for a in attempts[job] if a.state in HOLDS]
            waiting = [a for a in attempts[job] if a.state in WAITS]
            assert len(held) <= 1, f"two holders: {held}"
            assert len(waiting) <= 1, f"two waiters: {waiting}"
            running = [m.id for m in alive for agent in m.agents if agent.job == job and agent.executing]
            assert len(running) <= 1, f"{job} runs on {running} at once"
        assert len(alive) <= self.limits.instances_max, "more machines than allowed"

    def check_end(self) -> None:
        """After the run: the store tells one story, each token had one machine."""
        mend(self.store)
        for job in self.ids:
            self._check_log(job)
        with self.engine.connect() as c:
            moments = timeline.read(c, None, 0)
        for _, m in moments:
            if m.kind == "attempt":
                self.edges[f"{m.data['from']} -> {m.data['event']}"] += 1
        assert self.cloud.launches == len(self.cloud.machines)

    def pauses(self) -> list[float]:
        """How long moves stopped their jobs."""
        with self.engine.connect() as c:
            attempts = rows.attempts(c, self.ids)
        return [a.pause_seconds for some in attempts.values() for a in some if a.pause_seconds is not None]

    def asked_again(self) -> Iterator[float]:
        """Seconds from a final save that failed until the next one on that machine that neither a notice nor a user forced."""
        with self.engine.connect() as c:
            moments = timeline.read(c, None, 0)
        failed: dict[tuple[JobId | None, int | None], datetime] = {}
        for _, m in moments:
            key = m.job, m.attempt
            if m.kind == "attempt" and m.data["event"] == AttemptEvent.SAVE_FAILED:
                failed[key] = m.at
            elif m.kind == "wish" and m.text.startswith(ORDERS):
                failed = {k: at for k, at in failed.items() if k[0] != m.job}
            elif m.kind == "asked" and m.text.startswith("drain: ") and key in failed:
                waited = (m.at - failed.pop(key)).total_seconds()
                if NOTICED not in m.text:
                    yield waited

    def _check_log(self, job: JobId) -> None:
        self.store.down = False
        log = HeadLog(self.store, job)
        log.refresh()
        work, published, newest = 0.0, 0, None
        with self.engine.connect() as c:
            failed = Counter(a.from_checkpoint for a in rows.attempts(c, [job])[job] if a.restore_failed)
        for entry in log.entries:
            if entry.kind is HeadKind.GRANT and entry.checkpoint is None:
                work = 0.0
            if entry.kind is HeadKind.GRANT and entry.checkpoint in self.rewinds[job]:
                work, published, newest = entry.cpu_seconds, 0, entry.checkpoint  # its user went back, maybe after the end
            if entry.kind is HeadKind.GRANT and entry.checkpoint is not None and newest is not None:
                given_up = entry.checkpoint < newest and failed[newest] >= self.limits.restore_failures_max
                work = entry.cpu_seconds if given_up else work  # the newest could not be restored: the one before counts
            newest = entry.checkpoint if entry.kind is HeadKind.COMMIT else newest
            if entry.kind is HeadKind.COMMIT:
                assert entry.cpu_seconds >= work, f"{job}: committed work went back at {entry.number}"
                work = entry.cpu_seconds
            published += entry.kind is HeadKind.DONE and entry.done is not None and entry.done.exit_code == 0
        assert published <= 1, f"{job} was published {published} times"
        self._check_owners(job, log.entries)

    def _check_owners(self, job: JobId, entries: list[messages.Head]) -> None:
        """An older attempt writes again only after a grant that gives it back what it kept: nothing was saved after that."""
        owner, final = 0, None
        for e in entries:
            if e.kind is HeadKind.DONE and e.done is not None and e.done.reason != "exited":
                continue
            if e.kind is HeadKind.GRANT and e.epoch <= owner:
                assert final is not None, f"{job}: entry {e.number} gives back what was not kept"
                assert (final.epoch, final.checkpoint) == (e.epoch, e.checkpoint), (
                    f"{job}: entry {e.number} gives something else back"
                )
                self.returns += 1
            elif e.kind is not HeadKind.GRANT:
                assert e.epoch == owner, f"{job}: an attempt wrote entry {e.number} that did not own the job"
            if e.kind is HeadKind.COMMIT:
                final = e if e.final else None
            owner = e.epoch
