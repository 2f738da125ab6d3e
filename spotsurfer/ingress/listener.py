"""All doors of the front, in a thread and an event loop of their own: one listening port for each port of a job."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from spotsurfer_wire.doors import DOOR

from spotsurfer.ingress.connection import PIECE_BYTES, At, Doors, Stream, Visit, kept_alive
from spotsurfer.model.job import JobId, JobPort

log = structlog.get_logger()
TEND_SECONDS = 0.25
BIND_AGAIN_SECONDS = 5.0
BACKLOG = 128


@dataclass
class _Door:
    job: JobId
    number: int  # of the job's ports
    server: asyncio.Server
    visits: set[Visit] = field(default_factory=set)


class Listener:
    """`start` and `stop` it; `connections` may be asked from any thread."""

    def __init__(
        self, doors: Doors, address: str = "127.0.0.1", wait_seconds: float = 600.0, connections_max: int = 512
    ) -> None:
        """Settings of the operator, see `config.settings.FrontSection`."""
        self._doors, self._address, self._wait_seconds, self._connections_max = doors, address, wait_seconds, connections_max
        self._open: dict[tuple[JobId, str], _Door] = {}
        self._visits: dict[JobId, set[Visit]] = defaultdict(set)
        self._closed_at: dict[JobId, datetime] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bind_after: dict[tuple[JobId, str], float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def connections(self, job: JobId) -> tuple[int, datetime | None]:
        """Number of the job's connections, waiting ones included, and the end of the last one."""
        visits = self._visits.get(job)
        return len(visits) if visits else 0, self._closed_at.get(job)

    def start(self) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self.run()), name="front", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    async def run(self) -> None:
        """Until `stop`."""
        try:
            while not self._stop.is_set():
                try:
                    await self._tend()
                except Exception as e:  # the front lives on and retries
                    log.exception("front.trouble", error=str(e))
                await asyncio.sleep(TEND_SECONDS)
        finally:
            for key in list(self._open):
                self._shut(key)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ doors

    async def _tend(self) -> None:
        await self._follow(self._doors.ports())
        for job, visits in list(self._visits.items()):
            await self._watch(job, visits)

    async def _follow(self, wanted: Mapping[JobId, tuple[JobPort, ...]]) -> None:
        keys = {(job, p.name): number for job, ports in wanted.items() for number, p in enumerate(ports)}
        gone = [key for key in self._open if key not in keys]
        for key in gone:
            self._shut(key)
        if gone:
            await asyncio.to_thread(self._doors.forget, list(wanted))
        now = asyncio.get_running_loop().time()
        for key, number in keys.items():
            if key not in self._open and now >= self._bind_after.get(key, 0.0):
                await self._listen(*key, number)

    async def _listen(self, job: JobId, name: str, number: int) -> None:
        port = await asyncio.to_thread(self._doors.listens, job, name)
        self._bind_after[job, name] = asyncio.get_running_loop().time() + BIND_AGAIN_SECONDS
        if port is None:
            log.warning("front.full", job=job, port=name)
            return
        try:
            raw = listening(self._address, port)
        except OSError as e:
            log.warning("front.taken", job=job, port=name, listens=port, error=str(e))
            await asyncio.to_thread(self._doors.taken, job, name)
            return

        async def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._visited(job, number, Stream(reader, writer))

        self._open[job, name] = _Door(job, number, await asyncio.start_server(come, sock=raw, limit=PIECE_BYTES))
        self._bind_after.pop((job, name), None)
        log.info("front.opened", job=job, port=name, listens=port)

    def _shut(self, key: tuple[JobId, str]) -> None:
        door = self._open.pop(key)
        door.server.close()
        for visit in [v for v in self._visits.get(door.job, ()) if v.door == DOOR + door.number]:
            visit.end()

    # ------------------------------------------------------------ visits

    async def _visited(self, job: JobId, number: int, client: Stream) -> None:
        if sum(len(v) for v in self._visits.values()) >= self._connections_max:
            client.reset()
            return
        with contextlib.suppress(OSError):
            kept_alive(client.writer.get_extra_info("socket"))
        visit = Visit(job, DOOR + number, client, self._doors)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._visits[job].add(visit)
        try:
            await visit.serve(self._wait_seconds)
        finally:
            self._tasks.discard(task)
            self._visits[job].discard(visit)
            self._closed_at[job] = self._doors.now()

    async def _watch(self, job: JobId, visits: set[Visit]) -> None:
        """Ends connections to a machine that the job has left; one that arrives while the job falls asleep wakes it."""
        if not visits:
            del self._visits[job]
            return
        place = self._doors.place(job)
        for visit in list(visits):
            if visit.attempt and visit.attempt != place.attempt:
                visit.end()
        if place.at is At.SLEEPS and any(v.attempt for v in visits):
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self._doors.wake, job)


def listening(address: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    family, kind, proto, _, at = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    raw = socket.socket(family, kind, proto)
    try:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        raw.bind(at)
        raw.listen(BACKLOG)
    except OSError:
        raw.close()
        raise
    return raw
