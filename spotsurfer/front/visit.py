"""One connection to a port of a job: held until the job can be reached, then carried to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from spotsurfer.front.pipe import PIECE_BYTES, Stream, join, kept_alive
from spotsurfer.front.places import At, Place
from spotsurfer.model.errors import SpotsurferError
from spotsurfer.model.ids import JobId

CONNECT_SECONDS = 3.0
LOOK_SECONDS = 0.2
# A job that runs for so long and listens to nobody is not waited for: whoever knocks is told at once.
ACCEPT_SECONDS = 60.0


class Ways(Protocol):
    """What a visit needs to know and have done. All but `place` may block, and are called in threads."""

    def place(self, job: JobId) -> Place:
        """Where the job is now."""
        ...

    def wake(self, job: JobId) -> None:
        """Let it go on, as its user would. Raises SpotsurferError."""
        ...

    def outlet(self, place: Place) -> tuple[socket.socket, str]:
        """A socket that is not connected yet, and the machine's address. Raises SpotsurferError, OSError."""
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
    ways: Ways
    attempt: int = 0  # that it is carried to; 0 = it waits
    machine: Stream | None = None

    async def serve(self, wait_seconds: float) -> None:
        """Until it is over. Never raises but for being cancelled."""
        try:
            self.machine = await self._reached(wait_seconds)
            if self.machine is not None:
                await join(self.client, self.machine)
        finally:
            self.end()

    def end(self) -> None:
        """Reset what is open of it."""
        for stream in (self.client, self.machine):
            if stream is not None and not stream.writer.transport.is_closing():
                stream.reset()

    async def _reached(self, wait_seconds: float) -> Stream | None:
        """The job's end; None where nobody is to be waited for any longer."""
        until = asyncio.get_running_loop().time() + wait_seconds
        while asyncio.get_running_loop().time() < until and not self.client.gone:
            place = self.ways.place(self.job)
            if place.at is At.AWAY:
                return None
            if place.at is At.SLEEPS:
                with contextlib.suppress(SpotsurferError):
                    await asyncio.to_thread(self.ways.wake, self.job)
            if place.at is At.RUNS:
                found, refused = await self._tried(place)
                if found is not None or (refused and self._deaf(place)):
                    return found
            await asyncio.sleep(LOOK_SECONDS)
        return None

    def _deaf(self, place: Place) -> bool:
        return place.since is not None and (self.ways.now() - place.since).total_seconds() > ACCEPT_SECONDS

    async def _tried(self, place: Place) -> tuple[Stream | None, bool]:
        """The connection, or None and whether the job's machine refused it."""
        try:
            raw, address = await asyncio.to_thread(self.ways.outlet, place)
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
