"""A real controller on a real database with made-up jobs, machines, usage, prices, checkpoints and logs. Nothing ticks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.final_save_forecast import Fit
from spotsurfer_wire.head_log import HeadLog, Place, committed, granted
from spotsurfer_wire.messages import AgentState, Report
from spotsurfer_wire.store.port import ObjectStore
from spotsurfer_wire.usage import Window
from sqlalchemy import Connection

from spotsurfer.config.settings import Settings
from spotsurfer.controller import wiring
from spotsurfer.model.job import (
    ENDED,
    Attempt,
    AttemptNumber,
    AttemptState,
    HeldBy,
    InstanceId,
    Job,
    JobId,
    JobSpec,
    JobState,
    Wish,
)
from spotsurfer.model.lifetimes import Lives
from spotsurfer.model.market import Cooldown, Market, Offer, Pool
from spotsurfer.model.snapshot import Snapshot, SpotSeen
from spotsurfer.ports.service import Moment, Why
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, timeline, usage_history
from spotsurfer.store import master_key

POOLS = [
    (Pool("aws", "eu-central-1", "eu-central-1a", "m6i.large"), 31_000, 96_000, 2, 8 << 30),
    (Pool("aws", "eu-central-1", "eu-central-1b", "c6i.xlarge"), 62_000, 170_000, 4, 8 << 30),
    (Pool("aws", "us-east-1", "us-east-1d", "r6i.2xlarge"), 171_000, 504_000, 8, 64 << 30),
    (Pool("gcp", "europe-west3", "europe-west3-a", "n2-standard-8"), 98_000, 389_000, 8, 32 << 30),
]
NAMES = ("assembly", "variants", "docking", "climate-ens", "render", "backtest", "train-lm", "relax", "phylo", "stitch")
OWNERS, PROJECTS = ("ada", "bob", "mei", "tomas"), ("genomics", "weather", "lab-12", "")
STORY = "story-7c1e90"  # the job with everything
FIT = Fit(4.1, 310 << 20, 9.4, 118.0, "fits", 14.0, 2.0, 3.0, 200.0, 900.0, 720.0)


@contextmanager
def made_up(folder: Path, count: int, **sections: Any) -> Iterator[wiring.Controller]:
    """A controller with so many jobs; with any there is the job `STORY` among them."""
    limits = {"hourly_max_usd": "60", "budget_usd": "20000", "instances_max": 400}
    own = {"data_dir": str(folder / "data")}
    settings = Settings(controller=own, limits=limits, store={"url": (folder / "store").as_uri()}, **sections)  # type: ignore[arg-type]
    controller = wiring.build(settings)
    try:
        fill(controller, settings, count)
        yield controller
    finally:
        controller.stop()


def fill(controller: wiring.Controller, settings: Settings, count: int) -> None:
    """Add the jobs, and what the loop would have seen and noted."""
    service, chance = controller.service, random.Random(29)
    now = service.clock.now()
    jobs: list[Job] = []
    with service.engine.begin() as c:
        for n in range(count):
            jobs.append(_story(c, now) if n == 0 else _job(c, chance, n, now))
        if count:
            pools(c, now)
    if count:
        with controller.service.engine.connect() as c:
            controller.service.observer.costs.refresh(c, {}, now)
        _stored(cast(ObjectStore, controller.service.stored_output._store), settings, now)
    offers = _offers() if count else []
    service.observer._offers = {"aws": (now, tuple(offers))}
    cool = [Cooldown(POOLS[1][0], Market.SPOT, now + timedelta(minutes=4), 2, "InsufficientInstanceCapacity")] if count else []
    waiting = [j for j in jobs if j.state is JobState.QUEUED]
    controller.loop.last_seen = Snapshot([], offers, cool, [], {}, 0, service.limits)
    controller.loop.last_tick_at = now
    controller.loop._notes = {
        j.id: f"the limit of 60 USD an hour leaves no room; {n} wait before it" for n, j in enumerate(waiting)
    }
    controller.loop._levels = {j.id: j.spec.priority + 3 for j in waiting}


def _offers() -> list[Offer]:
    lives = Lives.of([(5400.0, True), (40_000.0, False), (22_000.0, True), (90_000.0, False)])
    found = []
    for pool, spot, listed, cpus, memory in POOLS:
        found.append(Offer(pool, Market.SPOT, spot, listed, cpus, memory, interruption_band=1, placement_score=7, lives=lives))
        found.append(Offer(pool, Market.ON_DEMAND, listed, listed, cpus, memory))
    return found


def pools(c: Connection, now: datetime) -> None:
    """When spot could be had."""
    for n, (pool, *_) in enumerate(POOLS):
        for at in range(60, 0, -1):
            up = None if at % 23 == n else at % (7 + n) != 0
            observations.add_spot_seen(c, str(pool), SpotSeen(now - timedelta(hours=at), up))


# ---- Jobs


def _job(c: Connection, chance: random.Random, n: int, now: datetime) -> Job:
    name = f"{chance.choice(NAMES)}-{chance.randrange(40):02d}"
    begun = now - timedelta(seconds=600 + n * 700 + chance.randrange(600))
    state = chance.choices(list(JobState), (8, 30, 5, 45, 7, 5))[0]
    spec = JobSpec(
        name,
        ("python", "run.py", "--seed", str(n)),
        cpus=chance.choice((1, 2, 4)),
        priority=chance.choice((0, 0, 0, 10, -10)),
        project=chance.choice(PROJECTS),
        tags={"run": str(n % 12), **({"paper": "ice"} if n % 5 == 0 else {})},
        budget_usd_micros=25_000_000 if n % 4 == 0 else None,
    )
    ended = begun + timedelta(seconds=chance.uniform(0.3, 0.9) * (now - begun).total_seconds()) if state in ENDED else None
    held = state is JobState.HELD
    job = Job(
        JobId(f"{name}-{n:06x}"),
        spec,
        state,
        1,
        begun,
        wish=Wish.HOLD if held else Wish.RUN,
        held_by=HeldBy.IDLE if held and n % 2 else HeldBy.USER,
        reason="held by its user" if held else "",
        owner=chance.choice(OWNERS),
        ended_at=ended,
        exit_code={JobState.SUCCEEDED: 0, JobState.FAILED: 2}.get(state),
    )
    rows.add_job(c, job)
    say(c, job.id, None, begun, "submitted", spec.name)
    if state is not JobState.QUEUED:
        _attempts(c, chance, job, begun, ended or now, now)
    return job


def _attempts(c: Connection, chance: random.Random, job: Job, begun: datetime, end: datetime, now: datetime) -> None:
    count = chance.randrange(1, 5)
    cuts = sorted(chance.random() for _ in range(count - 1))
    times = [begun + (end - begun) * x for x in (0.0, *cuts, 1.0)]
    for number in range(1, count + 1):
        last = number == count and job.state is JobState.ACTIVE
        _attempt(
            c, job, number, (times[number - 1], None if last else times[number]), chance.choice(POOLS), chance.random() < 0.85
        )


def _attempt(
    c: Connection,
    job: Job,
    number: int,
    held: tuple[datetime, datetime | None],
    kind: tuple[Pool, int, int, int, int],
    spot: bool,
) -> None:
    (begun, end), (pool, price, listed, _, memory) = held, kind
    attempt = Attempt(
        job=job.id,
        number=AttemptNumber(number),
        state=AttemptState.RUNNING if end is None else AttemptState.RELEASED,
        since=begun,
        pool=pool,
        market=Market.SPOT if spot else Market.ON_DEMAND,
        price_usd_micros_per_hour=price if spot else listed,
        list_price_usd_micros_per_hour=listed,
        token=f"{job.id}-{number}",
        planned_at=begun,
        granted_at=begun + timedelta(seconds=70),
        launched_at=begun + timedelta(seconds=3),
        released_at=end,
        instance=InstanceId(f"i-{number:017x}"),
        from_checkpoint=None if number == 1 else f"{number - 1:06d}-{number * 3:06d}",
        head_number=number,
        reason="" if end is None else "the cloud reclaimed it",
        reclaimed=end is not None,
        pause_seconds=None if number == 1 else 11.5 + number,
        drained=True,
        purpose="the job needs a machine",
        pace_why="saved every 12 min: 1.2 s of pause against a loss every 9 h",
    )
    rows.add_attempt(c, attempt)
    seconds = ((end or begun + timedelta(hours=2)) - begun).total_seconds()
    report = Report(
        job.id,
        number,
        str(attempt.instance),
        "0.2.0",
        9,
        AgentState.RUNNING if end is None else AgentState.DRAINED,
        number,
        saves=3,
        frozen_seconds=2.2,
        cpu_seconds=0.8 * seconds,
        memory_bytes=memory // 3,
        protection="criu",
        save_age_seconds=412.0,
        fit=FIT,
        processor="Intel Xeon 8375C",
        at=begun.isoformat(),
    )
    observations.set_usage(c, report, end or begun + timedelta(hours=2))


# ---- The job with everything


def _story(c: Connection, now: datetime) -> Job:
    begun = now - timedelta(hours=9)
    spec = JobSpec(
        "story",
        ("python", "assemble.py", "--reads", "all.fastq.gz"),
        cpus=4,
        memory_bytes=8 << 30,
        priority=10,
        project="genomics",
        tags={"run": "7", "paper": "ice"},
        outputs=("result/*",),
        budget_usd_micros=25_000_000,
        deadline_seconds=20 * 3600.0,
        work_seconds=15 * 3600.0,
    )
    job = Job(JobId(STORY), spec, JobState.ACTIVE, 1, begun, owner="ada")
    rows.add_job(c, job)
    lives = [(0.0, 2.4, 0, True), (2.3, 3.1, 1, False), (3.0, 6.6, 1, True), (6.5, None, 3, True)]
    say(c, job.id, None, begun, "submitted", "story")
    for number, (a, b, pool, spot) in enumerate(lives, 1):
        times = begun + timedelta(hours=a), None if b is None else begun + timedelta(hours=b)
        _attempt(c, job, number, times, POOLS[pool], spot)
        if number == 3:
            say(c, job.id, None, times[0], "wish", "move to another machine (spot), asked by its user")
        _lived(c, number, times[0], times[1] or now, POOLS[pool])
    for at, done, rejected, note in (
        (
            6.4,
            ("plan #4 on n2-standard-8 spot in europe-west3-a",),
            (("c6i.xlarge spot", "it cools down for 4 min: no capacity"),),
            "its machine is reclaimed in 2 min",
        ),
        (
            6.6,
            ("grant to #4 from checkpoint 000003-000009",),
            (("r6i.2xlarge spot", "0.073 USD an hour more for the same work"),),
            "the next machine is ready",
        ),
    ):
        timeline.add_decision(c, job.id, Why(begun + timedelta(hours=at), done, rejected, note))
    return job


def _lived(c: Connection, number: int, begun: datetime, end: datetime, kind: tuple[Pool, int, int, int, int]) -> None:
    job, hours = JobId(STORY), (end - begun).total_seconds() / 3600
    say(c, job, number, begun, "launched", f"{kind[0].instance_type} in {kind[0].zone}")
    say(
        c,
        job,
        number,
        begun + timedelta(seconds=70),
        "granted",
        f"to #{number}" + (f" from 00000{number - 1}" if number > 1 else ""),
    )
    if number > 1:
        pause = {"pause_seconds": 11.5 + number}
        say(c, job, number, begun + timedelta(seconds=84), "moved", f"it stood still for {11.5 + number:.1f} s", **pause)
    for n in range(max(int(hours * 2.5), 1)):
        name = f"{number:06d}-{number * 3 + n:06d}"
        text = f"live checkpoint {name}: 2.1 GiB, 310.0 MiB new, frozen 0.74 s, durable after 9.4 s"
        say(c, job, number, begun + timedelta(minutes=22 + 24 * n), "saved", text, checkpoint=name, new_bytes=325_058_560)
    if number in (1, 3):
        say(c, job, number, end - timedelta(seconds=118), "notice", "interruption: 118 s left", kind="interruption")
    for step in range(0, int(hours * 12)):
        at = begun + timedelta(minutes=5 * step)
        observations.add_price(c, job, AttemptNumber(number), at, int(kind[1] * (1 + 0.12 * math.sin(step / 5))))
    windows = []
    for n in range(int(hours * 60)):
        cores = 3.2 + 0.6 * math.sin(n / 17) - (2.4 if n % 97 < 4 else 0.0)
        used = (2.0 + 1.8 * min(n / 200, 1.0) + 0.2 * math.sin(n / 9)) * (1 << 30)
        window = Window(n * 6, 60.0, cores, cores + 0.4, used * 1.3, used, used, used * 1.1, used * 0.2, 0.0)
        windows.append((begun + timedelta(minutes=n), window))
    usage_history.add(c, job, number, windows)


def say(c: Connection, job: str | None, attempt: int | None, at: datetime, kind: str, text: str, /, **data: Any) -> None:
    """A moment of the timeline."""
    timeline.add(c, Moment(at, None if job is None else JobId(job), attempt, kind, text, data))


def _stored(store: ObjectStore, settings: Settings, now: datetime) -> None:
    """Head log, checkpoints and output of the story."""
    keys = master_key.load(settings.key_path, settings.checkpoint.encrypt).keys_of(STORY)
    log, sequence = HeadLog(store, STORY), 0
    newest: str | None = None
    for epoch in range(1, 5):
        at = (now - timedelta(hours=9 - 2.1 * epoch)).isoformat()
        log.append(granted(Place(len(log.entries) + 1, f"g{epoch}", at), epoch, newest, sequence, None))
        for n in range(3):
            sequence += 1
            newest = f"{epoch:06d}-{sequence:06d}"
            kind = "final" if n == 2 and epoch < 4 else "live"
            one = manifest.Manifest(
                id=newest, job=STORY, epoch=epoch, sequence=sequence, kind=kind, engine="criu",
                facts={}, image=[], scratch=[], log={}, init_pipes={}, cpu_seconds=3600.0 * sequence, frozen_seconds=0.7,
                image_bytes=2 << 30, at=at,
            )  # fmt: skip
            store.put(object_keys.manifest_key(STORY, newest), manifest.encode(one, keys))
            entry = committed(
                log.entries[-1], newest, epoch, sequence, (3600.0 * sequence, 3600.0 * sequence), one.kind == "final"
            )
            log.append(replace(entry, number=len(log.entries) + 1, nonce=f"c{sequence}", at=at))
    out = "".join(f"step {n:05d}  loss {2.4 * math.exp(-n / 300) + 0.31:.4f}  contigs {n * 17}\n" for n in range(400)).encode()
    store.put(object_keys.log_key(STORY, 4, "out", 0, len(out)), out)
