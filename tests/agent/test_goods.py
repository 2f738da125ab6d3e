"""When the agent brings inputs and shared file systems, and what it says where it can't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent.files.staging import FilesError
from spotsurfer_agent.prepare.inputs import delivery as real
from spotsurfer_agent.prepare.inputs.cache import Cache
from spotsurfer_agent.prepare.inputs.delivery import Delivery
from spotsurfer_agent.prepare.inputs.shared_file_systems import Shares
from spotsurfer_agent.prepare.inputs.sources import Sources
from spotsurfer_agent.store.layers import Retry
from spotsurfer_wire import object_keys
from spotsurfer_wire.messages import AgentState, Fetch, Share, Spec
from spotsurfer_wire.store.port import StoreUnreachable
from support.agent_world import JOB, DictStore, World, commits, running
from support.sources import Buckets, serving


class Goods:
    """Notes what was asked of it; `fails` is raised."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails: Exception | None = None
        self.delivery = self

    def ready(self, spec: Spec, store: object, scratch: str, halt: Callable[[], None], tell: Callable[[str], None]) -> None:
        halt()
        self.asked.append("ready")
        if self.fails is not None:
            raise self.fails

    def ahead(self, spec: Spec, store: object, scratch: str, halt: Callable[[], None]) -> None:
        halt()
        self.asked.append("ahead")
        if self.fails is not None:
            raise self.fails

    def place(self, spec: Spec, scratch: str) -> None:
        self.asked.append("place")

    def drop(self) -> None:
        self.asked.append("drop")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, checkpoint_interval_seconds=10.0, shares=[Share("d", "nfs4", "h:/x", "/data")])
    made.settings = {"warm_wait_seconds": 60.0}
    return made


def boot(world: World, attempt: int, goods: Goods) -> Any:
    machine = world.machine(attempt)
    machine.boot().work.goods = goods  # type: ignore[assignment]
    world.until(lambda: machine.state is AgentState.STANDBY)
    return machine


def test_all_is_there_before_the_start_and_given_back_at_the_end(world: World) -> None:
    goods = Goods()
    machine = boot(world, 1, goods)
    assert goods.asked == []
    world.grant(1)
    world.until(lambda: machine.state is AgentState.RUNNING)
    assert goods.asked == ["ready", "place"]
    world.cancel()
    world.until(lambda: machine.state is AgentState.FENCED and "drop" in goods.asked)


@pytest.mark.parametrize(
    ("fails", "kind"),
    [
        (FilesError("input", "it changed"), "input"),
        (FilesError("refused", "no room"), "refused"),
        (StoreUnreachable("x"), "store"),
    ],
)
def test_what_can_t_be_had_is_said_and_nothing_starts(world: World, fails: Exception, kind: str) -> None:
    goods = Goods()
    goods.fails = fails
    machine = boot(world, 1, goods)
    world.grant(1)
    world.until(lambda: machine.state is AgentState.BROKEN)
    world.until(lambda: world.report(1).state is AgentState.BROKEN)
    assert (world.report(1).error, world.report(1).error_kind) == (str(fails), kind)
    assert "start" not in world.trail


def test_a_waiting_machine_brings_it_ahead_and_says_what_it_lacks(world: World) -> None:
    running(world, 1)
    world.until(lambda: len(commits(world)) > 0)
    goods = Goods()
    goods.fails = FilesError("input", "input x is not what the job started with")
    machine = boot(world, 2, goods)
    world.until(lambda: world.report(2).unfit == "input x is not what the job started with", 5)
    assert world.report(2).unfit_kind == "input"
    warm = world.report(2).warm
    assert warm is None or warm.checkpoint is None, "who lacks an input is not ready"
    goods.fails = None
    world.until(lambda: (world.report(2).warm or warm) is not None and world.report(2).warm.checkpoint is not None, 60)  # type: ignore[union-attr]
    assert machine.state is AgentState.STANDBY
    world.until(lambda: (world.report(2).unfit, world.report(2).unfit_kind) == ("", ""), 5)
    assert goods.asked[0] == "ahead"


@pytest.fixture
def buckets(tmp_path: Path) -> Iterator[Buckets]:
    file = tmp_path / "buckets/lab/reads.fq"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"ACGT")
    with serving(Buckets(tmp_path / "buckets")) as made:
        yield made


def ahead(folder: Path, options: dict[str, dict[str, str]], source: str, store: DictStore) -> real.JobInputs:
    """A machine that waits for a job which never ran."""
    folder.mkdir(exist_ok=True)
    patience = Retry(0.5, wait=lambda _: None)
    made = real.JobInputs(Delivery(folder, Cache(folder / "cache"), Sources(options), patience), Shares(folder))
    made.ahead(Spec(JOB, ["x"], fetches=[Fetch(source)]), store, str(folder / "scratch"), lambda: None)
    return made


def test_of_a_job_that_never_ran_it_is_looked_whether_inputs_can_be_had(tmp_path: Path, buckets: Buckets) -> None:
    store = DictStore()
    made = ahead(tmp_path / "m", buckets.options, "s3://lab/reads.fq", store)
    assert made.delivery.all_bytes == 0, "nothing is fetched for a job that may start elsewhere"
    assert object_keys.inputs_key(JOB) not in store.objects, "whoever starts it says what its inputs are"
    with pytest.raises(FilesError, match=r"s3://lab/absent is not there"):
        ahead(tmp_path / "m", buckets.options, "s3://lab/absent", store)


def test_a_source_that_is_down_is_told_before_the_job_comes(tmp_path: Path) -> None:
    """So this machine waits and asks again; the job is not given to one after the other."""
    down = {"s3://": {"endpoint": "http://127.0.0.1:1", "allow_http": "true", "skip_signature": "true"}}
    with pytest.raises(StoreUnreachable, match="can't be reached"):
        ahead(tmp_path / "m", down, "s3://lab/reads.fq", DictStore())
