"""Connections over a tether: the sockets beneath are cut again and again, and programs at both ends notice nothing."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.minibox import minibox

from spotsurfer.model.errors import UsageError
from spotsurfer.tether.cord import Cord, read_words, write_words
from spotsurfer.tether.host_end import HostEnd, pack
from spotsurfer.tether.job_end import JobEnd

pytestmark = pytest.mark.real
HOST, JOB, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"  # each with its own ports, as machines have
KEY = "k"
Meet = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def free_port(address: str) -> int:
    with socket.socket() as s:
        s.bind((address, 0))
        return int(s.getsockname()[1])


class Road:
    """What is between the ends: it breaks whenever it is told to."""

    def __init__(self, to: int) -> None:
        self._to, self.open = to, True
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def begin(self) -> None:
        self.server = server = await asyncio.start_server(self._pass, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]

    def cut(self) -> bool:
        """Whether there was anything to cut."""
        open_ones = [writer for writer in self._writers if not writer.is_closing()]
        for writer in open_ones:
            writer.transport.abort()
        self._writers.clear()
        return bool(open_ones)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            await reader.readline()
            writer.close()  # as a gateway that does not reach what is behind it
            return
        with suppress(OSError):
            far, far_writer = await asyncio.open_connection(HOST, self._to)
            self._writers += [writer, far_writer]
            await asyncio.gather(self._one_way(reader, far_writer), self._one_way(far, writer))

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(10_000):
                writer.write(data)
                await writer.drain()
        writer.close()


class Scene:
    def __init__(self, ports: list[int]) -> None:
        self.meeting = free_port(HOST)
        self.host = HostEnd(ports, KEY)
        self.road = Road(self.meeting)
        self.tasks: list[asyncio.Task[None]] = []
        self.servers: list[asyncio.Server] = []

    async def begin(self) -> None:
        self.tasks.append(asyncio.create_task(self.host.serve(f"{HOST}:{self.meeting}")))
        await self.road.begin()
        self.servers.append(self.road.server)
        await asyncio.sleep(0.1)

    async def program(self, meet: Meet, address: str, port: int) -> None:
        self.servers.append(await asyncio.start_server(meet, address, port))

    async def job(self, here: str, key: str = KEY) -> JobEnd:
        end, known = JobEnd(HOST, self.road.port, key, here), asyncio.Event()
        self.tasks.append(asyncio.create_task(end.run(lambda _: known.set())))
        await asyncio.wait_for(known.wait(), 20)
        return end


def run(play: Callable[[Scene], Awaitable[None]], ports: list[int]) -> None:
    async def all_of_it() -> None:
        scene = Scene(ports)
        await scene.begin()
        try:
            await asyncio.wait_for(play(scene), 60)
        finally:
            for task in scene.tasks:
                task.cancel()
            for server in scene.servers:
                server.close()
            scene.road.cut()
            await asyncio.gather(*scene.tasks, return_exceptions=True)
            await asyncio.sleep(0.1)  # sockets are closed in the loop's next round

    asyncio.run(all_of_it())


async def echo_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each byte with two, and ends after the other side has."""
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data + data)
            await writer.drain()
        writer.write_eof()
    writer.close()


async def talk(address: str, port: int, size: int) -> tuple[int, str]:
    """Send so many bytes and read until the end: how many came, and their digest in which each piece counts once."""
    reader, writer = await asyncio.open_connection(address, port)
    data, h, count = random.Random(1).randbytes(size), hashlib.sha256(), 0

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    while piece := await reader.read(65536):
        count += len(piece)
        h.update(piece)
    await sending
    writer.close()
    return count, h.hexdigest()


