"""The end of a tether on the submit host: ports of this host are ports within the jobs, and each job has one here."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import random
import secrets
import signal
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer.model.errors import UsageError
from spotsurfer.tether.cord import LINE_MAX, Cord, Reader, Words, Writer, abort, join, read_words, watch, write_words

HERE = "127.0.0.1"
PORTS = range(20000, 32000)  # of jobs: below those that systems choose by themselves
AWAY_SECONDS = 3600.0
LOOK_SECONDS = 5.0
GONE: Words = {"gone": True}
PACKED = ("cord.py", "job_end.py")
START = """\
from spotsurfer.tether.job_end import main
raise SystemExit(main({config!r}))
"""


@dataclass
class _Job:
    name: str
    port: int
    server: asyncio.AbstractServer
    control: Cord
    heard_at: float
    cords: dict[str, Cord] = field(default_factory=dict)


class HostEnd:
    """Meets jobs. `ports` are those of this host that jobs may reach."""

    def __init__(self, ports: Sequence[int], key: str, away_seconds: float = AWAY_SECONDS) -> None:
        self._ports, self._key, self._away_seconds = list(ports), key, away_seconds
        self._jobs: dict[str, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listen: str, ready: Callable[[], None] = lambda: None) -> None:
        """Until cancelled. `listen` is the path of a Unix socket, or HOST:PORT; `ready` is called when jobs can come.

        Raises UsageError.
        """
        try:
            if "/" in listen:
                Path(listen).unlink(missing_ok=True)
                server = await asyncio.start_unix_server(self._meet, listen, limit=LINE_MAX)
            else:
                host, _, port = listen.rpartition(":")
                server = await asyncio.start_server(self._meet, host, int(port), limit=LINE_MAX)
        except (OSError, ValueError, OverflowError) as e:
            raise UsageError(f"--listen is {listen!r}, nobody can be met there: {e}") from e
        ready()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self._give_up()
        finally:
            server.close()
            for job in list(self._jobs.values()):
                self._drop(job)

    def _give_up(self) -> None:
        now = asyncio.get_running_loop().time()
        for job in list(self._jobs.values()):
            if job.control.held:
                job.heard_at = now
            elif now - job.heard_at > self._away_seconds:
                self._drop(job)

    def _drop(self, job: _Job) -> None:
        self._jobs.pop(job.name, None)
        job.server.close()
        for cord in (*job.cords.values(), job.control):
            cord.snap()
        self._tell_ports()

    # ---- jobs

    async def _meet(self, reader: Reader, writer: Writer) -> None:
        try:
            watch(writer)
            hello = await read_words(reader)
            known = hmac.compare_digest(str(hello.get("key")).encode(), self._key.encode())
            cord = await self._wanted(hello) if known else None
            write_words(writer, GONE if cord is None else cord.state())
            if cord is not None:
                await cord.carry(reader, writer, hello)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # a stranger, or a job that has just moved: it comes again
        finally:
            writer.close()

    async def _wanted(self, hello: Words) -> Cord | None:
        """The cord that goes on, if both ends agree."""
        cord = self._cord_of(hello) if hello["cord"] else await self._control_of(hello)
        if cord is not None and (hello["broken"] or not cord.agrees(hello)):
            cord.snap()
            return None
        return cord

    async def _control_of(self, hello: Words) -> Cord | None:
        job = self._jobs.get(hello["job"])
        if hello["new"] is None:
            if job is not None:
                for name in [n for n, c in job.cords.items() if c.met and n not in hello["cords"]]:
                    job.cords[name].snap()  # the job went back to a time before this connection
            return None if job is None else job.control
        if job is not None:
            self._drop(job)
        job = await self._new_job(hello["job"], int(hello["new"]["port"]))
        self._spawn(self._follow(job))
        self._tell_ports()
        return job.control

    async def _new_job(self, name: str, port: int) -> _Job:
        for number in (*([port] if port in PORTS else []), *random.sample(PORTS, 100)):
            with contextlib.suppress(OSError):
                server = await asyncio.start_server(lambda r, w: self._call(name, r, w), HERE, number)
                self._jobs[name] = job = _Job(name, number, server, Cord(), asyncio.get_running_loop().time())
                return job
        raise OSError("no port is free")

    async def _follow(self, job: _Job) -> None:
        """Until the job says goodbye."""
        with contextlib.suppress(ConnectionResetError):
            await job.control.take()
            self._drop(job)

    def _cord_of(self, hello: Words) -> Cord | None:
        job, name = self._jobs[hello["job"]], str(hello["cord"])
        if hello["new"] is not None and name not in job.cords and int(hello["new"]["to"]) in self._every_port():
            job.cords[name] = Cord()
            self._spawn(self._reach(job, name, int(hello["new"]["to"])))
        return job.cords.get(name)

    async def _reach(self, job: _Job, name: str, port: int) -> None:
        """A program of the job connected to a port of this host, or to one of another job, which is here, too."""
        try:
            reader, writer = await asyncio.open_connection(HERE, port)
        except OSError:
            job.cords.pop(name).snap()
            return
        await self._lead(job, name, reader, writer)

    async def _call(self, name: str, reader: Reader, writer: Writer) -> None:
        """A program connected to a job's port."""
        job, cord = self._jobs.get(name), secrets.token_hex(8)
        if job is None:
            abort(writer)
            return
        job.cords[cord] = Cord()
        self._spawn(self._tell(job, {"call": cord}))
        await self._lead(job, cord, reader, writer)

    async def _lead(self, job: _Job, name: str, reader: Reader, writer: Writer) -> None:
        cord = job.cords[name]
        try:
            await join(cord, reader, writer)
            while not (cord.done or cord.broken):
                await cord.change()
        finally:
            del job.cords[name]

    # ---- what jobs are told

    def _every_port(self) -> list[int]:
        return [*self._ports, *(job.port for job in self._jobs.values())]

    def _tell_ports(self) -> None:
        for job in self._jobs.values():
            self._spawn(self._tell(job, {"port": job.port, "ports": self._every_port()}))

    async def _tell(self, job: _Job, words: Words) -> None:
        with contextlib.suppress(ConnectionResetError):
            await job.control.send(json.dumps(words).encode() + b"\n")

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def pack(path: Path, address: str, key: str) -> None:
    """Write the program that jobs call; it holds the key, so nobody else may read it. Raises UsageError, OSError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--address is {address!r}, expected HOST:PORT as machines reach it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(0o600)
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("__main__.py", START.format(config={"host": host, "port": int(port), "key": key}))
        for folder in ("spotsurfer", "spotsurfer/tether"):
            packed.writestr(f"{folder}/__init__.py", "")
        for name in PACKED:
            packed.writestr(f"spotsurfer/tether/{name}", (Path(__file__).parent / name).read_text())


def hold(ports: Sequence[int], listen: str, address: str, to: Path, ready: Callable[[], None]) -> None:
    """Write the program of jobs, and serve them until SIGINT or SIGTERM. Raises UsageError, OSError."""
    key = secrets.token_hex(32)
    pack(to, address, key)

    async def run() -> None:
        serving = asyncio.current_task()
        assert serving is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await HostEnd(ports, key).serve(listen, ready)

    asyncio.run(run())
