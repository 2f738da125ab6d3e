"""The duties of every provider, as functions that any provider's tests can run.

A test makes a `Bench` for its provider and calls each function of `CHECKS` with it. A function raises AssertionError
with a sentence if the provider breaks the contract of `spotsurfer.ports.provider`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from spotsurfer_wire.store.obstore import has_credentials

from spotsurfer.model.errors import Invalid, ProviderError
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market, Pool
from spotsurfer.ports.provider import InstanceState, InstanceView, LaunchPlan, Provider

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Bench:
    """A provider under test. `wait_seconds`: how long a change may take to show in a listing."""

    provider: Provider
    user_data: str = "#!/bin/sh\nsleep 1000\n"
    tags: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 30.0

    def plan(self, token: str | None = None) -> LaunchPlan:
        """An order for the first offer on the spot market."""
        offer = next(o for o in self.provider.offers() if o.market is Market.SPOT)
        return LaunchPlan(token or secrets.token_hex(16), offer.pool, offer.market, self.user_data, self.tags)

    def find(self, instance: InstanceId) -> InstanceView | None:
        """The instance in a fresh listing."""
        return next((v for v in self.provider.describe().instances if v.id == instance), None)

    def wait(self, instance: InstanceId, good: Callable[[InstanceView], bool], what: str) -> InstanceView:
        """The instance as soon as `good`; an AssertionError if that takes too long."""
        until = time.monotonic() + self.wait_seconds
        while True:
            view = self.find(instance)
            if view is not None and good(view):
                return view
            assert time.monotonic() < until, f"{instance} was not {what} after {self.wait_seconds} s, but {view}"
            time.sleep(_POLL_SECONDS)

    def wait_gone(self, instance: InstanceId) -> InstanceView:
        """The instance after its end."""
        return self.wait(instance, lambda v: v.state is InstanceState.GONE, "gone")


def offers_are_sound(bench: Bench) -> None:
    """There are offers, each once, with prices and sizes; spot is never dearer than ten times on-demand."""
    offers = bench.provider.offers()
    assert offers, "there are no offers"
    assert len({(o.pool, o.market) for o in offers}) == len(offers), "an offer is there twice"
    for o in offers:
        assert o.pool.provider == bench.provider.name, f"{o.pool} belongs to another provider"
        assert 0 < o.price_usd_micros_per_hour <= 10 * o.list_price_usd_micros_per_hour, f"{o} has no sound price"
        assert o.cpus > 0 and o.memory_bytes > 0, f"{o} has no size"


def launched_is_listed(bench: Bench) -> None:
    """The result of a launch shows in a complete listing, with token, pool, market and tags, and comes up."""
    plan = bench.plan()
    view = bench.provider.launch(plan)
    try:
        seen = bench.wait(view.id, lambda v: v.state is InstanceState.RUNNING, "running")
        assert (seen.token, seen.pool, seen.market) == (plan.token, plan.pool, plan.market), f"{seen} is not what was ordered"
        assert dict(plan.tags).items() <= dict(seen.tags).items(), "tags are missing"
        assert seen.launched_at.tzinfo is not None, "launched_at has no zone"
        assert seen.ended_at is None and not seen.reclaimed, f"{seen} has ended"
        assert bench.provider.describe().complete, "the listing is not complete"
    finally:
        bench.provider.terminate(view.id)
    bench.wait_gone(view.id)


def same_token_same_instance(bench: Bench) -> None:
    """A repeated token yields the same instance; another token another one."""
    plan = bench.plan()
    first = bench.provider.launch(plan)
    try:
        assert bench.provider.launch(plan).id == first.id, "a token yielded two instances"
        assert sum(v.token == plan.token for v in bench.provider.describe().instances) == 1, "a token is listed twice"
        other = bench.provider.launch(bench.plan())
        bench.provider.terminate(other.id)
        assert other.id != first.id, "two tokens yielded one instance"
        bench.wait_gone(other.id)
    finally:
        bench.provider.terminate(first.id)
    bench.wait_gone(first.id)


def ended_token_yields_ended_instance(bench: Bench) -> None:
    """The token of an ended instance yields that one, never a second."""
    plan = bench.plan()
    view = bench.provider.launch(plan)
    bench.provider.terminate(view.id)
    gone = bench.wait_gone(view.id)
    again = bench.provider.launch(plan)
    assert again.id == view.id, "an ended token yielded a second instance"
    assert again.state is InstanceState.GONE, f"an ended instance came back as {again.state}"
    assert gone.ended_at is not None and gone.ended_at >= gone.launched_at, f"{gone} does not say when it ended"
    assert not gone.reclaimed, "an instance that we ended counts as reclaimed"


def terminate_is_harmless(bench: Bench) -> None:
    """Ending twice, ending an ended one and ending an unknown one are no errors; an end is final."""
    view = bench.provider.launch(bench.plan())
    bench.provider.terminate(view.id)
    bench.provider.terminate(view.id)
    gone = bench.wait_gone(view.id)
    bench.provider.terminate(view.id)
    bench.provider.terminate(InstanceId(view.id[:-1] + ("0" if view.id[-1] != "0" else "1")))
    assert bench.find(view.id) == gone, "an ended instance changed"


def wrong_orders_are_invalid(bench: Bench) -> None:
    """A pool that does not exist and user-data that is too long are refused with one of our errors, and leave nothing."""
    plan = bench.plan()
    nowhere = replace(plan, pool=Pool(bench.provider.name, plan.pool.region, plan.pool.zone, "no.such"))
    for wrong in (nowhere, replace(plan, user_data="#!/bin/sh\n" + "#" * (16 << 10))):
        try:
            bench.provider.launch(wrong)
        except Invalid:
            pass
        except ProviderError as e:
            raise AssertionError(f"a wrong order raised {type(e).__name__}, not Invalid") from e
        else:
            raise AssertionError("a wrong order was taken")
    assert all(v.token != plan.token for v in bench.provider.describe().instances), "a refused order left an instance"


def store_access_is_complete(bench: Bench) -> None:
    """An instance receives the store's address, as text only."""
    access = bench.provider.store_access("some-job", 1)
    assert "://" in access.url, "the store has no URL"
    assert all(isinstance(v, str) for v in access.options.values()), "an option is not text"
    assert access == bench.provider.store_access("some-job", 1), (
        "a second question has another answer: repeated orders would differ"
    )
    if not access.renewed:
        return
    assert not has_credentials(access.options), "credentials that are renewed are in user-data too"
    given = bench.provider.credentials("some-job", 1, ())
    assert given.values and all(isinstance(v, str) for v in given.values.values()), "credentials are not text"
    assert not any(v in repr(given) for v in given.values.values()), "credentials can be printed"


CHECKS: tuple[Callable[[Bench], None], ...] = (
    offers_are_sound,
    launched_is_listed,
    same_token_same_instance,
    ended_token_yields_ended_instance,
    terminate_is_harmless,
    wrong_orders_are_invalid,
    store_access_is_complete,
)
