"""The end of a tether in a job. `host_end` packs it into the program that a job's script calls: it prints shell text.

Within the job each port of the tether is one of 127.0.0.1, and the job's own port is one at all other ends. On machines it
needs Python 3.11 alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from spotsurfer.tether.cord import LINE_MAX, Cord, Reader, Words, Writer, join, read_words, watch, write_words

AGAIN_SECONDS, SLOW_SECONDS = 0.2, 2.0
DRAIN_SECONDS = 10.0
SHELL = """\
export SPOTSURFER_TETHER_PORT={port}
trap 'kill {pid} 2>/dev/null && while kill -0 {pid} 2>/dev/null; do sleep 0.1; done; :' EXIT
"""


class JobEnd:
    """Dials the host, again and again, and serves the programs of this job."""

    def __init__(self, host: str, port: int, key: str, here: str = "127.0.0.1") -> None:
        self._host, self._host_port, self._here = host, port, here
        self._name, self._key = secrets.token_hex(8), key
        self.port, self._leaving = 0, False
        self._control = Cord()
        self._cords: dict[str, Cord] = {}
        self._servers: dict[int, asyncio.AbstractServer] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    async def run(self, ready: Callable[[int], None]) -> None:
        """Until cancelled, or `leave` was called. `ready(port)` is called when the host has answered for the first time."""
        try:
            await self._run(ready)
        finally:
            for server in self._servers.values():
                server.close()

    async def _run(self, ready: Callable[[int], None]) -> None:
        told = False
        while not self._leaving:
            self._control = Cord()
            kept = self._spawn(self._keep("", self._control, new={"port": self.port}))
            with contextlib.suppress(ConnectionResetError):  # the host knows nothing of us any more, or we went back
                async for words in self._orders():
                    await self._obey(words)
                    if not told:
                        told = True
                        ready(self.port)
            await kept
            for cord in self._cords.values():
                cord.snap()
            await asyncio.sleep(AGAIN_SECONDS)

    async def leave(self) -> None:
        """Wait some seconds until all that was sent is with the host, then say goodbye."""
        self._leaving = True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._drained(), DRAIN_SECONDS)

    async def _drained(self) -> None:
        while self._cords:
            await asyncio.sleep(0.05)
        self._control.end()
        while self._control.held:
            await self._control.change()

    async def _orders(self) -> AsyncIterator[Words]:
        rest = b""
        while True:
            data = await self._control.take()
            self._control.taken(len(data))
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    async def _obey(self, words: Words) -> None:
        if "call" in words:
            self._spawn(self._answer(str(words["call"])))
            return
        self.port = int(words["port"])
        wanted = set(words["ports"]) - {self.port}
        for port in set(self._servers) - wanted:
            self._servers.pop(port).close()
        for port in wanted - set(self._servers):
            try:
                self._servers[port] = await asyncio.start_server(partial(self._lead, port), self._here, port)
            except OSError as e:
                print(f"tether: port {port} is taken here: {e}", file=sys.stderr, flush=True)

    async def _lead(self, port: int, reader: Reader, writer: Writer) -> None:
        """A program of this job connected to a port of the tether."""
        await self._hold(secrets.token_hex(8), reader, writer, {"to": port})

    async def _answer(self, name: str) -> None:
        """Somebody connected to this job's port elsewhere."""
        try:
            reader, writer = await asyncio.open_connection(self._here, self.port)
        except OSError:
            cord = Cord()
            cord.snap()
            await self._keep(name, cord, None)
            return
        await self._hold(name, reader, writer, None)

    async def _hold(self, name: str, reader: Reader, writer: Writer, new: Words | None) -> None:
        cord = self._cords[name] = Cord()
        kept = self._spawn(self._keep(name, cord, new))
        try:
            await join(cord, reader, writer)
            await kept
        finally:
            self._cords.pop(name, None)

    async def _keep(self, name: str, cord: Cord, new: Words | None) -> None:
        """Give the cord sockets until its end."""
        pause = AGAIN_SECONDS
        while not cord.done:
            over = cord.broken  # the host hears of it once
            try:
                held = await self._dial(name, cord, None if cord.met else new)
                pause = AGAIN_SECONDS if held else SLOW_SECONDS
            except (TimeoutError, OSError, ValueError):
                pause = min(pause * 2, SLOW_SECONDS)
            if over:
                return
            await asyncio.sleep(pause)

    async def _dial(self, name: str, cord: Cord, new: Words | None) -> bool:
        reader, writer = await asyncio.open_connection(self._host, self._host_port, limit=LINE_MAX)
        try:
            watch(writer)
            hello = {"key": self._key, "job": self._name, "cord": name, "new": new, "broken": cord.broken, **cord.state()}
            write_words(writer, {**hello, "cords": [] if name else list(self._cords)})
            answer = await read_words(reader)
            if "had" in answer and not cord.broken and cord.agrees(answer):
                await cord.carry(reader, writer, answer)
            else:
                cord.snap()  # the host has given it up, or this end went back
            return cord.met
        finally:
            writer.close()

    def _spawn(self, work: Any) -> asyncio.Future[None]:
        task: asyncio.Future[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def serve(config: Words, ready: Callable[[int], None]) -> None:
    """Until SIGTERM."""
    end = JobEnd(config["host"], config["port"], config["key"])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    running = asyncio.ensure_future(end.run(ready))
    await asyncio.wait([running, asyncio.ensure_future(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        await end.leave()
    running.cancel()


def main(config: Words) -> int:
    """Start the job's end as a process of the job, and print what the job's script evaluates."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.dup2(2, 1)

        def ready(port: int) -> None:
            os.write(write, str(port).encode())
            os.close(write)

        asyncio.run(serve(config, ready))
        return 0
    os.close(write)
    port = os.read(read, 16).decode()
    if not port:
        print("echo 'tether: it ended before the host answered' >&2; exit 1")
        return 1
    print(SHELL.format(port=port, pid=pid), end="")
    return 0
