"""`logs --live`: output as the job prints it, read on its machine over SSH; what is in the store comes first and last.

Offsets count from the job's beginning over all machines, so the one source goes on where the other ended. What a job loses with
its machine and prints again on the next one is not shown a second time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from spotsurfer.cli.client import Client, Json, job_path, patiently
from spotsurfer.cli.follow import has_ended
from spotsurfer.cli.screen import tell
from spotsurfer.model.errors import Conflict, MachineUnreachable

if TYPE_CHECKING:
    import paramiko

LOOK_SECONDS = 2.0  # between looks whether the job has ended, or moved
Piece = tuple[str, bytes]
LogIn = Callable[[Json], "paramiko.SSHClient"]


def pieces(client: Client, job: str, streams: Sequence[str], log_in: LogIn) -> Iterator[Piece]:
    """What the job printed and prints, until it ends. Raises HostKeyMismatch, ConfigError, and what the controller answers."""
    at = dict.fromkeys(streams, 0)
    said = ""
    while True:
        seen = patiently(lambda: client.get(job_path(job)), tell)
        yield from _counted(_stored(client, job, at), at)
        if has_ended(seen):
            return
        try:
            machine = client.get(job_path(job, "machine"))
            connection = log_in(machine)
        except (Conflict, MachineUnreachable) as e:  # between two machines, or SSH does not work: the store goes on
            if str(e) != said:
                tell(f"Not live just now: {e}")
            said = str(e)
            time.sleep(LOOK_SECONDS)
            continue
        said = ""
        yield from _counted(_followed(client, job, at, (machine, connection)), at)


def _counted(found: Iterator[Piece], at: dict[str, int]) -> Iterator[Piece]:
    for name, data in found:
        at[name] += len(data)
        yield name, data


def _stored(client: Client, job: str, at: dict[str, int]) -> Iterator[Piece]:
    for name in at:
        while data := patiently(lambda n=name: client.data(job_path(job, "log", n), offset=at[n]), tell):  # type: ignore[misc]
            yield name, data


def _followed(client: Client, job: str, at: dict[str, int], there: tuple[Json, paramiko.SSHClient]) -> Iterator[Piece]:
    """From the machine, until the job is elsewhere or over, or the connection ends."""
    from spotsurfer.ssh import remote

    machine, connection = there
    found: queue.Queue[Piece | None] = queue.Queue()

    def follow(name: str, start: int) -> None:
        try:
            remote.follow(connection, machine["user"], name, start, lambda data: found.put((name, data)))
        except MachineUnreachable:
            pass  # it went; the store knows more
        finally:
            found.put(None)

    threads = [threading.Thread(target=follow, args=x, daemon=True) for x in at.items()]
    for thread in threads:
        thread.start()
    try:
        yield from _until(found, lambda: _left(client, job, machine["attempt"]))
    finally:
        connection.close()
        for thread in threads:
            thread.join(5.0)


def _until(found: queue.Queue[Piece | None], over: Callable[[], bool]) -> Iterator[Piece]:
    """What comes, until nothing more does or somebody says so; asked now and then, for a connection may outlive the job."""
    looked = time.monotonic()
    while True:
        try:
            piece = found.get(timeout=LOOK_SECONDS)
            if piece is None:
                return
            yield piece
        except queue.Empty:
            pass
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            if over():
                return


def _left(client: Client, job: str, attempt: int) -> bool:
    try:
        return has_ended(client.get(job_path(job))) or client.get(job_path(job, "machine"))["attempt"] != attempt
    except Conflict:
        return True
