"""The front with a stand-in for the controller: holds, wakes, forwards, refuses, and lets go when the job moves."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.builders import NOW

from spotsurfer.ingress import connection
from spotsurfer.ingress.connection import At, Target
from spotsurfer.ingress.listener import Listener
from spotsurfer.model.errors import Conflict
from spotsurfer.model.job import JobId, JobPort

JOB = JobId("note-1")
PORTS = (JobPort("web", 8888),)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


class Echo:
    """The job: says what it hears, in capitals."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.server.getsockname()[1])
        self.held: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.held.append(self.server.accept()[0])
                threading.Thread(target=self._answer, args=(self.held[-1],), daemon=True).start()

    def _answer(self, s: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := s.recv(65536):
                s.sendall(piece.upper())
            s.shutdown(socket.SHUT_WR)


@dataclass
class World:
    """`Doors`, by hand. The machine's port is mended into the socket: here all machines are this one."""

    at: Target
    machine: int
    listens_on: list[int]
    known: dict[str, int] = field(default_factory=dict)
    woken: int = 0
    wakes_to: Target | None = None
    has: Mapping[JobId, tuple[JobPort, ...]] = field(default_factory=lambda: {JOB: PORTS})
    forgotten: list[list[JobId]] = field(default_factory=list)

    def ports(self) -> Mapping[JobId, tuple[JobPort, ...]]:
        return self.has

    def place(self, job: JobId) -> Target:
        return self.at

    def wake(self, job: JobId) -> None:
        self.woken += 1
        if self.wakes_to is None:
            raise Conflict("it is held")
        self.at = self.wakes_to

    def outlet(self, place: Target) -> tuple[socket.socket, str]:
        return Diverted(self.machine), "127.0.0.1"

    def now(self) -> datetime:
        return NOW

    def listens(self, job: JobId, name: str) -> int | None:
        if name not in self.known and self.listens_on:
            self.known[name] = self.listens_on.pop(0)
        return self.known.get(name)

    def taken(self, job: JobId, name: str) -> None:
        self.known.pop(name)

    def forget(self, jobs: Iterable[JobId]) -> None:
        self.forgotten.append(list(jobs))


class Diverted(socket.socket):
    """Connects to the stand-in's port, whatever port was meant."""

    def __init__(self, port: int) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.port = port

    def connect(self, address: object) -> None:
        super().connect(("127.0.0.1", self.port))


RUNS = Target(At.RUNS, 1, "token", NOW - timedelta(hours=1))
SLEEPS = Target(At.SLEEPS)


@pytest.fixture
def made() -> Iterator[Callable[..., tuple[World, Listener, int]]]:
    fronts: list[Listener] = []

    def make(at: Target, rules: dict[str, Any] | None = None, **changes: object) -> tuple[World, Listener, int]:
        machine = changes.pop("machine", None) or Echo().port  # before a port is free that it could be given
        port = free_port()
        values: dict[str, object] = {"machine": machine, "listens_on": [port], **changes}
        world = World(at, **values)  # type: ignore[arg-type]
        front = Listener(world, **(rules or {}))
        fronts.append(front)
        front.start()
        until(lambda: listens(port) or (not values["listens_on"] and "listens_on" in changes))
        return world, front, port

    yield make
    for front in fronts:
        front.stop()


def listens(port: int) -> bool:
    """Whether somebody does; asked without connecting, which would wake the job."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def until(good: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def open_to(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 5)
    made.settimeout(5)
    return made


Make = Callable[..., tuple[World, Listener, int]]


def test_bytes_go_to_the_job_and_back(made: Make) -> None:
    _, front, port = made(RUNS)
    with open_to(port) as s:
        s.sendall(b"hello")
        assert s.recv(10) == b"HELLO"
        assert front.connections(JOB)[0] >= 1
        s.shutdown(socket.SHUT_WR)
        assert s.recv(10) == b""
    until(lambda: front.connections(JOB)[0] == 0)
    assert front.connections(JOB)[1] is not None, "when the last one ended is known"


def test_a_connection_wakes_what_sleeps_and_is_held_until_it_runs(made: Make) -> None:
    world, front, port = made(SLEEPS, wakes_to=Target(At.COMES))
    with open_to(port) as s:
        s.sendall(b"are you there")
        until(lambda: world.woken)
        time.sleep(0.3)
        assert front.connections(JOB)[0] == 1, "it is held, and counts"
        world.at = RUNS
        assert s.recv(20) == b"ARE YOU THERE"
    assert world.woken == 1


def test_nobody_waits_for_ever(made: Make) -> None:
    _, _, port = made(Target(At.COMES), {"wait_seconds": 0.5})
    with pytest.raises(ConnectionResetError), open_to(port) as s:  # it may come while we connect
        s.recv(1)


def test_a_job_that_only_its_user_brings_back_refuses_at_once(made: Make) -> None:
    world, _, port = made(Target(At.AWAY))
    with pytest.raises(ConnectionResetError), open_to(port) as s:  # it may come while we connect
        s.recv(1)
    assert world.woken == 0


def test_open_connections_end_when_the_job_leaves_its_machine(made: Make) -> None:
    world, _, port = made(RUNS)
    with open_to(port) as s:
        s.sendall(b"x")
        assert s.recv(1) == b"X"
        world.at = Target(At.COMES, 1, "token")
        time.sleep(0.6)
        s.sendall(b"y")
        assert s.recv(1) == b"Y", "it drains: until then all goes on"
        world.at = Target(At.RUNS, 2, "other", NOW)
        with pytest.raises(ConnectionResetError):
            s.recv(1)
    with open_to(port) as s:
        s.sendall(b"again")
        assert s.recv(5) == b"AGAIN"


def test_a_connection_that_came_as_the_job_fell_asleep_wakes_it(made: Make) -> None:
    world, _, port = made(RUNS, wakes_to=RUNS)
    with open_to(port) as s:
        s.sendall(b"x")
        assert s.recv(1) == b"X"
        world.at = Target(At.SLEEPS, 1, "token")
        until(lambda: world.woken)
        s.sendall(b"z")
        assert s.recv(1) == b"Z"


def test_a_program_that_is_just_starting_is_waited_for_and_a_deaf_one_is_not(made: Make) -> None:
    late = Echo()
    dead = free_port()
    world, _, port = made(Target(At.RUNS, 1, "token", NOW), machine=dead)
    with open_to(port) as s:
        s.sendall(b"late")
        time.sleep(0.5)
        world.machine = late.port
        assert s.recv(4) == b"LATE"
    world.machine, world.at = dead, Target(At.RUNS, 1, "token", NOW - timedelta(seconds=connection.ACCEPT_SECONDS + 1))
    with pytest.raises(ConnectionResetError), open_to(port) as s:  # it may come while we connect
        s.recv(1)


def test_there_is_a_most_of_connections(made: Make) -> None:
    _, front, port = made(Target(At.COMES), {"connections_max": 2})
    until(lambda: front.connections(JOB)[0] == 0)
    with open_to(port) as a, open_to(port) as b:
        until(lambda: front.connections(JOB)[0] == 2)
        with open_to(port) as c, pytest.raises(ConnectionResetError):
            c.recv(1)
        a.close()
        b.close()
    until(lambda: front.connections(JOB)[0] == 0)


def test_a_port_that_somebody_else_has_is_passed_over(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotsurfer.ingress.listener.BIND_AGAIN_SECONDS", 0.1)
    echo = Echo()
    with socket.create_server(("127.0.0.1", 0)) as other:
        used, free = int(other.getsockname()[1]), free_port()
        made(RUNS, machine=echo.port, listens_on=[used, free])
        until(lambda: listens(free))


def test_a_job_that_ended_is_not_answered_any_more(made: Make) -> None:
    world, _, port = made(RUNS)
    world.has = {}
    until(lambda: not listens(port))
    until(lambda: world.forgotten == [[]])
