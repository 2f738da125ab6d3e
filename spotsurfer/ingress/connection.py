"""One connection to a port of a job: held until the job can be reached, then relayed both ways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from spotsurfer.model.errors import SpotsurferError
from spotsurfer.model.job import ENDED, Attempt, AttemptState, HeldBy, InstanceId, JobId, JobPort, Wish, rehearses
from spotsurfer.model.snapshot import JobSeen

# ---- Relay: carries bytes both ways between two connections, ends included.
# A slow reader makes the other end wait: only a few pieces are held. After one way has ended, the connection lives as long as
# bytes move the other way.

PIECE_BYTES = 1 << 16
HALF_SECONDS = 300.0  # one way ended, nothing moves the other way
ALIVE_SECONDS, ALIVE_TRIES = 60, 4  # detects a peer that vanished silently


@dataclass
class Stream:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def gone(self) -> bool:
        """Whether its peer has reset it, or ended it without sending anything."""
        return self.reader.exception() is not None or self.reader.at_eof() or self.writer.transport.is_closing()

    def reset(self) -> None:
        """End it as a crash would: a peer must not take the bytes so far for the whole."""
        raw = self.writer.get_extra_info("socket")
        if raw is not None and not self.writer.transport.is_closing():
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class _Moved:
    at: float = field(default_factory=time.monotonic)


async def join(one: Stream, other: Stream, half_seconds: float = HALF_SECONDS) -> None:
    """Carry bytes until both ways ended; an error of one end resets both. Both are closed when this returns."""
    moved = _Moved()
    ways = [asyncio.create_task(_pump(a.reader, b.writer, moved)) for a, b in ((one, other), (other, one))]
    whole = False
    try:
        done, left = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        failed = any(w.exception() is not None for w in done)
        while left and not failed and time.monotonic() - moved.at < half_seconds:
            done, left = await asyncio.wait(left, timeout=half_seconds / 10)
            failed = any(w.exception() is not None for w in done)
        whole = not left and not failed
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for stream in (one, other):
            stream.writer.close() if whole else stream.reset()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: _Moved) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
        moved.at = time.monotonic()
    writer.write_eof()
    moved.at = time.monotonic()


def kept_alive(raw: socket.socket) -> None:
    """Have the kernel probe a silent peer."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_SECONDS // ALIVE_TRIES)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ALIVE_TRIES)


# ---- Target: where a job can be reached now. Pure.


class At(StrEnum):
    """What to do with a connection."""

    RUNS = "runs"  # carry it
    COMES = "comes"  # hold it: the job starts, moves, or waits for a machine
    SLEEPS = "sleeps"  # hold it and wake the job
    AWAY = "away"  # close it: only the user brings the job back


@dataclass(frozen=True, slots=True)
class Target:
    """`attempt`: its machine has the job; connections live as long as that. 0 = the job is on no machine."""

    at: At
    attempt: int = 0
    token: str = ""
    since: datetime | None = None  # it runs there
    instance: InstanceId | None = None


def target_of(seen: JobSeen) -> Target:
    """The target of one job."""
    job = seen.job
    on = next((a for a in seen.attempts if a.state in (AttemptState.RUNNING, AttemptState.DRAINING)), None)
    if job.state in ENDED or job.wish is Wish.CANCEL or rehearses(job):
        return Target(At.AWAY)
    if job.wish is Wish.HOLD:
        return _on(At.SLEEPS if job.held_by is HeldBy.IDLE else At.AWAY, on)
    runs = on is not None and on.state is AttemptState.RUNNING and job.wish is Wish.RUN
    return _on(At.RUNS if runs else At.COMES, on)


def _on(at: At, attempt: Attempt | None) -> Target:
    return Target(at) if attempt is None else Target(at, attempt.number, attempt.token, attempt.since, attempt.instance)


# ---- Visit: one connection from arrival to end.

CONNECT_SECONDS = 3.0
LOOK_SECONDS = 0.2
# A visitor is refused at once if the job has run for so long and still does not listen.
ACCEPT_SECONDS = 60.0


class Doors(Protocol):
    """The front's interface to the controller. All methods but `ports`, `place` and `now` may block; threads call them."""

    def ports(self) -> Mapping[JobId, tuple[JobPort, ...]]:
        """Ports of all jobs that have not ended. Does not block."""
        ...

    def listens(self, job: JobId, name: str) -> int | None:
        """The front's own port for a job's port, the same each time; None if all are in use."""
        ...

    def taken(self, job: JobId, name: str) -> None:
        """Another program has that port: choose another one next time, unless it was used before."""
        ...

    def forget(self, jobs: Iterable[JobId]) -> None:
        """Only these jobs still have ports; forget all others."""
        ...

    def place(self, job: JobId) -> Target:
        """The job's present target."""
        ...

    def wake(self, job: JobId) -> None:
        """Resume the job, as its user would. Raises SpotsurferError."""
        ...

    def outlet(self, place: Target) -> tuple[socket.socket, str]:
        """An unconnected socket, and the machine's address. Raises SpotsurferError, OSError."""
        ...

    def now(self) -> datetime:
        """The controller's clock."""
        ...


@dataclass(eq=False)
class Visit:
    """`door`: the port of the machine that leads to the port of the job."""

    job: JobId
    door: int
    client: Stream
    doors: Doors
    attempt: int = 0  # that it is carried to; 0 = it waits
    machine: Stream | None = None

    async def serve(self, wait_seconds: float) -> None:
        """Run until the end. Raises only if cancelled."""
        try:
            self.machine = await self._reached(wait_seconds)
            if self.machine is not None:
                await join(self.client, self.machine)
        finally:
            self.end()

    def end(self) -> None:
        """Reset its open connections."""
        for stream in (self.client, self.machine):
            if stream is not None and not stream.writer.transport.is_closing():
                stream.reset()

    async def _reached(self, wait_seconds: float) -> Stream | None:
        """The connection to the job; None if waiting makes no sense any longer."""
        until = asyncio.get_running_loop().time() + wait_seconds
        while asyncio.get_running_loop().time() < until and not self.client.gone:
            place = self.doors.place(self.job)
            if place.at is At.AWAY:
                return None
            if place.at is At.SLEEPS:
                with contextlib.suppress(SpotsurferError):
                    await asyncio.to_thread(self.doors.wake, self.job)
            if place.at is At.RUNS:
                found, refused = await self._tried(place)
                if found is not None or (refused and self._deaf(place)):
                    return found
            await asyncio.sleep(LOOK_SECONDS)
        return None

    def _deaf(self, place: Target) -> bool:
        return place.since is not None and (self.doors.now() - place.since).total_seconds() > ACCEPT_SECONDS

    async def _tried(self, place: Target) -> tuple[Stream | None, bool]:
        """The connection, or None and whether the job's machine refused it."""
        try:
            raw, address = await asyncio.to_thread(self.doors.outlet, place)
        except (SpotsurferError, OSError):
            return None, False
        try:
            raw.setblocking(False)
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(raw, (address, self.door))
            kept_alive(raw)
            made = Stream(*await asyncio.open_connection(sock=raw, limit=PIECE_BYTES))
        except (OSError, TimeoutError) as e:
            raw.close()
            return None, isinstance(e, ConnectionRefusedError)
        except BaseException:
            raw.close()
            raise
        self.attempt = place.attempt
        return made, False
