"""Builds a controller from settings, plug-ins, store, database and clock. Only this file turns names into objects."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog
from obstore.exceptions import BaseError
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.store.obstore import ObstoreStore
from spotsurfer_wire.store.port import CopyingStore, FileStore, StoreError, StoreFull
from sqlalchemy import Engine

from spotsurfer.agent_runtime import Runtime, provision
from spotsurfer.common import plugins, private_files
from spotsurfer.common.plugins import INTERVAL, POLICIES, PURCHASE, SIZE
from spotsurfer.config.settings import Settings
from spotsurfer.controller.access import AccessControl
from spotsurfer.controller.apply import Apply
from spotsurfer.controller.checkpoints.checkpoint_api import CheckpointApi
from spotsurfer.controller.checkpoints.checkpoint_gc import CheckpointGc, CheckpointStore
from spotsurfer.controller.checkpoints.forks import Forks
from spotsurfer.controller.checkpoints.operations import Operations
from spotsurfer.controller.checkpoints.rehearsal import Rehearsals
from spotsurfer.controller.jobs.commands import FRONT, Commands
from spotsurfer.controller.jobs.end_hooks import Hooks
from spotsurfer.controller.jobs.exposed_ports import FrontDoors, Sources
from spotsurfer.controller.jobs.home_folders import HomeFolders
from spotsurfer.controller.jobs.licences import LicencePools
from spotsurfer.controller.jobs.partial_outputs import Partials
from spotsurfer.controller.jobs.rightsizing import Sizes
from spotsurfer.controller.jobs.scope_budgets import ScopeBudgets
from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.controller.jobs.submission import Submission
from spotsurfer.controller.loop import Loop, Policies
from spotsurfer.controller.machines.circuit_breaker import Guarded
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.controller.machines.gpu_facts import GpuWatch, ImageGpus
from spotsurfer.controller.machines.ssh_access import Logins
from spotsurfer.controller.machines.store_credentials import Renewals
from spotsurfer.controller.machines.user_data import Machines
from spotsurfer.controller.notifications.messages import Messages, Send, apprise_sender
from spotsurfer.controller.notifications.webhooks import Webhook, Webhooks, key_of
from spotsurfer.controller.observe import Observer
from spotsurfer.controller.reload import Reloader
from spotsurfer.controller.schedule import Repeated, Schedule
from spotsurfer.controller.service import ControllerService
from spotsurfer.core.scheduling.deadline import USUAL_SECONDS
from spotsurfer.ingress.listener import Listener
from spotsurfer.ledger.costs import Costs
from spotsurfer.model.budgets import Budget
from spotsurfer.model.errors import ConfigError, DiskFull, StoreOwned, StoreUnwritable
from spotsurfer.model.job import SIZE_OFF
from spotsurfer.model.licences import LicenceRule
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock, SystemClock
from spotsurfer.ports.policies import parameters_of
from spotsurfer.ports.provider import ProviderHost
from spotsurfer.ports.service import Moment
from spotsurfer.recovery import restore
from spotsurfer.state import journal, timeline
from spotsurfer.state.db import first_time, lock_state, new_family, open_database
from spotsurfer.store import master_key
from spotsurfer.store.agent_reports import ImageDigests, Reports
from spotsurfer.store.head_logs import HeadLogs
from spotsurfer.store.job_output import Output
from spotsurfer.store.leadership import Leadership, claim_store
from spotsurfer.store.open_store import open_for, open_place

log = structlog.get_logger()
RENEWALS_SECONDS = 5.0  # between two looks for credentials to renew
HOMES_SECONDS = 3600.0  # between two looks for folders in which nobody works any more
TIDY_SECONDS = 5.0  # between two looks for rehearsals that are over
LICENCES_SECONDS = 1.0  # between two looks for pools to count
MESSAGES_SECONDS, WEBHOOKS_SECONDS = 5.0, 1.0  # between two looks for news
LISTING_SECONDS = 2.0  # at least between two listings of the cloud: looks in quick succession concern the store


LIMITS_OF_OTHERS = ("advice_moves", "keeps", "gpus_shared", "checkpoint_seconds")  # of the clouds, and of [agent]


@dataclass
class Controller:
    """Everything of one controller process."""

    service: ControllerService
    loop: Loop
    schedule: Schedule
    background: list[Repeated]
    operations: Operations
    front: Listener
    access: AccessControl
    reloader: Reloader
    stopped: threading.Event
    failure: list[BaseException]
    _lock: int

    def start(self) -> None:
        """Begin to tick."""
        self.schedule.start()
        for one in self.background:
            one.start()
        self.front.start()

    def stop(self) -> None:
        """End after the tick under way; jobs and machines go on without us."""
        self.front.stop()
        self.operations.stop()
        for one in self.background:
            one.stop()
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


def _build(settings: Settings, lock: int) -> Controller:  # noqa: PLR0915 - one statement a part, in the order of their needs
    own = settings.controller
    if restore.finish(settings):
        log.warning("restore.finished", why="it was cut off just before its end")
    runtime = provision.ready(settings, lambda line: log.info("runtime.building", step=line))
    clock = SystemClock()
    engine = open_database(own.data_dir / "state.db")
    family = new_family(engine)
    store = _store(settings)
    _close(settings)
    key = master_key.load(settings.key_path, settings.checkpoint.encrypt)
    claim_store(store, family, settings.store_url, key.fingerprint)
    clouds = _clouds(settings, family, clock)
    boots = _boots(settings, clouds, family)
    for place in (store, *boots.values()):
        _publish(place, runtime)
    leadership = Leadership(store, clock)
    generation = leadership.take()
    heads, reports = HeadLogs(store), Reports(store, clock.now, own.tick_seconds)
    limits = replace(
        settings.limits.as_limits(),
        advice_moves=clouds.having(lambda c: c.rebalance == "move"),
        gpus_shared=clouds.having(lambda c: c.shares_gpus),
        keeps=clouds.having(lambda c: c.keeps),
        checkpoint_seconds=settings.agent.checkpoint_interval,
    )

    pace = (own.offers_seconds, min(own.tick_seconds, LISTING_SECONDS))
    observer = Observer(engine, clouds, reports, heads, limits, pace)
    observer.costs = _costs(settings, engine, clouds, clock)
    observer.gpus = GpuWatch(ImageGpus(store, key.keys_of), limits.refusal_seconds)
    logins = Logins(settings.ssh, key.host_seed_of, engine, observer.instance_of)
    machines = Machines(settings, engine, clouds, key, runtime.sha256, logins)
    renewals = Renewals(
        engine=engine,
        clock=clock,
        clouds=clouds,
        store=store,
        stores={p.name: boots.get(p.name, store) for p in clouds},
        secret_of=key.access_secret_of,
        lead=leadership.check,
        left_out=machines.left_out,
        heard=lambda job, attempt: reports.word(job, attempt) is not None if reports.listed else None,
    )
    observer.silent_from = renewals.silent_from
    renewing = Repeated("renewals", renewals.look, RENEWALS_SECONDS, "access.failed", renewals.stopping, at_once=True)
    hooks = Hooks(engine, clock, settings.hooks.on_end)
    shared = tuple(str(path) for path in settings.shared.paths)
    homes = HomeFolders(engine, store, own.data_dir / "uploads", shared)
    apply = Apply(
        engine=engine,
        clouds=clouds,
        store=store,
        heads=heads,
        clock=clock,
        family=family,
        user_data=machines.user_data,
        orders=machines,
        on_end=hooks.on_end,
        instance_of=observer.instance_of,
        launched=renewing.poke,
        spent=lambda job: observer.costs.of_job(job),  # a reload of [costs] puts others in their place
        nudge=logins.nudge,
        follow=homes.follow,
        first_cooldown_seconds=settings.limits.cooldown_seconds,
        lease_seconds=limits.lease_seconds,
    )
    loop = Loop(engine, observer, apply, _policies(settings), clock, leadership)
    stopped, failure = threading.Event(), list[BaseException]()

    def fatal(error: BaseException) -> None:
        failure.append(error)
        stopped.set()

    scope_budgets = ScopeBudgets(engine, clock, lambda: observer.costs, lambda: schedule.poke(), _budgets(settings))
    observer.budgets = scope_budgets.seen
    licences = LicencePools(engine, clock, lambda: loop.last_seen, lambda: schedule.poke(), _licences(settings))
    observer.licences = licences.seen
    reloader = Reloader(settings, lambda text: _say(engine, clock, text))
    schedule = Schedule(loop.tick, (own.tick_seconds, own.hurry_seconds), fatal)
    hooks.again()

    checkpoints = CheckpointStore(engine, clock, store, heads, key.keys_of, leadership.check)
    views = clouds.views_of_store()
    own_stores = [(settings.store_url, settings.store.options), *((v.url, v.options) for v in views)]
    own_stores += [(v.boot.url, v.boot.options) for v in views if v.boot is not None]
    submission = Submission(
        engine=engine,
        clock=clock,
        store=store,
        spool_dir=own.data_dir / "uploads",
        vault=Vault(key.keys_of, lambda kind: plugins.plugin(plugins.SECRETS, kind)),
        check_rights=clouds.check_inputs,
        offers=observer.offers,
        interval_seconds=settings.agent.checkpoint_interval or USUAL_SECONDS,
        addresses=tuple(OwnStore.of(*place) for place in own_stores),
        limits=settings.limits.as_limits(),
        kill_wait_seconds=settings.limits.kill_wait_seconds,
        check_licences=licences.check,
        shared=shared,
    )
    apply.ready = submission.specifications.ready
    commands = Commands(engine, clock, heads, schedule.poke, checkpoints.has, observer.offers)
    collection = CheckpointGc(checkpoints, settings.retention)
    forks = Forks(checkpoints, collection, submission.new_job_id, schedule.poke)
    rehearsals = Rehearsals(checkpoints, forks, collection, commands.cancel)
    operations = Operations()
    ended = settings.retention.ended
    background = [
        Repeated("keeper", collection.look, settings.retention.every, "keeper.failed", collection.stopping),
        renewing,
        Repeated("tidy", rehearsals.tidy, TIDY_SECONDS, "keeper.failed"),
        Repeated("licences", licences.look, LICENCES_SECONDS, "licences.failed", licences.stopping, at_once=True),
        Repeated("homes", lambda: homes.tidy(clock.now(), timedelta(seconds=ended)), HOMES_SECONDS, "keeper.failed"),
    ]
    messages = Messages(engine, clock, settings.notify.as_rules(), _send(settings))
    webhooks = Webhooks(engine, clock, _webhooks(settings))
    background += [
        Repeated("messages", messages.look, MESSAGES_SECONDS, "notify.failed"),
        Repeated("webhooks", webhooks.look, WEBHOOKS_SECONDS, "webhook.failed"),
    ]
    forks.again()
    _close_journal(engine, clock)
    ways = (lambda: loop.last_seen, observer.instance_of, lambda job: commands.resume(job, FRONT))
    doors = FrontDoors(Sources(engine, clock, clouds, *ways), settings.front.range, settings.front.machines == "public")
    front = Listener(doors, settings.front.address, settings.front.wait, settings.front.connections_max)
    loop.idleness.connections = front.connections
    service = ControllerService(
        family=family,
        generation=generation,
        provider=", ".join(p.name for p in clouds),
        store_url=settings.store_url,
        limits=limits,
        front=settings.front,
        engine=engine,
        clock=clock,
        loop=loop,
        observer=observer,
        heads=heads,
        stored_output=Output(store),
        commands=commands,
        submission=submission,
        checkpoint_api=CheckpointApi(checkpoints, collection, forks, rehearsals, operations),
        partials=Partials(engine, store, reports),
        homes=homes,
        images=ImageDigests(store),
        logins=logins,
        scope_budgets=scope_budgets,
        licence_pools=licences,
        reloader=reloader,
    )
    access = AccessControl(engine, clock)
    _reload(reloader, service, hooks, collection, lambda new: _costs(new, engine, clouds, clock))
    _reload_notifications(reloader, messages, webhooks)
    return Controller(service, loop, schedule, background, operations, front, access, reloader, stopped, failure, lock)


def _budgets(settings: Settings) -> list[Budget]:
    return [b.as_budget() for b in settings.budgets]


def _licences(settings: Settings) -> list[LicenceRule]:
    return [table.as_rule(kind) for kind, table in settings.licences.items()]


def _say(engine: Engine, clock: Clock, text: str) -> None:
    with engine.begin() as connection:
        timeline.add(connection, Moment(clock.now(), None, None, str(Kind.CONTROLLER), text))


def _reload_notifications(reloader: Reloader, messages: Messages, webhooks: Webhooks) -> None:
    def told(new: Settings) -> Callable[[], None]:
        rules, send, hooks = new.notify.as_rules(), _send(new), _webhooks(new)

        def begin() -> None:
            messages.rules, messages.send, webhooks.hooks = rules, send, hooks

        return begin

    reloader.on({f"notify.{key}" for key in type(reloader.settings.notify).model_fields}, told)


# Machines that run know these, or objects were made with them.
OF_START = frozenset({"limits.lease_seconds", "limits.refusal_seconds"})


def _reload(
    reloader: Reloader,
    service: ControllerService,
    hooks: Hooks,
    collection: CheckpointGc,
    costs: Callable[[Settings], Costs],
) -> None:
    """What may change while the controller runs; see `Reloader`. The front door of the API adds its own."""
    observer, apply, submission = service.observer, service.loop.apply, service.submission

    def limits(new: Settings) -> Callable[[], None]:
        stays = {f: getattr(observer.limits, f) for f in ("lease_seconds", "refusal_seconds", *LIMITS_OF_OTHERS)}
        wanted, asked = replace(new.limits.as_limits(), **stays), new.limits

        def begin() -> None:
            observer.limits = service.limits = wanted
            submission.limits = asked.as_limits()
            apply.first_cooldown_seconds = asked.cooldown_seconds
            service.commands.poke()

        return begin

    def budgets(new: Settings) -> Callable[[], None]:
        wanted = _budgets(new)

        def begin() -> None:
            service.scope_budgets.configured = wanted
            service.commands.poke()

        return begin

    def licences(new: Settings) -> Callable[[], None]:
        wanted = _licences(new)

        def begin() -> None:
            service.licence_pools.rules = wanted
            service.commands.poke()

        return begin

    def prices(new: Settings) -> Callable[[], None]:
        wanted = costs(new)
        with service.engine.connect() as connection:
            wanted.refresh(connection, {}, service.clock.now())
        return lambda: setattr(observer, "costs", wanted)

    def of(section: str) -> set[str]:
        return {f"{section}.{key}" for key in type(getattr(reloader.settings, section)).model_fields}

    reloader.on(of("limits") - OF_START, limits)
    reloader.on({"budgets"}, budgets)
    reloader.on({"licences"}, licences)
    reloader.on(of("costs"), prices)
    reloader.on({"hooks.on_end"}, lambda new: lambda: setattr(hooks, "for_all", tuple(new.hooks.on_end)))
    reloader.on(
        of("retention") - {"retention.every", "retention.wait"},
        lambda new: lambda: setattr(collection, "retention", new.retention),
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


def _costs(settings: Settings, engine: Engine, clouds: Clouds, clock: Clock) -> Costs:
    """What was spent so far. The controller's host costs since the first controller here that knew its price."""
    own = settings.costs
    since = first_time(engine, "controller-costs-since", clock.now()) if own.controller_usd_per_hour else None
    rules = clouds.rules([o.as_override() for o in own.overrides], own.controller_usd_per_hour)
    return Costs(rules, [i.as_image() for i in own.images], since)


