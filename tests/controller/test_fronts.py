"""What the front asks of the controller: ports that stay, addresses, and who may be woken."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine
from support.builders import JOB, NOW, POOL, a_job, a_snapshot, an_attempt, seen
from support.dict_store import DictStore

from spotsurfer.controller.jobs.commands import FRONT, Commands
from spotsurfer.controller.jobs.exposed_ports import FrontDoors, Sources, port_statuses
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.ingress.connection import At, Target
from spotsurfer.model.errors import Conflict, SpotsurferError
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import HeldBy, InstanceId, Job, JobPort, JobState, Wish
from spotsurfer.model.market import Market
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import Capabilities, InstanceState, InstanceView
from spotsurfer.state import exposed_ports
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database
from spotsurfer.store.head_logs import HeadLogs

PORTS = {"ports": (JobPort("web", 8888), JobPort("more", 9000))}
ASLEEP = {"state": JobState.HELD, "wish": Wish.HOLD, "held_by": HeldBy.IDLE, "reason": "idle"}
VIEW = InstanceView(
    InstanceId("i-1"), "token-1", POOL, Market.SPOT, InstanceState.RUNNING, NOW, None, False, {}, "10.0.0.1", None
)


class Cloud:
    name, capabilities = POOL.provider, Capabilities(0.0, "aws")

    def outlet(self, instance: InstanceId) -> socket.socket:
        assert instance == "i-1"
        return socket.socket()


def doors(engine: Engine, job: Job, ports: range = range(20500, 20502), public: bool = False) -> tuple[FrontDoors, list[str]]:
    woken: list[str] = []
    commands = Commands(engine, ManualClock(NOW), HeadLogs(DictStore()), lambda: None)

    def wake(name: str) -> Job:
        woken.append(name)
        return commands.resume(name, FRONT)

    world = a_snapshot(seen([an_attempt(1)], job=job))
    clouds = Clouds([Cloud()], "memory:///")  # type: ignore[list-item]
    sources = Sources(engine, ManualClock(NOW), clouds, lambda: world, lambda *_: VIEW, wake)
    return FrontDoors(sources, ports, public), woken


def given(engine: Engine) -> dict[tuple[str, str], int]:
    with engine.connect() as connection:
        return exposed_ports.all_listens(connection)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_database(tmp_path / "state.db")


def test_a_job_keeps_its_ports_across_a_restart(engine: Engine) -> None:
    job = a_job(PORTS)
    one, _ = doors(engine, job)
    assert dict(one.ports()) == {JOB: PORTS["ports"]}
    assert [one.listens(JOB, "web"), one.listens(JOB, "more"), one.listens(JOB, "third")] == [20500, 20501, None]
    again, _ = doors(engine, job)
    assert again.listens(JOB, "more") == 20501
    assert [p.address for p in port_statuses(job, given(engine), "::1")] == ["[::1]:20500", "[::1]:20501"]
    again.forget([])
    assert [p.address for p in port_statuses(job, given(engine), "127.0.0.1")] == ["", ""]


def test_a_port_that_is_taken_by_somebody_else_is_not_given_again(engine: Engine) -> None:
    one, _ = doors(engine, a_job(PORTS))
    one.taken(JOB, "web")
    assert one.listens(JOB, "web") == 20500
    one.taken(JOB, "web")
    assert one.listens(JOB, "web") == 20501


def test_the_way_to_the_machine(engine: Engine) -> None:
    one, _ = doors(engine, a_job(PORTS))
    raw, address = one.outlet(Target(At.RUNS, 1, "token-1"))
    raw.close()
    assert address == "10.0.0.1"
    with pytest.raises(SpotsurferError, match="has no address yet"):
        doors(engine, a_job(PORTS), public=True)[0].outlet(Target(At.RUNS, 1, "token-1"))


def test_only_what_the_controller_put_to_sleep_is_woken(engine: Engine) -> None:
    asleep = a_job(PORTS, **ASLEEP)
    with engine.begin() as c:
        rows.add_job(c, asleep)
        rows.add_attempt(c, an_attempt(1, A.RELEASED))
    one, _ = doors(engine, asleep)
    one.wake(JOB)
    one.wake(JOB)
    with engine.connect() as c:
        row = rows.load_job(c, JOB)
    assert (row.wish, row.held_by, row.resumed_at) == (Wish.RUN, HeldBy.USER, NOW)
    by_user, none = doors(engine, a_job(PORTS, state=JobState.HELD, wish=Wish.HOLD))
    by_user.wake(JOB)
    assert none == []


def test_a_connection_does_not_undo_what_the_user_ordered_meanwhile(engine: Engine) -> None:
    with engine.begin() as c:
        rows.add_job(c, a_job(PORTS, state=JobState.HELD, wish=Wish.HOLD))
    with pytest.raises(Conflict):
        Commands(engine, ManualClock(NOW), HeadLogs(DictStore()), lambda: None).resume(JOB, FRONT)


def test_nobody_is_led_to_the_address_of_a_machine_that_is_gone(engine: Engine) -> None:
    """By now it may be the address of a stranger's."""
    world = a_snapshot(seen([an_attempt(1)], job=a_job(PORTS)))
    asked: list[tuple[str, InstanceId | None]] = []

    def instance_of(token: str, known: InstanceId | None) -> InstanceView:
        asked.append((token, known))
        return replace(VIEW, state=InstanceState.GONE)

    cloud: object = Cloud()
    sources = Sources(engine, ManualClock(NOW), cloud, lambda: world, instance_of, lambda _: a_job())  # type: ignore[arg-type]
    doors = FrontDoors(sources, range(20500, 20502), False)
    with pytest.raises(Conflict, match="gone"):
        doors.outlet(doors.place(JOB))
    assert asked == [("token-1", "i-1")], "a machine with a copied token is another one"
