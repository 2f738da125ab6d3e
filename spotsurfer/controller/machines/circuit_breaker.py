"""A circuit breaker around a provider: it stops calls to an API that keeps failing, for longer each time.

A clear refusal (no capacity, a quota, a wrong order) shows that the API works and is no failure here: pools have their own
cool-downs. Failures are throttling, inconclusive errors, and bad credentials. Each kind of call has a breaker of its own, and
orders have one for each pool, because throttled launches must not keep machines from being ended.

A breaker opens after some failures in a row; while it is open it lets no call through. Then it lets one call through, which
closes the breaker or opens it for longer. Orders take turns at that, so that one that can't succeed does not block the others.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from spotsurfer.common.backoff import backoff_seconds
from spotsurfer.model.errors import (
    CredentialsExpired,
    Invalid,
    NoCapacity,
    ProviderDenied,
    ProviderError,
    QuotaExceeded,
    Throttled,
)
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Offer
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.provider import (
    BootBucket,
    Capabilities,
    Credentials,
    InstanceView,
    LaunchPlan,
    Listing,
    Provider,
    QueueMessage,
    StoreAccess,
    Witness,
)

FAILURES_MAX = 3  # in a row; the next call is not made
FIRST_SECONDS = 5.0
LONGEST_SECONDS = 300.0
TURN_SECONDS = 30.0  # a caller that does not use its turn within this time loses it
CLEAR = (NoCapacity, QuotaExceeded, Invalid)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Breaker:
    """State of one kind of call. `until`: when the next call may be tried; `queue`: waiting callers, the next one first."""

    failures: int = 0
    until: datetime | None = None
    reason: str = ""
    queue: tuple[str, ...] = ()

    def closed(self, who: str, now: datetime) -> bool:
        """Whether this caller may make a call now."""
        if self.until is None:
            return True
        theirs = self.queue and self.queue[0] != who and now < self.until + timedelta(seconds=TURN_SECONDS)
        return now >= self.until and not theirs

    def waited(self, who: str) -> Breaker:
        """The state after a call that was not made."""
        return self if who in self.queue else replace(self, queue=(*self.queue, who))

    def failed(self, who: str, error: ProviderError, now: datetime) -> Breaker:
        """The state after one more failure."""
        failures = self.failures + 1
        if failures < FAILURES_MAX:
            return Breaker(failures)
        wait = backoff_seconds(failures - FAILURES_MAX + 1, FIRST_SECONDS, LONGEST_SECONDS)
        # A caller that lost its turn goes to the end of the queue.
        waiting = self.queue[self.queue.index(who) + 1 :] if who in self.queue else self.queue
        return Breaker(failures, now + timedelta(seconds=wait), str(error), (*waiting, who))


def failure(error: ProviderError) -> bool:
    """Whether the error shows a problem of the API and not of the request."""
    if isinstance(error, CredentialsExpired):
        return True
    return not isinstance(error, (*CLEAR, ProviderDenied))


class Guarded:
    """A provider that wraps another one; while a breaker is open it raises ProviderError instead of calling."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}
        self.name: str = provider.name
        self.witness: Witness | None = None if provider.witness is None else _GuardedWitness(provider.witness, self)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the provider, as they are now."""
        return self._provider.capabilities

    @property
    def boot(self) -> BootBucket | None:
        """See Provider."""
        return self._provider.boot

    def call(self, kind: str, what: Callable[[], T], who: str = "") -> T:
        """Make a call of this kind, or raise Throttled with its last error. `who` takes turns with other callers."""
        now = self._clock.now()
        breaker = self._breakers.get(kind, Breaker())
        if not breaker.closed(who, now):
            assert breaker.until is not None
            self._breakers[kind] = breaker.waited(who)
            left = max((breaker.until - now).total_seconds(), 0.0)
            raise Throttled(f"{kind} failed {breaker.failures} times and rests for {left:.0f} s more: {breaker.reason}")
        try:
            answer = what()
        except ProviderError as e:
            if failure(e):
                self._breakers[kind] = breaker.failed(who, e, now)
                raise
            self._breakers.pop(kind, None)
            raise
        self._breakers.pop(kind, None)
        return answer

    def offers(self) -> Sequence[Offer]:
        """See Provider."""
        return self.call("offers", self._provider.offers)

    def launch(self, plan: LaunchPlan) -> InstanceView:
        """See Provider."""
        return self.call(f"launch in {plan.pool}", lambda: self._provider.launch(plan), plan.token)

    def terminate(self, instance: InstanceId) -> None:
        """See Provider."""
        self.call("terminate", lambda: self._provider.terminate(instance))

    def describe(self) -> Listing:
        """See Provider."""
        return self.call("describe", self._provider.describe)

    def outlet(self, instance: InstanceId) -> socket.socket:
        """See Provider."""
        return self._provider.outlet(instance)

    def store_access(self, job: str, attempt: int, machine: str = "") -> StoreAccess:
        """See Provider."""
        return self._provider.store_access(job, attempt, machine) if machine else self._provider.store_access(job, attempt)

    def check_inputs(self, job: str, inputs: Sequence[str]) -> None:
        """See Provider."""
        self._provider.check_inputs(job, inputs)

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        """See Provider."""
        return self.call("credentials", lambda: self._provider.credentials(job, attempt, inputs, home))


class _GuardedWitness:
    def __init__(self, witness: Witness, guarded: Guarded) -> None:
        self._witness = witness
        self._guarded = guarded

    def read(self) -> Sequence[QueueMessage]:
        return self._guarded.call("witness", self._witness.read)

    def settle(self, letters: Sequence[QueueMessage]) -> None:
        self._guarded.call("settle", lambda: self._witness.settle(letters))