def _send(settings: Settings) -> Send | None:
    """What sends messages; None if nobody asked. Raises ConfigError."""
    addresses = settings.notify.addresses()
    return apprise_sender(addresses) if addresses else None


def _webhooks(settings: Settings) -> list[Webhook]:
    return [Webhook(w.url, key_of(w.secret()), w.kinds) for w in settings.notify.webhooks]


def _clouds(settings: Settings, family: str, clock: Clock) -> Clouds:
    host = ProviderHost(family, settings.controller.data_dir, settings.store_url, clock)
    makers = {name: plugins.plugin(plugins.PROVIDERS, name) for name in settings.provider.names}
    providers = (Guarded(make(settings.provider.table_of(name), host), clock) for name, make in makers.items())
    return Clouds(providers, settings.store_url, settings.store.region)


def _boots(settings: Settings, clouds: Clouds, family: str) -> dict[str, ObstoreStore]:
    """The buckets in which machines begin whose own rights don't reach the store, by provider; each is ours alone."""
    found = {}
    for name, boot in ((p.name, p.boot) for p in clouds):
        if boot is None:
            continue
        try:
            found[name] = open_place(settings, boot.url, boot.options)
            claim_store(found[name], family, boot.url)
        except (ValueError, StoreError, BaseError, StoreOwned, StoreUnwritable) as e:
            raise ConfigError(f"[provider.{name}] boot_url {boot.url!r} can't be used: {e}") from e
    return found


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


def _close_journal(engine: Engine, clock: Clock) -> None:
    """Close entries that a crash left open: their rows did not move, so the first tick wants the same actions again."""
    with engine.begin() as connection:
        for number, action in journal.unfinished(connection):
            if not action.startswith("hook/"):
                log.info("journal.open", action=action)
                journal.finish(connection, number, "interrupted: left to the next tick", clock.now())
        journal.prune(connection)
