"""What a controller makes of events: an interruption counted once, a drain where no agent noticed, advice as configured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.aws.interruption_queue import Queue
from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.messages import AgentState, Desired, Head, HeadKind, Notice, Report
from support import aws
from support.desk import Desk, clock
from support.ec2.client import TestEC2

from spotsurfer.controller.machines import interruption_events
from spotsurfer.controller.machines.circuit_breaker import Guarded
from spotsurfer.model.job import AttemptState
from spotsurfer.state import observations

pytestmark = pytest.mark.real

EVENTS = {"interruption": "EC2 Spot Instance Interruption Warning", "rebalance": "EC2 Instance Rebalance Recommendation"}
Make = Callable[..., "Scene"]


class Scene:
    """A job that runs on a spot machine, with an agent that says what a test wants."""

    def __init__(self, desk: Desk, cloud: TestEC2) -> None:
        self.desk, self.cloud, self.sequence = desk, cloud, 0
        desk.submit()
        desk.tick(3)
        self.instance = str(desk.attempts()[0].instance)
        self.says(AgentState.STANDBY)
        desk.tick(2)
        self.says(AgentState.RUNNING, head=1)
        desk.tick(2)
        assert self.states() == [AttemptState.RUNNING]

    def says(self, state: AgentState, number: int = 1, **changes: Any) -> None:
        self.sequence += 1
        base = {"agent_version": "0", "instance": "", "head": 0, "desired": 0, "drain_failed": 0, "last_save": None}
        report = Report(job="job", attempt=number, sequence=self.sequence, state=state, **{**base, **changes})
        self.desk.store.put(object_keys.live_key("job", number), json_codec.encode(report))

    def saved(self) -> None:
        """A checkpoint."""
        head = Head(2, HeadKind.COMMIT, 1, "000001-000001", 1, False, None, 1.0, "n", "")
        self.desk.store.create(object_keys.head_key("job", 2), json_codec.encode(head))

    def event(self, kind: str) -> None:
        detail = {"instance-id": self.instance, "instance-action": "terminate"}
        self.cloud.order("event", source="aws.ec2", detail_type=EVENTS[kind], detail=detail)

    def states(self) -> list[AttemptState]:
        return [a.state for a in self.desk.attempts()]

    def desired(self) -> Desired | None:
        data = self.desk.store.get(object_keys.desired_key("job", 1))
        return None if data is None else json_codec.decode(Desired, data)

    def wish(self) -> str:
        return "" if (desired := self.desired()) is None else str(desired.want)

    def notices(self) -> list[str]:
        return [str(m.data["kind"]) for m in self.desk.moments("notice")]


@pytest.fixture
def make(cloud: TestEC2, family: str, tmp_path: Path) -> Make:
    url = cloud.client("sqs").create_queue(QueueName=family)["QueueUrl"]
    aws.connect_events(cloud, url)

    def scene(**changes: object) -> Scene:
        at = clock()
        provider = aws.provider(cloud, family, tmp_path, at, queue_url=url, **changes)
        return Scene(Desk(Guarded(provider, at), at, family), cloud)

    return scene


def test_a_warning_that_the_agent_did_not_notice_leads_to_the_drain(make: Make) -> None:
    scene = make()
    scene.event("interruption")
    scene.desk.tick(2)
    assert scene.states()[0] is AttemptState.RUNNING  # its agent may be about to say so, and knows better when to drain
    scene.desk.tick(5)
    assert (scene.states()[0], scene.wish()) == (AttemptState.DRAINING, "drain")
    assert len(scene.states()) == 2  # and the next machine is ordered
    desired = scene.desired()
    assert desired is not None
    assert desired.seconds_left is not None
    assert 100 < desired.seconds_left <= 116


@pytest.mark.parametrize("first", ["queue", "agent"])
def test_one_interruption_is_counted_once(make: Make, first: str) -> None:
    scene = make()
    notice = Notice("interruption", "n1", 110.0)
    if first == "queue":
        scene.event("interruption")
        scene.desk.tick(2)
    scene.says(AgentState.RUNNING, head=1, notice=notice)
    scene.desk.tick(2)
    for _ in range(3):
        scene.event("interruption")  # SQS and EventBridge deliver at least once
        scene.desk.tick(2)
    assert scene.notices() == ["interruption"]


def test_a_message_is_settled_only_after_it_was_recorded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make()
    settled: list[tuple[bool, int]] = []
    settle, add = Queue.settle, observations.add_notice

    def spy(self: Queue, letters: Any) -> None:
        with scene.desk.engine.connect() as c:
            settled.append((scene.instance in observations.notices_of(c, [scene.instance]), len(letters)))
        settle(self, letters)

    def broken(*_: object) -> bool:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(Queue, "settle", spy)
    monkeypatch.setattr("spotsurfer_providers.aws.interruption_queue.HIDDEN_SECONDS", 0)
    monkeypatch.setattr(interruption_events.observations, "add_notice", broken)
    scene.event("interruption")
    with pytest.raises(RuntimeError):
        scene.desk.tick(1)
    assert settled == []
    monkeypatch.setattr(interruption_events.observations, "add_notice", add)
    scene.desk.tick(1)
    assert (settled[0][0], scene.notices()) == (True, ["interruption"])


def test_poison_beside_a_warning_is_left_and_the_warning_is_heard(make: Make, cloud: TestEC2, family: str) -> None:
    scene, sqs = make(), cloud.client("sqs")
    url = sqs.get_queue_url(QueueName=family)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="poison")
    scene.event("interruption")
    scene.desk.tick(1)
    name = "ApproximateNumberOfMessagesNotVisible"
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"]
    assert (int(found[name]), scene.notices()) == (1, ["interruption"])


def test_events_of_foreign_machines_are_dropped_and_change_nothing(make: Make) -> None:
    scene = make()
    scene.instance = "i-0fedcba9876543210"
    scene.event("interruption")
    scene.desk.tick(10)
    assert (scene.states(), scene.notices()) == ([AttemptState.RUNNING], [])


def test_a_queue_that_fails_stops_nothing_else(make: Make, cloud: TestEC2) -> None:
    scene = make()
    cloud.order("rule", service="sqs", action="*", code="AccessDenied", status=403, times=-1)
    scene.desk.tick(2)
    assert "the queue of the cloud's events can't be read" in scene.desk.loop.last_error
    scene.says(AgentState.RUNNING, head=1, notice=Notice("interruption", "n1", 110.0))
    scene.desk.tick(2)
    assert scene.wish() == "drain"


def test_advice_is_ignored_where_it_is_to_be(make: Make) -> None:
    scene = make(rebalance="ignore")
    scene.event("rebalance")
    scene.desk.tick(10)
    assert (scene.states(), scene.wish(), scene.notices()) == ([AttemptState.RUNNING], "", ["rebalance"])


@pytest.mark.parametrize("witness", ["queue", "agent"])
def test_advice_leads_to_one_checkpoint(make: Make, witness: str) -> None:
    scene = make(rebalance="checkpoint")
    if witness == "queue":
        scene.event("rebalance")
    else:
        scene.says(AgentState.RUNNING, head=1, notice=Notice("rebalance", "n1", None))
    scene.desk.tick(4)
    desired = scene.desired()
    assert desired is not None
    assert (str(desired.want), desired.save_at_least) == ("run", 1)
    scene.saved()
    scene.says(AgentState.RUNNING, head=2)
    scene.event("rebalance")
    scene.desk.tick(5)
    assert scene.desired() == desired


def test_advice_leads_to_a_move_to_another_pool(make: Make) -> None:
    scene = make(rebalance="move")
    scene.event("rebalance")
    scene.desk.tick(5)
    here, there = scene.desk.attempts()
    assert there.purpose == "the cloud advises to leave the present machine"
    assert there.pool != here.pool
    assert scene.states()[0] is AttemptState.RUNNING  # until the next machine is warm
    scene.saved()
    scene.says(AgentState.RUNNING, head=2)
    scene.says(AgentState.STANDBY, number=2)
    scene.desk.tick(4)
    scene.says(AgentState.STANDBY, number=2, warm=messages.Warm("000001-000001", 1, 1))
    scene.desk.tick(3)
    assert scene.wish() == "drain"


def test_a_waiter_that_is_warned_is_given_back_before_it_is_used(make: Make) -> None:
    scene = make(rebalance="move")
    scene.event("rebalance")
    scene.desk.tick(5)
    scene.instance = str(scene.desk.attempts()[1].instance)
    scene.event("interruption")
    scene.desk.tick(3)
    assert scene.desk.attempts()[1].state in (AttemptState.RELEASING, AttemptState.RELEASED)
    assert scene.desk.attempts()[1].reason == "the cloud will take the machine before it was needed"