async def talking(scene: Scene, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of a job to a program of the host, over which both have spoken."""
    await scene.program(echo_twice, HOST, port)
    await scene.job(JOB)
    reader, writer = await asyncio.open_connection(JOB, port)
    writer.write(b"a")
    assert await reader.readexactly(2) == b"aa"
    return reader, writer


def test_no_byte_is_lost_or_comes_twice_while_sockets_are_cut() -> None:
    port, size, every = free_port(HOST), 12 << 20, 1 << 20

    async def play(scene: Scene) -> None:
        received, had, tries, cuts = hashlib.sha256(), 0, 0, 0

        async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal had, tries, cuts
            while data := await reader.read(65536):
                received.update(data)
                had += len(data)
                if had >= (tries + 1) * every:
                    tries += 1
                    cuts += scene.road.cut()
                writer.write(data)
                await writer.drain()
            writer.close()

        await scene.program(sink, HOST, port)
        await scene.job(JOB)
        wanted = hashlib.sha256(random.Random(1).randbytes(size)).hexdigest()
        assert await talk(JOB, port, size) == (size, wanted)
        assert received.hexdigest() == wanted
        assert cuts >= 3

    run(play, [port])


def test_the_host_and_other_jobs_reach_a_jobs_port() -> None:
    async def play(scene: Scene) -> None:
        first, second = await scene.job(JOB), await scene.job(OTHER)
        assert first.port != second.port
        await scene.program(echo_twice, JOB, first.port)
        assert (await talk(HOST, first.port, 100_000))[0] == 200_000
        scene.road.cut()
        for _ in range(100):
            with suppress(ConnectionRefusedError):  # the other job hears of the new port a moment later
                assert (await talk(OTHER, first.port, 100_000))[0] == 200_000
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the other job has no such port")

    run(play, [])


def test_a_connection_waits_while_a_job_is_between_two_machines() -> None:
    port = free_port(HOST)

    async def play(scene: Scene) -> None:
        reader, writer = await talking(scene, port)
        scene.road.open = False
        scene.road.cut()
        writer.write(b"b")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.readexactly(2), 1)
        scene.road.open = True
        assert await asyncio.wait_for(reader.readexactly(2), 10) == b"bb"
        writer.close()

    run(play, [port])


def test_a_job_that_went_back_and_said_something_else_has_its_connection_broken() -> None:
    port = free_port(HOST)

    async def play(scene: Scene) -> None:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            try:
                while await reader.read(100):
                    pass
                ended.set_result("end")
            except ConnectionResetError:
                ended.set_result("reset")

        await scene.program(listen, HOST, port)
        job = await scene.job(JOB)
        _, writer = await asyncio.open_connection(JOB, port)
        writer.write(b"as it was")
        await asyncio.sleep(0.5)
        scene.road.open = False
        scene.road.cut()
        (name,) = job._cords
        job._cords[name]._sent[:] = b""
        job._cords[name]._first, job._cords[name]._first_hash = 9, hashlib.blake2b(b"otherwise")
        scene.road.open = True
        assert await asyncio.wait_for(ended, 20) == "reset"

    run(play, [port])


def test_a_host_that_began_anew_breaks_what_was_before() -> None:
    port = free_port(HOST)

    async def play(scene: Scene) -> None:
        reader, writer = await talking(scene, port)
        scene.tasks[0].cancel()
        await asyncio.gather(scene.tasks[0], return_exceptions=True)
        scene.host = HostEnd([port], "another key")
        scene.tasks[0] = asyncio.create_task(scene.host.serve(f"{HOST}:{scene.meeting}"))
        scene.road.cut()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(2), 20)
        writer.close()

    run(play, [port])


def test_a_goodbye_frees_the_port() -> None:
    async def play(scene: Scene) -> None:
        job = await scene.job(JOB)
        (await asyncio.open_connection(HOST, job.port))[1].close()
        await asyncio.sleep(0.5)
        await job.leave()
        for _ in range(50):
            try:
                (await asyncio.open_connection(HOST, job.port))[1].close()
            except ConnectionRefusedError:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the port is still there")

    run(play, [])


def test_a_stranger_learns_nothing() -> None:
    async def play(scene: Scene) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(scene.job(JOB, key="another"), 1)
        reader, writer = await asyncio.open_connection(HOST, scene.meeting)
        write_words(writer, {"key": "another", "job": "j", "cord": "", "new": {"port": 0}, "broken": False, **Cord().state()})
        assert await read_words(reader) == {"gone": True}
        writer.close()

    run(play, [])


@pytest.mark.parametrize("listen", ["nowhere", f"{HOST}:65536", "192.0.2.1:7786", "/no/such/folder/s"])
def test_a_place_where_nobody_can_be_met_is_named(listen: str) -> None:
    with pytest.raises(UsageError, match=listen):
        asyncio.run(HostEnd([], KEY).serve(listen))


def test_the_program_for_jobs_needs_no_spotsurfer(tmp_path: Path) -> None:
    port = free_port(HOST)
    pack(tmp_path / "join", f"{HOST}:{port}", KEY)
    assert (tmp_path / "join").stat().st_mode & 0o777 == 0o600
    script = f'eval "$({sys.executable} -I {tmp_path}/join)"; echo "port $SPOTSURFER_TETHER_PORT"'

    async def play() -> str:
        host = asyncio.create_task(HostEnd([], KEY).serve(f"{HOST}:{port}"))
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=30
        )
        host.cancel()
        await asyncio.gather(host, return_exceptions=True)
        await asyncio.sleep(0.1)
        return done.stdout + done.stderr

    said = asyncio.run(play())
    assert said.startswith("port 2") or said.startswith("port 3"), said


@pytest.mark.parametrize("scene", ["moves", "goes_back"])
def test_a_job_that_criu_saves(tmp_path: Path, scene: str) -> None:
    with minibox(tmp_path / "box", tmp_path / "store", module="support.tether_scenes") as box:
        box.run(scene)
