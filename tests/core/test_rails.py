"""Guard rails: what may not be bought, in words, and the preview of a job that nobody submitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import IN_PART, NOW, POOL, a_job, a_snapshot, ago, an_attempt, an_offer, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.launch import preview
from spotsurfer.core.scheduling.placement import barred
from spotsurfer.model.actions import Plan
from spotsurfer.model.market import Cooldown, Market
from spotsurfer.model.snapshot import Limits

POLICY = Cheapest(60.0, 0.2)
LARGE = replace(POOL, instance_type="m6i.large")


@pytest.mark.parametrize(
    ("limits", "spec", "why"),
    [
        ({}, {}, None),
        ({"price_max_usd_micros": 30_000}, {}, None),
        ({"price_max_usd_micros": 29_999}, {}, "it costs 0.0300 USD an hour, limits.price_max_usd is 0.0300"),
        ({}, {"price_max_usd_micros": 10_000}, "it costs 0.0300 USD an hour, its price_max_usd is 0.0100"),
        ({"instance_types": ("m6i.*", "c6i.*")}, {}, None),
        ({"instance_types": ("c6i.*",)}, {}, "limits.instance_types allow only c6i.*"),
        ({}, {"instance_types": ("*.xlarge",)}, "its instance_types allow only *.xlarge"),
        ({"instance_types": ("m6?.large",)}, {"instance_types": ("m*",)}, None),
        ({"instance_types": ("M6I.LARGE",)}, {}, "limits.instance_types allow only M6I.LARGE"),
    ],
    ids=str,
)
def test_rails(limits: dict[str, Any], spec: dict[str, Any], why: str | None) -> None:
    assert barred(a_job(spec), an_offer(pool=LARGE), Limits(**limits)) == why


def test_what_is_barred_is_never_planned_and_told() -> None:
    snapshot = a_snapshot(seen(job=a_job(state="queued")), limits=Limits(price_max_usd_micros=20_000))
    decision = decide(snapshot, POLICY, NOW)
    assert not [a for a in decision.actions if isinstance(a, Plan)]
    assert {r.why for r in decision.rejected} == {
        "it costs 0.0300 USD an hour, limits.price_max_usd is 0.0200",
        "it costs 0.1000 USD an hour, limits.price_max_usd is 0.0200",
    }


def test_a_machine_whose_price_rose_above_the_rail_is_not_left_for_it() -> None:
    running = seen([an_attempt(price_usd_micros_per_hour=90_000)])
    decision = decide(a_snapshot(running, limits=Limits(price_max_usd_micros=20_000)), POLICY, NOW)
    assert decision.actions == ()


def test_a_preview_is_what_decide_would_do() -> None:
    job = a_job(state="queued")
    cool = Cooldown(POOL, Market.SPOT, ago(-60), 1, "no capacity")
    world = a_snapshot(seen(job=job), cooldowns=[cool])
    shown = preview(job, world, POLICY, NOW)
    (plan,) = (a for a in decide(world, POLICY, NOW).actions if isinstance(a, Plan))
    assert shown.choices[0] == plan.offer
    assert [(o.market, why) for o, why in shown.rejected] == [(Market.SPOT, "left alone until 12:01:00 UTC: no capacity")]
    assert shown.obstacle == ""


@pytest.mark.parametrize(
    ("changes", "spec", "words"),
    [
        ({"listings": IN_PART}, {}, "partial view"),
        ({"offers": ()}, {}, "no machine is on offer"),
        ({"limits": Limits(instances_max=0)}, {}, "limits.instances_max = 0"),
        ({"limits": Limits(budget_usd_micros=1)}, {}, "limits.budget_usd"),
        ({}, {"budget_usd_micros": 1}, "the job's budget"),
    ],
)
def test_obstacles(changes: dict[str, Any], spec: dict[str, Any], words: str) -> None:
    assert words in preview(a_job(spec), a_snapshot(**changes), POLICY, NOW).obstacle


def test_what_is_too_small_says_by_how_much() -> None:
    shown = preview(a_job({"cpus": 8, "memory_bytes": 1 << 30}), a_snapshot(), POLICY, NOW)
    assert {why for _, why in shown.rejected} == {"it has 4 processors, the job asks for 8"}
