"""A job that its user's command keeps still: the agent asks again until that succeeds, or nobody wants the job to go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from spotsurfer_agent.host import hooks
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_wire import clock, object_keys
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import Share, Want
from support.agent_world import JOB, FakeEngine, Machine, World, running

NO = "before_thaw: `lic take` ended with exit code 1: no"


@dataclass
class Licence:
    """What the user's command asks for. `refuses`: so often, then it is there."""

    refuses: int = 0
    stands: bool = False
    asked: list[tuple[str, float]] = field(default_factory=list)
    meanwhile: Callable[[], Any] = lambda: None

    def thaw(self, why: str, jump: float) -> str:
        self.asked.append((why, jump))
        self.meanwhile()
        if len(self.asked) <= self.refuses:
            return NO
        self.stands = False
        return ""


@pytest.fixture
def licence(monkeypatch: pytest.MonkeyPatch) -> Licence:
    made, restore, settle = Licence(), FakeEngine.restore, FakeEngine.settle

    def stand(call: Callable[..., Any]) -> Callable[..., None]:
        def stood(self: FakeEngine, *given: Any) -> None:
            call(self, *given)
            made.stands = given != (True,)

        return stood

    monkeypatch.setattr(FakeEngine, "restore", stand(restore))
    monkeypatch.setattr(FakeEngine, "settle", stand(settle))
    monkeypatch.setattr(FakeEngine, "stands_still", property(lambda _: made.stands))
    monkeypatch.setattr(FakeEngine, "thaw", lambda _, why, jump: made.thaw(why, jump))
    monkeypatch.setattr(FakeEngine, "let_go", lambda _: setattr(made, "stands", False))
    return made


@pytest.fixture
def world(tmp_path: Any) -> World:
    return World(tmp_path)


def moved(world: World) -> Machine:
    """The next machine, to which the job was granted after a suspension."""
    first = running(world)
    world.want(1, Want.DRAIN, 1)
    world.until(lambda: first.agent.over)  # type: ignore[union-attr]
    second = world.machine(2)
    second.boot()
    world.until(lambda: second.state is S.STANDBY)
    world.turn()
    world.grant(2)
    return second


def test_it_is_asked_again_until_it_succeeds(world: World, licence: Licence) -> None:
    licence.refuses = 5
    waits: list[str] = []
    second = moved(world)
    licence.meanwhile = lambda: waits.append(second.agent.work.waits)  # type: ignore[union-attr]
    before = world.now
    world.until(lambda: second.state is S.RUNNING)
    assert [why for why, _ in licence.asked] == ["restore"] * 6
    assert waits == ["", *[f"{NO}; it is tried again"] * 5]
    assert 5 < world.now - before < 30, "less and less often"
    world.turn()
    assert world.report(2).waits == ""


def test_who_is_to_leave_meanwhile_has_lost_nothing(world: World, licence: Licence) -> None:
    licence.refuses = 1000
    second = moved(world)

    def meanwhile() -> None:
        if len(licence.asked) == 3:
            world.want(2, Want.DRAIN, 1)
            second.agent.mailbox.poll()  # type: ignore[union-attr]

    licence.meanwhile = meanwhile
    world.until(lambda: second.state is S.BROKEN)
    report = world.report(2)
    assert (report.error_kind, report.error) == ("hook", f"the job stood still until it had to leave: {NO}")
    assert len(licence.asked) == 3


def test_a_final_save_that_failed(world: World, licence: Licence, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = running(world)
    whys: list[str] = []

    def save(_: FakeEngine, request: Any) -> Any:
        whys.append(request.why)
        licence.stands = request.final
        raise EngineError("save", "no")

    monkeypatch.setattr(FakeEngine, "save", save)
    licence.refuses = 2
    world.want(1, Want.DRAIN, 1, keep=True)
    world.until(lambda: bool(world.report(1).drain_failed))
    assert machine.state is S.RUNNING
    assert licence.asked == [("failed", 0.0)] * 3
    world.want(1, Want.DRAIN, 2)
    world.until(lambda: world.report(1).drain_failed == 2)
    world.want(1, Want.RUN, 3, save_at_least=1)
    world.until(lambda: len(whys) == 3)
    assert whys == ["move", "suspend", "save"]


@pytest.mark.parametrize(
    ("shares", "harm"),
    [
        pytest.param([], b"no manifest", id="damaged"),
        pytest.param([], None, id="gone"),
        pytest.param([Share("lab", "nfs", "h:/lab", "/lab", read_only=False)], b"no manifest", id="damaged, shares"),
    ],
)
def test_a_kept_job_comes_back_although_its_checkpoint_can_not_be_read(
    tmp_path: Any, shares: list[Share], harm: bytes | None
) -> None:
    world = World(tmp_path, shares=shares)
    world.settings = {"keep_seconds": 300.0}
    machine = running(world)
    world.want(1, Want.DRAIN, 1, keep=True)
    world.until(lambda: machine.state is S.KEEPING)
    key = object_keys.manifest_key(JOB, str(world.heads()[-1].checkpoint))
    assert key in world.store.objects
    if harm is None:
        del world.store.objects[key]
    else:
        world.store.objects[key] = harm
    world.want(1, Want.RUN, 2)
    world.grant(1)
    world.until(lambda: machine.state is S.RUNNING)


def test_how_far_the_clock_jumped() -> None:
    assert 0 <= hooks.jump_since(clock.utc_text()) < 5
    assert hooks.jump_since("2020-01-01T00:00:00.000+00:00") > 1e8
    assert hooks.jump_since("2999-01-01T00:00:00.000+00:00") < -1e8
    assert hooks.jump_since("") == hooks.jump_since("2020-01-01") == 0.0
