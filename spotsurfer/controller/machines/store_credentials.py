"""Hands credentials for the store to machines, and renews them before half of their life is over.

It also writes the part that user-data leaves out, until the agent has reported (see `spotsurfer_agent.store.credentials`).

The first hand-out and a renewal are the same steps: make credentials, seal them for the one attempt, write them to its object
below `access/`. Only this process remembers its hand-outs; a restarted controller hands out new ones at once, which also helps
machines with credentials that ran out meanwhile. All this runs outside the tick, because a slow answer of the cloud must not
delay a grant.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.sealed_objects import Handout, seal_handout
from spotsurfer_wire.store.port import ObjectStore, StoreError
from sqlalchemy import Engine

from spotsurfer.common.backoff import backoff_seconds
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.model.errors import ProviderError, Superseded
from spotsurfer.model.job import Attempt, AttemptState, Job
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.provider import Credentials
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline

log = structlog.get_logger()
SWEEP_SECONDS = 600.0  # how often to look for objects that an earlier controller left
AGAIN_SECONDS = (2.0, 60.0)  # after a failure: the first wait, the longest
LIFE_SECONDS_MIN = 60.0  # credentials with a shorter life are useless
# AWS limits a role that was assumed by a role to an hour ("role chaining"). The controller never relies on a longer life,
# because it computes the life with this host's clock, which may be wrong.
LIFE_SECONDS_MAX = 3600.0
RENEW_SHARE = 0.45

Key = tuple[str, int]  # job, attempt
UNHEARD = frozenset({AttemptState.REQUESTED, AttemptState.BOOTING})  # their agents may not have reported yet
# From the accepted order until the order to end: in between a machine may run that the job needs.
SERVED = frozenset(AttemptState) - {
    AttemptState.PLANNED,
    AttemptState.REFUSED,
    AttemptState.RELEASING,
    AttemptState.RELEASED,
}


@dataclass(frozen=True, slots=True)
class Issued:
    """The last credentials of one attempt, or the failure. `renew_at` is when it is its turn again.

    `good`: the times from and until which it has credentials without a gap, on our clock; None = the last try failed.
    """

    renew_at: datetime
    failures: int = 0
    said: str = ""
    good: tuple[datetime, datetime] | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """The hand-outs and removals that are due now."""

    hand_out: Sequence[Attempt]
    remove: Sequence[Key]


def due(attempts: Iterable[Attempt], issued: Mapping[Key, Issued], now: datetime) -> Turn:
    """The attempts that get credentials at `now`, the longest wait first; and those with credentials to remove.

    `attempts` are all that are not over.
    """
    alive = {(a.job, a.number): a for a in attempts}
    wanting = [a for k, a in alive.items() if a.state in SERVED and (k not in issued or now >= issued[k].renew_at)]
    first = datetime.min.replace(tzinfo=now.tzinfo)
    wanting.sort(key=lambda a: (issued[a.job, a.number].renew_at if (a.job, a.number) in issued else first, a.planned_at))
    return Turn(wanting, [k for k in issued if k not in alive])


def renewed(credentials: Credentials, now: datetime, before: Issued | None = None) -> Issued:
    """The state after a hand-out: renewal is due before half of the life is over. Raises ProviderError for a life too short."""
    life = (credentials.expires_at - now).total_seconds()
    if life < LIFE_SECONDS_MIN:
        raise ProviderError(f"the cloud made credentials that end in {life:.0f} s: is this host's clock right?")
    life = min(life, LIFE_SECONDS_MAX)
    since = before.good[0] if before is not None and before.good is not None and now < before.good[1] else now
    return Issued(now + timedelta(seconds=RENEW_SHARE * life), good=(since, now + timedelta(seconds=life)))


def failed(before: Issued | None, error: Exception, now: datetime) -> Issued:
    """The state after a failure: the next try comes after growing waits."""
    failures = (before.failures if before is not None else 0) + 1
    return Issued(now + timedelta(seconds=backoff_seconds(failures, *AGAIN_SECONDS)), failures, str(error))


@dataclass
class Renewals:
    """Hands out and renews; does nothing for machines with access that is not renewed."""

    engine: Engine
    clock: Clock
    clouds: Clouds
    store: ObjectStore
    stores: Mapping[str, ObjectStore]  # by provider: where its machines find what they are handed
    secret_of: Callable[[str, int], bytes]  # of an attempt: seals what it is handed
    lead: Callable[[], None]
    left_out: Callable[[Attempt], bytes]  # of its user-data, sealed
    heard: Callable[[str, int], bool | None]  # whether its agent has reported; None = unknown yet
    stopping: threading.Event = field(default_factory=threading.Event)
    _issued: dict[Key, Issued] = field(default_factory=dict)
    _renews: dict[Key, bool] = field(default_factory=dict)
    _redeemable: dict[Key, bool] = field(default_factory=dict)  # whether the part left out of user-data is in the store
    _swept_at: datetime | None = None

    def silent_from(self, job: str, attempt: int, now: datetime) -> datetime | None:
        """The time from which its silence is evidence: an agent without credentials can't report. None = always."""
        if not self._renews.get((job, attempt), False):
            return None
        issued = self._issued.get((job, attempt))
        if issued is None or issued.good is None or now >= issued.good[1]:
            return now
        return issued.good[0]

    def look(self) -> None:
        """One pass over all machines; a failure of one does not affect the others."""
        with self.engine.connect() as c:
            living = rows.living_attempts(c)
        alive = [a for a in living if self._store_of(a) is not None and self._renewed(a)]
        turn = due(alive, self._issued, self.clock.now())
        if turn.hand_out or turn.remove:
            self.lead()
        for attempt in alive:
            try:
                self._redeem(attempt)
            except Superseded:
                raise
            except Exception as e:
                log.warning("access.failed", job=attempt.job, attempt=attempt.number, error=f"{type(e).__name__}: {e}")
        for attempt in turn.hand_out:
            if self.stopping.is_set():
                return
            self._serve(attempt)
        self._remove(turn.remove)
        self._sweep({(a.job, a.number) for a in living})

    def _store_of(self, a: Attempt) -> ObjectStore | None:
        """Where its machine finds what it is handed; None for a provider that the settings no longer name."""
        with contextlib.suppress(ProviderError):
            return self.stores[self.clouds.at(a.pool.provider).name]
        return None

    def _renewed(self, a: Attempt) -> bool:
        key = (a.job, a.number)
        if key not in self._renews:
            self._renews[key] = self.clouds.store_access(a).renewed
        return self._renews[key]

    def _redeem(self, a: Attempt) -> None:
        """Write the part left out of user-data; remove it once the agent has reported and has it on its disk."""
        key, object_key = (a.job, a.number), object_keys.voucher_key(a.job, a.number)
        reported = a.state not in UNHEARD or self.heard(*key)
        wanted = not reported
        if a.state is AttemptState.PLANNED or reported is None or self._redeemable.get(key) is wanted:
            return
        self.lead()
        if wanted:
            self.stores[self.clouds.at(a.pool.provider).name].put(object_key, self.left_out(a))
        else:
            self.stores[self.clouds.at(a.pool.provider).name].delete([object_key])
        self._redeemable[key] = wanted

    def _serve(self, a: Attempt) -> None:
        key, now = (a.job, a.number), self.clock.now()
        before = self._issued.get(key)
        try:
            self._issued[key] = self._hand_out(a, before, now)
        except Superseded:
            raise
        except Exception as e:
            self._issued[key] = failed(before, e, now)
            log.warning("access.failed", job=a.job, attempt=a.number, error=str(e))
            if before is None or before.said != str(e):
                text = f"no credentials for the store could be handed to attempt {a.number}: {e}"
                with self.engine.begin() as c:
                    timeline.add(c, Moment(self.clock.now(), a.job, a.number, str(Kind.ALERT), text))
        else:
            log.info("access.handed", job=a.job, attempt=a.number, until=str(self._issued[key].renew_at))

    def _hand_out(self, a: Attempt, before: Issued | None, now: datetime) -> Issued:
        with self.engine.connect() as c:
            job = rows.load_job(c, a.job)
        made = self.clouds.credentials(a, inputs_of(job), self._home_of(job))
        after = renewed(made, now, before)
        life = min((made.expires_at - now).total_seconds(), LIFE_SECONDS_MAX)
        handout = Handout(dict(made.values), life, now.isoformat())
        data = seal_handout(handout, self.secret_of(a.job, a.number), a.job, a.number)
        self.stores[self.clouds.at(a.pool.provider).name].put(object_keys.handout_key(a.job, a.number), data)
        return after

    def _home_of(self, job: Job) -> str:
        """The scope of its folder, as its machines know it: a copy of a job has that of the original. Raises StoreError."""
        data = self.store.get(object_keys.spec_key(job.id)) if job.spec.home else None
        return "" if data is None else json_codec.decode(Spec, data).home_scope

    def _places(self) -> list[ObjectStore]:
        return list({id(store): store for store in self.stores.values()}.values())

    def _remove(self, keys: Sequence[Key]) -> None:
        """Remove the objects of machines that are gone, only for tidiness: their credentials expire by themselves."""
        try:
            for store in self._places():
                store.delete([f(*k) for k in keys for f in (object_keys.handout_key, object_keys.voucher_key)])
        except StoreError as e:
            log.warning("access.failed", job=None, attempt=None, error=str(e))
            return
        for key in keys:
            self._issued.pop(key, None)
            self._renews.pop(key, None)
            self._redeemable.pop(key, None)

    def _sweep(self, alive: set[Key]) -> None:
        """Remove the objects that an earlier controller wrote for machines that are gone."""
        now = self.clock.now()
        if self._swept_at is not None and now - self._swept_at < timedelta(seconds=SWEEP_SECONDS):
            return
        try:
            kept = {f(*k) for k in alive for f in (object_keys.handout_key, object_keys.voucher_key)}
            for store in self._places():
                if left := [x.key for x in store.list(object_keys.handouts_prefix()) if x.key not in kept]:
                    self.lead()
                    store.delete(left)
        except StoreError as e:
            log.warning("access.failed", job=None, attempt=None, error=str(e))
            return
        self._swept_at = now


def inputs_of(job: Job) -> list[str]:
    """Addresses in buckets that the job's machines read."""
    return [f.source for f in job.spec.fetches if f.source.startswith(("s3://", "gs://", "az://"))]
