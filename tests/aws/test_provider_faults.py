"""When EC2 says no, says nothing, or says nonsense: the right reaction, no launch loop, nothing ended on a partial view."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from spotsurfer_providers.aws import provider as module
from spotsurfer_providers.aws.spot_market import PRICES_AGAIN_SECONDS
from structlog.testing import capture_logs
from support import aws
from support.desk import Desk, clock
from support.ec2.client import TestEC2

from spotsurfer.controller.machines.circuit_breaker import Guarded
from spotsurfer.model.errors import CredentialsExpired, Invalid, NoCapacity, ProviderDenied, ProviderError, QuotaExceeded
from spotsurfer.model.job import AttemptState, InstanceId, MarketChoice
from spotsurfer.model.market import Market
from spotsurfer.ports.provider import InstanceState, LaunchPlan

pytestmark = pytest.mark.real

Make = Callable[..., Desk]
ALIVE = ("pending", "running")


@pytest.fixture
def make(cloud: TestEC2, family: str, tmp_path: Path) -> Make:
    def desk(skew: float = 0.0, **changes: object) -> Desk:
        at = clock(skew)
        return Desk(Guarded(aws.provider(cloud, family, tmp_path, at, **changes), at), at, family)

    return desk


def of_family(cloud: TestEC2, family: str, *states: str) -> list[str]:
    return [x["id"] for x in cloud.machines(*states) if x["tags"].get("spotsurfer:family") == family]


def calls(cloud: TestEC2, action: str) -> int:
    return len(cloud.log(f"ec2:{action}"))


def a_plan(provider: module.AwsProvider, token: str, market: Market = Market.SPOT) -> LaunchPlan:
    offer = next(o for o in provider.offers() if o.market is market)
    return LaunchPlan(token, offer.pool, market, "#!/bin/sh\n", {"spotsurfer:job": "job"})


def test_what_is_ordered(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    provider = aws.provider(cloud, family, tmp_path, root_volume_gib=40, tags={"project": "x"})
    provider.launch(a_plan(provider, f"{family}1"))
    asked = cloud.log("ec2:RunInstances")[0]["parameters"]
    assert asked["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"}
    assert asked["InstanceMarketOptions"]["MarketType"] == "spot"
    assert asked["InstanceMarketOptions"]["SpotOptions"] == {
        "SpotInstanceType": "one-time",
        "InstanceInterruptionBehavior": "terminate",
    }
    assert (asked["MinCount"], asked["MaxCount"], asked["ClientToken"]) == (1, 1, f"{family}1")
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    disk = asked["BlockDeviceMappings"][0]["Ebs"]
    assert (disk["VolumeSize"], disk["Encrypted"], disk["DeleteOnTermination"]) == (40, True, True)
    for spec, kind in zip(asked["TagSpecifications"], ("instance", "volume"), strict=True):
        tags = {t["Key"]: t["Value"] for t in spec["Tags"]}
        assert spec["ResourceType"] == kind
        assert tags == {
            "project": "x",
            "spotsurfer:family": family,
            "spotsurfer:job": "job",
            "spotsurfer:token": f"{family}1",
        }


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, NoCapacity),
        ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded),
        ("UnauthorizedOperation", 403, ProviderDenied),
        ("Unsupported", 400, Invalid),
        ("RequestLimitExceeded", 503, ProviderError),
        ("InternalError", 500, ProviderError),
    ],
)
def test_an_order_is_one_call_whatever_is_answered(
    cloud: TestEC2, family: str, tmp_path: Path, code: str, status: int, kind: type[ProviderError]
) -> None:
    provider = aws.provider(cloud, family, tmp_path)
    plan = a_plan(provider, family)
    cloud.order("rule", action="RunInstances", code=code, status=status, times=-1)
    with pytest.raises(kind):
        provider.launch(plan)
    assert calls(cloud, "RunInstances") == 1


def test_without_capacity_the_next_pool_is_tried_and_then_on_demand(make: Make, cloud: TestEC2, family: str) -> None:
    for pool in ("*/m6i.large", "*/c6i.large"):
        cloud.order("capacity", pool=pool, market="spot", count=0)
    desk = make()
    desk.submit()
    desk.tick(30)
    refused, last = desk.attempts()[:-1], desk.attempts()[-1]
    assert {a.state for a in refused} == {AttemptState.REFUSED}
    assert len({a.pool for a in refused}) == len(refused) == 6  # two types in three zones, each asked once
    assert last.market is Market.ON_DEMAND
    assert calls(cloud, "RunInstances") == 7
    assert len(of_family(cloud, family)) == 1


def test_a_storm_of_throttling_makes_no_launch_loop(make: Make, cloud: TestEC2, family: str) -> None:
    cloud.order("rule", action="RunInstances", code="RequestLimitExceeded", status=503, times=-1)
    desk = make()
    desk.submit()
    desk.tick(60, seconds=5)
    assert 3 < calls(cloud, "RunInstances") <= 12
    assert [a.state for a in desk.attempts()] == [AttemptState.PLANNED]
    cloud.order("rules", clear=True)
    desk.tick(2, seconds=300)
    assert desk.attempts()[0].instance in of_family(cloud, family)
    assert len(of_family(cloud, family)) == 1


def test_ends_that_are_throttled_are_ordered_again_but_seldom(make: Make, cloud: TestEC2, family: str) -> None:
    desk = make()
    desk.submit(market=MarketChoice.SPOT)
    desk.tick(3)
    (machine,) = of_family(cloud, family)
    cloud.order("rule", action="TerminateInstances", code="RequestLimitExceeded", status=503, times=-1)
    desk.tick(int(desk.limits.boot_limit_seconds / 20) + 1, seconds=20)  # no agent speaks: it is given back
    cloud.order("log")
    desk.tick(60, seconds=5)
    assert 1 < calls(cloud, "TerminateInstances") <= 12
    cloud.order("rules", clear=True)
    desk.tick(2, seconds=300)
    cloud.wait_for(lambda: machine in of_family(cloud, family, "terminated"), "its end")


def test_while_listings_fail_nothing_is_ordered_or_ended(make: Make, cloud: TestEC2, family: str) -> None:
    desk = make()
    desk.submit()
    desk.tick(3)
    desk.submit("second")
    cloud.order("rule", action="DescribeInstances", code="InternalError", status=500, times=-1)
    cloud.order("log")
    desk.tick(30, seconds=15)  # shorter than the limit for booting: whatever is ended now was ended on a partial view
    assert (calls(cloud, "RunInstances"), calls(cloud, "TerminateInstances")) == (0, 0)
    assert calls(cloud, "DescribeInstances") < 40
    assert len(of_family(cloud, family, *ALIVE)) == 1


def test_a_page_that_fails_makes_a_view_partial(
    cloud: TestEC2, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 5)
    provider = aws.provider(cloud, family, tmp_path)
    plan = a_plan(provider, "x")
    for i in range(7):
        provider.launch(LaunchPlan(f"{family}{i}", plan.pool, plan.market, plan.user_data, plan.tags))
    whole = provider.describe()
    assert (len(whole.instances), whole.complete) == (7, True)
    cloud.order("rule", action="DescribeInstances", match={"NextToken": "*?*"}, code="Unavailable", status=503, times=-1)
    part = provider.describe()
    assert (len(part.instances), part.complete) == (5, False)


SPOILT = {
    "no state": ["<instanceState>.*?</instanceState>", ""],
    "unknown state": ["<instanceState>.*?</instanceState>", "<instanceState><name>asleep</name></instanceState>"],
    "no launch time": ["<launchTime>.*?</launchTime>", ""],
    "no placement": ["<placement>.*?</placement>", ""],
    "no id": ["<instanceId>.*?</instanceId>", ""],
    "half an answer": ["<instancesSet>.*", ""],
    "no xml": [".*", "Service Temporarily Unavailable"],
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_listings_that_are_not_whole_are_no_evidence(make: Make, cloud: TestEC2, family: str, spoil: list[str]) -> None:
    desk = make()
    desk.submit()
    desk.tick(3)
    desk.submit("second")
    cloud.order("rule", action="DescribeInstances", replace=[spoil], times=-1)
    cloud.order("log")
    desk.tick(3, seconds=100)  # far longer than a new machine may be missing
    assert (calls(cloud, "RunInstances"), calls(cloud, "TerminateInstances")) == (0, 0)
    assert len(of_family(cloud, family, *ALIVE)) == 1


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_an_order_whose_answer_is_nonsense_is_given_again_and_met_once(
    make: Make, cloud: TestEC2, family: str, spoil: list[str]
) -> None:
    cloud.order("rule", action="RunInstances", replace=[spoil], times=2)
    desk = make()
    desk.submit()
    desk.tick(6)
    assert len(of_family(cloud, family)) == 1
    assert [a.instance for a in desk.attempts()] == of_family(cloud, family)


def test_a_machine_that_is_not_listed_yet_is_neither_lost_nor_ordered_again(make: Make, cloud: TestEC2, family: str) -> None:
    cloud.order("set", unlisted_seconds=2.0)
    desk = make()
    desk.submit()
    desk.tick(4)
    assert [a.state for a in desk.attempts()] == [AttemptState.REQUESTED]
    time.sleep(2.1)
    desk.tick(1)
    assert [a.state for a in desk.attempts()] == [AttemptState.BOOTING]
    assert calls(cloud, "RunInstances") == 1


def test_an_end_that_is_ordered_before_it_is_listed_is_no_error(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    provider = aws.provider(cloud, family, tmp_path)
    plan = a_plan(provider, family)
    cloud.order("set", unlisted_seconds=30.0)
    provider.terminate(provider.launch(plan).id)
    provider.terminate(InstanceId("i-0123456789abcdef0"))


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "InvalidClientTokenId", "AuthFailure"])
def test_credentials_that_expired_refuse_no_pool_and_are_told(make: Make, cloud: TestEC2, family: str, code: str) -> None:
    desk = make()
    desk.submit()
    desk.tick(1)  # planned
    for service in ("ec2", "sqs"):
        cloud.order("rule", service=service, action="*", code=code, status=403, times=-1)
    cloud.order("log")
    desk.tick(40, seconds=3)
    assert len(cloud.log()) < 40
    assert [a.state for a in desk.attempts()] == [AttemptState.PLANNED]
    assert "renew the controller's credentials" in desk.loop.last_error
    cloud.order("rules", clear=True)
    desk.tick(4, seconds=300)
    assert len(of_family(cloud, family)) == 1


def test_no_credentials_at_all_are_told(cloud: TestEC2, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(CredentialsExpired, match="renew the controller's credentials"):
        aws.provider(cloud, family, tmp_path).describe()


@pytest.mark.parametrize("days", [-3, 3])
def test_a_clock_that_is_wrong_by_days_changes_no_offer(cloud: TestEC2, family: str, tmp_path: Path, days: int) -> None:
    right = aws.provider(cloud, family, tmp_path, clock()).offers()
    wrong = aws.provider(cloud, family, tmp_path, clock(days * 86400.0)).offers()
    assert wrong == right
    assert {o.market for o in right} == {Market.SPOT, Market.ON_DEMAND}


def test_who_took_it(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    provider = aws.provider(cloud, family, tmp_path)
    plan = a_plan(provider, f"{family}a")
    ours = provider.launch(plan)
    theirs = provider.launch(LaunchPlan(f"{family}b", plan.pool, plan.market, plan.user_data, plan.tags))
    provider.terminate(ours.id)
    cloud.order("interrupt", instance=theirs.id, notice_seconds=0)
    gone: dict[str, bool] = {}

    def both_gone() -> bool:
        gone.update({v.id: v.reclaimed for v in provider.describe().instances if v.state is InstanceState.GONE})
        return len(gone) == 2

    cloud.wait_for(both_gone, "both machines to end")
    assert gone == {ours.id: False, theirs.id: True}


def test_an_order_in_other_words_stands(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    """The image behind a parameter, or a setting, changed between the call and its repetition."""
    first = aws.provider(cloud, family, tmp_path)
    plan = a_plan(first, family)
    made = first.launch(plan)
    changed = LaunchPlan(plan.token, plan.pool, plan.market, plan.user_data + "# other\n", plan.tags)
    assert aws.provider(cloud, family, tmp_path, tags={"new": "tag"}).launch(changed).id == made.id
    assert len(of_family(cloud, family)) == 1


def test_without_the_price_list_the_catalogue_stands_in_and_it_is_said(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    cloud.order("on_demand", type="m6i.large", usd="0.123")
    cloud.order("rule", service="pricing", action="GetProducts", code="AccessDeniedException", status=400, times=-1)
    provider = aws.provider(cloud, family, tmp_path, at := clock(), instance_types=["m6i.large"])
    with capture_logs() as said:
        assert {o.list_price_usd_micros_per_hour for o in provider.offers()} == {96_000}
        provider.offers()
    assert [(x["event"], "AccessDenied" in x["reason"]) for x in said] == [("prices.assumed", True)], "once, not each time"
    cloud.order("rules", clear=True)
    at.advance(PRICES_AGAIN_SECONDS + 1)
    assert {o.list_price_usd_micros_per_hour for o in provider.offers()} == {123_000}
    cloud.order("on_demand", type="m6i.large", usd="0.096")


def test_types_larger_than_the_quota_are_not_offered(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    cloud.order("quota", code="L-34B43A08", value=4)
    try:
        offers = aws.provider(cloud, family, tmp_path, instance_types=["m6i.large", "m6i.2xlarge"]).offers()
    finally:
        cloud.order("quota", code="L-34B43A08", value=640)
    assert {(o.pool.instance_type, o.market) for o in offers} == {
        ("m6i.large", Market.SPOT),
        ("m6i.large", Market.ON_DEMAND),
        ("m6i.2xlarge", Market.ON_DEMAND),
    }


def test_a_machine_that_shows_after_its_attempt_is_over_is_ended(make: Make, cloud: TestEC2, family: str) -> None:
    """Listings lag: given up for lost and then seen, it belongs to nobody, and costs."""
    cloud.order("set", unlisted_seconds=2.0)
    desk = make()
    desk.submit(market=MarketChoice.SPOT)
    desk.tick(2)  # ordered
    machine = of_family(cloud, family)[0]
    desk.tick(8, seconds=20)  # longer than a listing may lag: believed gone
    assert desk.attempts()[0].state is AttemptState.RELEASED
    time.sleep(2.1)
    cloud.order("set", unlisted_seconds=0)
    desk.tick(3)
    cloud.wait_for(lambda: machine in of_family(cloud, family, "terminated"), "the late machine to end")
    assert machine in {m.text.partition(":")[0] for m in desk.moments("swept")}
