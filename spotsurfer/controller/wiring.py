"""Builds a controller from settings, plug-ins, store, database and clock. Only this file turns names into objects."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog
from obstore.exceptions import BaseError
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.messages import Report
from spotsurfer_wire.store.port import CopyingStore, FileStore, StoreError, StoreFull
from sqlalchemy import Engine

from spotsurfer.agent_runtime import Runtime, provision
from spotsurfer.common import plugins, private_files
from spotsurfer.common.plugins import INTERVAL, POLICIES, PURCHASE, SIZE
from spotsurfer.config.settings import Settings
from spotsurfer.controller.apply import Apply, Ports
from spotsurfer.controller.checkpoints.checkpoint_gc import CheckpointStore, Retention
from spotsurfer.controller.jobs import secrets
from spotsurfer.controller.jobs.commands import FRONT, Commands
from spotsurfer.controller.jobs.end_hooks import Hooks
from spotsurfer.controller.jobs.exposed_ports import FrontDoors, Sources
from spotsurfer.controller.jobs.partial_outputs import Partials
from spotsurfer.controller.jobs.rightsizing import Sizes
from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.controller.jobs.submission import Submission, SubmissionPorts
from spotsurfer.controller.loop import Loop, Policies
from spotsurfer.controller.machines.circuit_breaker import Guarded
from spotsurfer.controller.machines.gpu_facts import GpuWatch, ImageGpus
from spotsurfer.controller.machines.ssh_access import Logins
from spotsurfer.controller.machines.ssh_access import SshRules as LoginRules
from spotsurfer.controller.machines.store_credentials import Desk, Renewals
from spotsurfer.controller.machines.user_data import Machines
from spotsurfer.controller.observe import Observer
from spotsurfer.controller.schedule import Background, Schedule, Verbs
from spotsurfer.controller.service import ControllerService, Identity, Parts
from spotsurfer.core.scheduling.deadline import USUAL_SECONDS
from spotsurfer.ingress.listener import Listener
from spotsurfer.model.errors import ConfigError, DiskFull, StoreUnwritable
from spotsurfer.model.job import SIZE_OFF, Attempt, Job
from spotsurfer.model.snapshot import Limits
from spotsurfer.ports.clock import Clock, SystemClock
from spotsurfer.ports.policies import parameters_of
from spotsurfer.ports.provider import Provider, ProviderHost
from spotsurfer.recovery import restore
from spotsurfer.state import journal
from spotsurfer.state.db import lock_state, new_family, open_database
from spotsurfer.store import master_key
from spotsurfer.store.agent_reports import ImageDigests, Reports
from spotsurfer.store.head_logs import HeadLogs
from spotsurfer.store.job_output import Output
from spotsurfer.store.leadership import Leadership, claim_store
from spotsurfer.store.master_key import StoreKey
from spotsurfer.store.open_store import open_for

log = structlog.get_logger()
LISTING_SECONDS = 2.0  # at least between two listings of the cloud: looks in quick succession concern the store


@dataclass
class Controller:
    """Everything of one controller process."""

    service: ControllerService
    loop: Loop
    schedule: Schedule
    background: Background
    front: Listener
    stopped: threading.Event
    failure: list[BaseException]
    _lock: int

    def start(self) -> None:
        """Begin to tick."""
        self.schedule.start()
        self.background.start()
        self.front.start()

    def stop(self) -> None:
        """End after the tick under way; jobs and machines go on without us."""
        self.front.stop()
        self.background.stop()
        self.schedule.stop()
        os.close(self._lock)


def build(settings: Settings) -> Controller:
    """A controller on these settings, ready to start.

    Raises ControllerRunning, StoreOwned, StoreUnwritable, DiskFull, ConfigError, HostUnfit, NotRoot.
    """
    lock = _lock(settings.controller.data_dir)
    try:
        return _build(settings, lock)
    except BaseException:
        os.close(lock)
        raise


def _build(settings: Settings, lock: int) -> Controller:
    if restore.finish(settings):
        log.warning("restore.finished", why="it was cut off just before its end")
    runtime = provision.ready(settings, lambda line: log.info("runtime.building", step=line))
    clock = SystemClock()
    engine = open_database(settings.controller.data_dir / "state.db")
    family = new_family(engine)
    store = _store(settings)
    _close(settings)
    key = master_key.load(settings.key_path, settings.checkpoint.encrypt)
    claim_store(store, family, settings.store_url, key.fingerprint)
    _publish(store, runtime)
    leadership = Leadership(store, clock)
    generation = leadership.take()
    provider = _provider(settings, family, clock)
    return _assemble(settings, _Base(engine, clock, store, family, generation, provider, leadership, lock, runtime, key))


@dataclass(frozen=True, slots=True)
class _Base:
    engine: Engine
    clock: Clock
    store: CopyingStore
    family: str
    generation: int
    provider: Provider
    leadership: Leadership
    lock: int
    runtime: Runtime
    key: StoreKey


def _limits(settings: Settings, base: _Base) -> Limits:
    """The operator's limits, and the other settings that decisions use."""
    return replace(
        settings.limits.as_limits(),
        rebalance=base.provider.capabilities.rebalance,
        checkpoint_seconds=settings.agent.checkpoint_interval,
    )


