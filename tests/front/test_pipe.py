"""Bytes both ways: half a close, a reader that does not read, an end that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from spotsurfer.ingress.connection import PIECE_BYTES, Stream, join

Ends = tuple[Stream, Stream]


async def pair() -> Ends:
    """Two ends of one connection over loopback."""
    came: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()

    async def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set_result(Stream(reader, writer))

    server = await asyncio.start_server(come, "127.0.0.1", 0, limit=PIECE_BYTES)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=PIECE_BYTES)
    found = await came
    server.close()
    return Stream(reader, writer), found


@asynccontextmanager
async def joined(half_seconds: float = 5.0) -> AsyncIterator[tuple[Stream, Stream, asyncio.Task[None]]]:
    """A client and a job with the pipe between them."""
    (client, near), (far, job) = await pair(), await pair()
    task = asyncio.create_task(join(near, far, half_seconds))
    try:
        yield client, job, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for end in (client, job):
            end.reset()


async def within(what: object, seconds: float = 5.0) -> object:
    async with asyncio.timeout(seconds):
        return await what  # type: ignore[misc]


def test_an_end_one_way_leaves_the_other_way_open() -> None:
    async def scene() -> None:
        async with joined() as (client, job, task):
            client.writer.write(b"question")
            client.writer.write_eof()
            assert await within(job.reader.read()) == b"question", "the job hears the end"
            job.writer.write(b"answer")
            await job.writer.drain()
            assert await within(client.reader.readexactly(6)) == b"answer"
            job.writer.write_eof()
            assert await within(client.reader.read()) == b""
            await within(task)

    asyncio.run(scene())


def test_who_does_not_read_makes_the_other_wait_and_loses_nothing() -> None:
    size = 64 << 20

    async def scene() -> None:
        async with joined() as (client, job, _):

            async def send() -> None:
                for _ in range(size // PIECE_BYTES):
                    client.writer.write(b"x" * PIECE_BYTES)
                    await client.writer.drain()
                client.writer.write_eof()

            sending = asyncio.create_task(send())
            await asyncio.sleep(0.5)
            assert not sending.done(), "64 MiB were taken by somebody who may hold some pieces only"
            came = 0
            while piece := await within(job.reader.read(1 << 20)):
                came += len(piece)  # type: ignore[arg-type]
            assert came == size

    asyncio.run(scene())


def test_an_end_that_breaks_is_a_reset_for_the_other() -> None:
    async def scene() -> None:
        async with joined() as (client, job, task):
            job.writer.write(b"half an ans")
            await job.writer.drain()
            await within(client.reader.readexactly(11))
            job.reset()
            with pytest.raises(ConnectionResetError):
                await within(client.reader.read())
            await within(task)

    asyncio.run(scene())


def test_half_a_connection_on_which_nothing_moves_is_given_up() -> None:
    async def scene() -> None:
        async with joined(half_seconds=0.3) as (client, job, task):
            client.writer.write_eof()
            assert await within(job.reader.read()) == b""
            await within(task)
            with pytest.raises(ConnectionResetError):
                await within(client.reader.read())

    asyncio.run(scene())
