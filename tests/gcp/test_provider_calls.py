"""What the provider gcp orders, and what it makes of answers: lost, late, partial and bad ones."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from pathlib import Path

import pytest
from google.auth.exceptions import DefaultCredentialsError, TransportError
from spotsurfer_providers.gcp import provider as gcp_provider
from spotsurfer_providers.gcp.error_codes import translated
from spotsurfer_providers.gcp.provider import GcpProvider
from structlog.testing import capture_logs
from support import gcp
from support.gce.document import document
from support.gce.errors import Refused
from support.gce.server import TestGce
from support.provider_contract import Bench

from spotsurfer.controller.machines.circuit_breaker import Guarded
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
from spotsurfer.model.market import Gpus, Market
from spotsurfer.ports.clock import ManualClock, SystemClock
from spotsurfer.ports.provider import InstanceState, InstanceView, LaunchPlan

INSERT, LIST = "compute.instances.insert", "compute.instances.aggregatedList"


def plan(of: GcpProvider, market: Market = Market.SPOT, kind: str = "n2-standard-4", zone: str = "us-central1-a") -> LaunchPlan:
    offer = next(o for o in of.offers() if (o.market, o.pool.instance_type, o.pool.zone) == (market, kind, zone))
    return LaunchPlan(secrets.token_hex(16), offer.pool, market, "#!/bin/sh\n", {"spotsurfer:job": "a"})


def gone(of: GcpProvider, view: InstanceView) -> InstanceView:
    return Bench(of, wait_seconds=5.0).wait_gone(view.id)


def test_a_spot_vm_is_deleted_with_its_disk_and_asks_for_the_early_notice(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    wanted = plan(of)
    of.launch(wanted)
    (vm,) = gce.cloud.vms.values()
    assert vm.body["scheduling"] == {
        "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE", "automaticRestart": False,
        "onHostMaintenance": "TERMINATE", "preemptionNoticeDuration": {"seconds": "120"},
    }  # fmt: skip
    assert [d["autoDelete"] for d in vm.body["disks"]] == [True]
    assert of.capabilities.notice_seconds == 120.0


def test_where_google_knows_no_early_notice_the_order_goes_without_and_it_is_said(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    gce.cloud.early_notice = False
    with capture_logs() as said:
        of.launch(plan(of))
        of.launch(plan(of))
    assert [e["event"] for e in said] == ["early_notice.refused"]
    assert Counter(gce.calls)[INSERT] == 3
    assert Guarded(of, SystemClock()).capabilities.notice_seconds == of.capabilities.notice_seconds == 30.0
    told = [{i["key"]: i["value"] for i in vm.body["metadata"]["items"]} for vm in gce.cloud.vms.values()]
    assert [t["spotsurfer-notice-seconds"] for t in told] == ["30", "30"]


def test_a_standard_vm_stays(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path, notice_seconds=0)
    view = of.launch(plan(of, Market.ON_DEMAND))
    (vm,) = gce.cloud.vms.values()
    assert vm.body["scheduling"]["provisioningModel"] == "STANDARD"
    assert (view.market, of.capabilities.notice_seconds) == (Market.ON_DEMAND, 30.0)


def test_offers_are_of_allowed_types_in_zones_of_ours_with_gpus_and_prices_of_each_region(gce: TestGce, tmp_path: Path) -> None:
    offers = gcp.provider(gce, tmp_path).offers()
    assert {o.pool.instance_type for o in offers} == {"n2-standard-2", "n2-standard-4", "g2-standard-4"}
    assert {o.pool.region for o in offers} == {"us-central1", "europe-west4"}
    gpus = {o.gpus for o in offers if o.pool.instance_type == "g2-standard-4"}
    assert gpus == {Gpus("l4", 1, 24 << 30)}
    prices = {
        o.pool.region: o.price_usd_micros_per_hour
        for o in offers
        if o.market is Market.ON_DEMAND and "2-standard-2" in o.pool.instance_type
    }
    assert prices == {"us-central1": 97118, "europe-west4": 106_916}


def test_advice_on_capacity_is_a_placement_score_asked_once_an_hour(gce: TestGce, tmp_path: Path) -> None:
    gce.cloud.obtainability = {"us-central1-a": 0.0, "us-central1-b": 1.0}
    gce.answers["compute.advice.capacity"] = [Refused(403, "forbidden", "no")]  # of the first zone that is asked for
    of = gcp.provider(gce, tmp_path, placement_scores=True)
    for _ in range(2):
        scores = {o.pool.zone: o.placement_score for o in of.offers() if o.market is Market.SPOT}
        assert scores == {"us-central1-a": None, "us-central1-b": 10, "europe-west4-a": 5}, "advice is never needed"
    assert {o.placement_score for o in of.offers() if o.market is Market.ON_DEMAND} == {None}
    assert Counter(gce.calls)["compute.advice.capacity"] == 3


def test_a_lost_answer_of_insert_gives_one_vm(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    wanted = plan(of)
    gce.answers[INSERT] = [None]
    with pytest.raises(ProviderError):
        of.launch(wanted)
    again = gcp.provider(gce, tmp_path).launch(wanted)
    assert [v.token for v in of.describe().instances] == [again.token] == [wanted.token]
    assert len(gce.cloud.vms) == 1


def test_an_order_that_google_forgot_is_known_by_its_name(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    first = of.launch(wanted := plan(of))
    gce.cloud.requests.clear()
    assert gcp.provider(gce, tmp_path).launch(wanted).id == first.id
    assert len(gce.cloud.vms) == 1


def test_a_zone_without_capacity_is_told_by_the_operation(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    gce.cloud.exhausted.add(("us-central1-a", "n2-standard-4"))
    with pytest.raises(
        NoCapacity, match="ZONE_RESOURCE_POOL_EXHAUSTED: The zone 'projects/lab-123456/zones/us-central1-a' does not"
    ):
        of.launch(plan(of))
    assert of.launch(plan(of, zone="us-central1-b")).pool.zone == "us-central1-b"
    assert len(gce.cloud.vms) == 1


def test_an_order_that_failed_can_be_repeated(gce: TestGce, tmp_path: Path) -> None:
    """Google shows the failed operation again to whoever asks with the same `requestId`."""
    of = gcp.provider(gce, tmp_path)
    wanted = plan(of)
    gce.cloud.exhausted.add((wanted.pool.zone, wanted.pool.instance_type))
    for _ in range(2):
        with pytest.raises(NoCapacity):
            of.launch(wanted)
    gce.cloud.exhausted.clear()
    assert of.launch(wanted).token == wanted.token
    assert len(gce.cloud.vms) == 1


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (403, "quotaExceeded", QuotaExceeded),
        (403, "rateLimitExceeded", Throttled),
        (429, "rateLimitExceeded", Throttled),
        (403, "forbidden", ProviderDenied),
        (400, "invalid", Invalid),
        (404, "notFound", Invalid),
        (400, "resourceNotReady", ProviderError),
        (503, "backendError", ProviderError),
        (500, "internalError", ProviderError),
    ],
)
def test_refusals(status: int, reason: str, kind: type[ProviderError], gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    wanted = plan(of)
    gce.answers[INSERT] = [Refused(status, reason, "No such luck.")]
    with pytest.raises(ProviderError, match=f"insert .*{reason}: .*No such luck") as e:
        of.launch(wanted)
    assert type(e.value) is kind
    assert Counter(gce.calls)[INSERT] == 1, "an order is sent once"


def test_a_preemption_is_told_from_a_deletion_and_neither_is_listed_by_google(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    taken, ended = of.launch(plan(of)), of.launch(plan(of))
    gce.cloud.preempt(taken.id.partition(".")[0], taken.pool.zone)
    of.terminate(ended.id)
    views = gone(of, taken), gone(of, ended)
    assert [v.reclaimed for v in views] == [True, False]
    assert all(v.ended_at is not None and v.ended_at >= v.launched_at for v in views)


def test_a_vm_that_switched_itself_off_is_there_until_it_is_ended(gce: TestGce, tmp_path: Path) -> None:
    """Its disk costs: it must not look as if it were gone."""
    of = gcp.provider(gce, tmp_path)
    view = of.launch(plan(of))
    (vm,) = gce.cloud.vms.values()
    gce.cloud._changed(vm, "powered-off")
    assert [(v.id, v.state) for v in of.describe().instances] == [(view.id, InstanceState.STOPPING)]
    of.terminate(view.id)
    assert not gone(of, view).reclaimed and not gce.cloud.vms


def test_an_image_that_an_operation_misses_is_a_wrong_setting(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    gce.cloud.fails_later = "RESOURCE_NOT_FOUND", "The resource 'projects/x/global/images/y' was not found"
    with pytest.raises(Invalid, match="images/y"):
        of.launch(plan(of))


def test_an_order_that_is_not_seen_yet_is_no_vm_that_has_ended(
    gce: TestGce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = gcp.provider(gce, tmp_path)
    monkeypatch.setattr(gcp_provider, "ORDER_SECONDS", 0.3)
    gce.cloud.order_seconds = 2.0
    gce.answers["compute.instances.get"] = [Refused(404, "notFound", "not yet")]
    wanted = plan(of)
    with pytest.raises(ProviderError, match="not there yet"):
        of.launch(wanted)
    assert of.launch(wanted).state is not InstanceState.GONE
    assert len(gce.cloud.vms) == 1


def test_one_of_which_google_tells_no_end_is_neither_there_nor_gone(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    view = of.launch(plan(of))
    vm = gce.cloud.vms.pop((view.id.partition(".")[0], view.pool.zone))
    assert of.describe().instances == []
    gce.cloud.vms[view.id.partition(".")[0], view.pool.zone] = vm  # the listing lagged
    assert [v.id for v in of.describe().instances] == [view.id]


def test_ends_that_cant_be_asked_for_make_the_listing_incomplete(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    view = of.launch(plan(of))
    gce.cloud.preempt(view.id.partition(".")[0], view.pool.zone)
    gce.answers["compute.globalOperations.aggregatedList"] = [Refused(403, "forbidden", "no")] * 3
    wait = time.monotonic() + 5
    while (listing := of.describe()).complete:
        assert time.monotonic() < wait
    assert listing.instances == []
    gce.answers.clear()
    assert gone(of, view).reclaimed


def test_one_of_which_google_tells_no_end_has_ended_after_a_while(gce: TestGce, tmp_path: Path) -> None:
    """Else each listing would ask for it, until the controller ends."""
    clock = ManualClock(SystemClock().now())
    of = gcp.provider(gce, tmp_path, clock=clock)
    view = of.launch(plan(of))
    gce.cloud.vms.clear()
    assert [v.id for v in of.describe().instances] == []
    clock.advance(601)
    (ended,) = of.describe().instances
    assert (ended.id, ended.state, ended.reclaimed) == (view.id, InstanceState.GONE, False)
    gce.calls.clear()
    of.describe()
    assert gce.calls == [LIST]


def test_an_order_that_fails_late_has_ended_as_if_google_had_taken_it(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    gce.cloud.order_seconds = 0.5
    of_zone = plan(of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcp_provider, "ORDER_SECONDS", 0.01)
        seen = of.launch(of_zone)
    operation = next(o for o in gce.cloud.operations if o.kind == "insert")
    operation.error = "ZONE_RESOURCE_POOL_EXHAUSTED", "no room"
    gce.cloud.vms.clear()
    time.sleep(0.6)
    (ended,) = of.describe().instances
    assert (ended.id, ended.state, ended.reclaimed) == (seen.id, InstanceState.GONE, True)


@pytest.mark.parametrize("page", [1, 500])
def test_a_preemption_counts_and_not_the_deletion_after_it(page: int, gce: TestGce, tmp_path: Path) -> None:
    """Also if they stand on two pages."""
    of = gcp.provider(gce, tmp_path)
    view = of.launch(plan(of))
    gce.cloud.page = page
    name, zone = view.id.split(".")
    gce.cloud.preempt(name, zone)
    gce.cloud.delete(zone, name)
    assert gone(of, view).reclaimed


def test_a_deletion_that_failed_or_goes_on_is_no_end(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    view = of.launch(plan(of))
    of.describe()
    name, zone = view.id.split(".")
    gce.cloud.delete(zone, name)
    gce.cloud.operations[-1].error = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "later"
    kept = gce.cloud.vms.pop((name, zone))  # one listing lags
    time.sleep(0.2)
    assert [v.state for v in of.describe().instances] == []
    kept.ends_at = None
    gce.cloud.vms[name, zone] = kept
    assert [v.id for v in of.describe().instances] == [view.id]


def test_a_zone_that_cant_be_asked_offers_nothing_and_is_asked_again_after_a_minute(gce: TestGce, tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now())
    of = gcp.provider(gce, tmp_path, clock=clock)
    gce.cloud.unreachable.add("europe-west4-a")
    for _ in range(2):
        assert {o.pool.region for o in of.offers()} == {"us-central1"}
    assert gce.calls == ["compute.machineTypes.list"] * 3, "each question may take its time"
    gce.cloud.unreachable.clear()
    gce.calls.clear()
    clock.advance(61)
    assert {o.pool.region for o in of.offers()} == {"us-central1", "europe-west4"}
    assert gce.calls == ["compute.machineTypes.list"], "what is known is not asked again"


def test_an_id_that_is_none_of_ours_is_no_error_to_end(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    of.terminate(InstanceId("garbage"))
    of.terminate(InstanceId("ss-1.mars-north1-a"))
    assert gce.cloud.vms == {}


def test_states_are_those_of_the_api() -> None:
    assert gcp_provider.STATES.keys() == set(document()["schemas"]["Instance"]["properties"]["status"]["enum"])


def test_a_network_that_is_down_is_not_a_lack_of_credentials() -> None:
    assert type(translated(TransportError("no route"), "get")) is ProviderError  # type: ignore[no-untyped-call]
    assert type(translated(DefaultCredentialsError("none"), "get")) is CredentialsExpired  # type: ignore[no-untyped-call]


def test_a_partial_listing_loses_none(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    here, there = of.launch(plan(of)), of.launch(plan(of, zone="europe-west4-a"))
    assert of.describe().complete
    gce.cloud.unreachable.add("europe-west4-a")
    listing = of.describe()
    assert not listing.complete
    assert here.id in {v.id for v in listing.instances}
    gce.cloud.unreachable.clear()
    listing = of.describe()
    assert listing.complete
    assert {v.id for v in listing.instances if v.state is not InstanceState.GONE} == {here.id, there.id}


def test_a_page_that_does_not_come_makes_the_listing_incomplete(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    for _ in range(3):
        of.launch(plan(of))
    gce.cloud.page = 1
    assert len(of.describe().instances) == 3
    gce.answers[LIST] = [..., Refused(503, "backendError", "later")]  # type: ignore[list-item]
    listing = of.describe()
    assert (len(listing.instances), listing.complete) == (1, False)


def test_a_vm_that_is_not_ours_is_no_instance(gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    of.launch(plan(of))
    other = gcp.provider(gce, tmp_path, family="0d0d0d")
    assert other.describe().instances == []
    (vm,) = gce.cloud.vms.values()
    vm.body["metadata"]["items"] = []
    assert not of.describe().complete, "what can't be read may be one of ours"


def test_an_order_that_takes_long_is_pending(gce: TestGce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = gcp.provider(gce, tmp_path)
    monkeypatch.setattr(gcp_provider, "ORDER_SECONDS", 0.2)
    gce.cloud.order_seconds, gce.cloud.boot_seconds = 2.0, 2.0
    wanted, began = plan(of), time.monotonic()
    assert of.launch(wanted).state is InstanceState.PENDING
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("machines", [10, 100, 500])
def test_calls_of_a_look_do_not_grow_with_machines(machines: int, gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    gce.cloud.order_seconds = gce.cloud.stop_seconds = 0.0
    views = [of.launch(plan(of)) for _ in range(machines)]
    gce.calls.clear()
    assert len(of.describe().instances) == machines
    assert Counter(gce.calls) == {LIST: 1}
    for view in views:
        gce.cloud.preempt(view.id.partition(".")[0], view.pool.zone)
    gce.calls.clear()
    assert sum(v.reclaimed for v in of.describe().instances) == machines
    assert Counter(gce.calls) == {LIST: 1, "compute.globalOperations.aggregatedList": 1}