def _assemble(settings: Settings, base: _Base) -> Controller:
    heads, reports = HeadLogs(base.store), Reports(base.store, base.clock.now, settings.controller.tick_seconds)
    limits = _limits(settings, base)
    observer = _observer(settings, base, (heads, reports), limits)
    logins = _logins(settings, base, observer)
    machines = Machines(settings, base.engine, base.provider, base.key, base.runtime.sha256, logins)
    hooks = Hooks(base.engine, base.clock, settings.hooks.on_end)
    ports = Ports(
        engine=base.engine,
        provider=base.provider,
        store=base.store,
        heads=heads,
        clock=base.clock,
        family=base.family,
        generation=base.generation,
        user_data=machines.user_data,
        on_end=hooks.on_end,
        launched=lambda: background.renewals.poke(),
        nudge=logins.nudge,
        first_cooldown_seconds=settings.limits.cooldown_seconds,
        lease_seconds=limits.lease_seconds,
    )
    loop = Loop(base.engine, observer, Apply(ports, observer.instance_of), _policies(settings), base.clock, base.leadership)
    stopped, failure = threading.Event(), list[BaseException]()

    def fatal(error: BaseException) -> None:
        failure.append(error)
        stopped.set()

    schedule = Schedule(loop.tick, (settings.controller.tick_seconds, settings.controller.hurry_seconds), fatal)
    hooks.again()
    shop = CheckpointStore(base.engine, base.clock, base.store, heads, base.key.keys_of, base.leadership.check)
    submission, kept = _submission(settings, base, observer), settings.retention
    commands = Commands(base.engine, base.clock, heads, schedule.poke, lambda j, c: background.shelf.has(j, c), observer.offers)
    background = Background(
        shop,
        base.store,
        Retention(kept.newest, kept.ended, kept.wait, kept.every),
        Verbs(submission.new_job_id, schedule.poke, commands.cancel),
        _renewals(base, machines, reports),
    )
    observer.silent_from = background.renewals.silent_from
    background.forks.again()
    _close_journal(base.engine, base.clock)
    identity = Identity(base.family, base.generation, base.provider.name, settings.store_url, limits, settings.front)
    parts = Parts(
        engine=base.engine,
        clock=base.clock,
        loop=loop,
        observer=observer,
        heads=heads,
        output=Output(base.store),
        commands=commands,
        submission=submission,
        shelf=background.shelf,
        partials=Partials(base.engine, base.store, _heard(observer)),
        images=ImageDigests(base.store),
        logins=logins,
    )
    front = _front(settings, base, (observer, loop, commands))
    service = ControllerService(identity, parts)
    return Controller(service, loop, schedule, background, front, stopped, failure, base.lock)


def _renewals(base: _Base, machines: Machines, reports: Reports) -> Renewals:
    def heard(job: str, attempt: int) -> bool | None:
        return reports.word(job, attempt) is not None if reports.listed else None

    desk = Desk(
        engine=base.engine,
        clock=base.clock,
        store=base.store,
        provider=base.provider,
        secret_of=base.key.access_secret_of,
        lead=base.leadership.check,
        left_out=machines.left_out,
        heard=heard,
    )
    return Renewals(desk)


def _front(settings: Settings, base: _Base, parts: tuple[Observer, Loop, Commands]) -> Listener:
    observer, loop, commands = parts
    ways = (lambda: loop.last_seen, observer.instance_of, lambda job: commands.resume(job, FRONT))
    sources = Sources(base.engine, base.clock, base.provider, *ways)
    own = settings.front
    doors = FrontDoors(sources, own.range, own.machines == "public")
    front = Listener(doors, own.address, own.wait, own.connections_max)
    loop.idleness.connections = front.connections
    return front


def _observer(settings: Settings, base: _Base, seen: tuple[HeadLogs, Reports], limits: Limits) -> Observer:
    own, (heads, reports) = settings.controller, seen
    listing = min(own.tick_seconds, LISTING_SECONDS)
    observer = Observer(base.engine, base.provider, reports, heads, limits, (own.offers_seconds, listing))
    observer.gpus = GpuWatch(ImageGpus(base.store, base.key.keys_of), limits.refusal_seconds)
    return observer


def _heard(observer: Observer) -> Callable[[Job, Attempt], Report | None]:
    def newest(job: Job, attempt: Attempt) -> Report | None:
        heard = observer.reports.heard(job.id, attempt.number)
        return heard.report if heard is not None else None

    return newest


def _submission(settings: Settings, base: _Base, observer: Observer) -> Submission:
    spool = settings.controller.data_dir / "uploads"
    there = base.provider.store_access("any", 1)  # as machines see it
    addresses = (OwnStore.of(settings.store_url, settings.store.options), OwnStore.of(there.url, there.options))
    places = SubmissionPorts(base.store, spool, Vault(base.key.keys_of, secrets.SOURCES), base.provider.check_inputs, addresses)
    return Submission(
        base.engine,
        base.clock,
        places,
        observer.offers,
        settings.agent.checkpoint_interval or USUAL_SECONDS,
        settings.limits.as_limits(),
    )


def _close(settings: Settings) -> None:
    """Restrict the controller's files on this host to its owner; releases before 0.3.0 left them open."""
    url = urlsplit(settings.store_url)
    folders = [settings.controller.data_dir, *([Path(unquote(url.path))] if url.scheme == "file" else [])]
    for folder in (f for f in folders if f.is_dir()):
        for path in private_files.close(folder):
            log.warning("files.closed", path=str(path), why="other users of this host could read it")
        if private_files.open_to_others(folder):
            log.warning("files.open", path=str(folder), why="other users may look into it: make it the controller's alone")


def _lock(data_dir: Path) -> int:
    try:
        return lock_state(data_dir)
    except OSError as e:
        if e.errno == 28:
            raise DiskFull(f"{data_dir}: no space left; free some, or set controller.data_dir elsewhere") from e
        raise ConfigError(
            f"controller.data_dir {data_dir} can't be used: {e.strerror}; set it to a folder you may write"
        ) from e


def _store(settings: Settings) -> CopyingStore:
    try:
        return open_for(settings)
    except OSError as e:
        raise StoreUnwritable(f"the store {settings.store_url} can't be opened: {e.strerror}; check store.url") from e
    except (ValueError, StoreError, BaseError) as e:
        raise ConfigError(f"store.url {settings.store_url!r} can't be used: {e}") from e


def _provider(settings: Settings, family: str, clock: Clock) -> Provider:
    host = ProviderHost(family, settings.controller.data_dir, settings.store_url, clock)
    make = plugins.plugin(plugins.PROVIDERS, settings.provider.name)
    return Guarded(make(settings.provider.table, host), clock)


def _policies(settings: Settings) -> Policies:
    chosen = settings.policy
    names = {POLICIES: chosen.name, PURCHASE: chosen.purchase, INTERVAL: chosen.interval}
    names |= {} if chosen.size == SIZE_OFF else {SIZE: chosen.size}
    takes = {group: {p.name for p in parameters_of(plugins.plugin(group, name))} for group, name in names.items()}

    def made(group: str) -> Any:
        """A policy made with the table of its name, without keys that only another kind of that name takes."""
        others = {p for g, some in takes.items() if names[g] == names[group] for p in some} - takes[group]
        table = chosen.table_of(names[group]).items()
        return plugins.made(group, names[group], {k: v for k, v in table if k not in others})

    asked = settings.agent.checkpoint_interval is not None  # the operator has decided
    if SIZE in names:
        made(SIZE)  # to fail at the start, not at the first job
    return Policies(made(POLICIES), made(PURCHASE), None if asked else made(INTERVAL), _sizes(settings))


def _sizes(settings: Settings) -> Sizes:
    """Size policies are made per job: the job's parameters win over the operator's table."""

    def make(name: str, parameters: Mapping[str, object]) -> Any:
        takes = {p.name for p in parameters_of(plugins.plugin(SIZE, name))}
        usual = {k: v for k, v in settings.policy.table_of(name).items() if k in takes}
        return plugins.made(SIZE, name, {**usual, **parameters})

    return Sizes(make, settings.policy.size, settings.size.as_rules())


def _publish(store: FileStore, runtime: Runtime) -> None:
    """Put the agent's runtime into the store, from which instances fetch it by its hash."""
    try:
        provision.push(store, runtime)
    except StoreFull as e:
        raise DiskFull(f"the store has no room for the agent's runtime: {e}") from e
    except StoreError as e:
        raise StoreUnwritable(f"the agent's runtime can't be stored: {e}") from e


def _logins(settings: Settings, base: _Base, observer: Observer) -> Logins:
    s = settings.ssh
    rules = LoginRules(s.user, s.key_file, s.port, s.address == "public", s.nudge)
    return Logins(rules, base.key.host_seed_of, base.engine, observer.instance_of)


def _close_journal(engine: Engine, clock: Clock) -> None:
    """Close entries that a crash left open: their rows did not move, so the first tick wants the same actions again."""
    with engine.begin() as connection:
        for number, action in journal.unfinished(connection):
            if not action.startswith("hook/"):
                log.info("journal.open", action=action)
                journal.finish(connection, number, "interrupted: left to the next tick", clock.now())
        journal.prune(connection)
