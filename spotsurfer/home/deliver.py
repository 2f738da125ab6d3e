"""Brings home what has ended: output, files, removals. Any process of the user may do it; one at a time does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_wire.home_tree import HomeChange, HomeEntry

from spotsurfer.home import logs
from spotsurfer.home.arrival import Arrival
from spotsurfer.home.book import AWAITED, LOST, Awaited, Book
from spotsurfer.home.settling import settle
from spotsurfer.model.errors import Conflict, Denied, NoController, NotFound, SpotsurferError
from spotsurfer.web.client import Client, Json, job_path

FEW = 20  # so many jobs are asked for one by one; of more the list is asked for
ENDED = ("succeeded", "failed", "cancelled")


@dataclass(slots=True)
class Pass:
    """What one look brought. `troubles`: what failed, by job; it is tried again."""

    home: list[Awaited] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)
    printed: bool = False
    busy: bool = False  # another process of the user is at it

    @property
    def found_any(self) -> bool:
        """Whether anything came."""
        return bool(self.home) or self.printed


def deliver(
    client: Client,
    jobs: Sequence[str] | None = None,
    *,
    wait: bool = False,
    book: Book | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Pass:
    """One look at what this user awaits of the controller (or of these jobs): output is written, ended jobs come home.

    `wait`: for another process that is at it, else nothing is done. Raises NoController, Denied; what fails for one job, a full
    disk above all, is in the result.
    """
    book = book or Book()
    with book.alone("deliver", wait=wait) as mine:
        if not mine:
            return Pass(busy=True)
        chosen = None if jobs is None else set(jobs)
        troubles = settle(client, book)
        wanted = [a for a in book.open(client.place) if chosen is None or a.job in chosen]
        done, views = Pass(troubles=troubles), _views(client, [a.job for a in wanted])
        for one in wanted:
            if stop():
                break
            try:
                _one(client, book, one, views.get(one.job), done)
            except (SpotsurferError, OSError) as e:
                if isinstance(e, NoController | Denied):
                    raise
                done.troubles[one.job] = str(e)
        return done


def at_home(job: str, book: Book | None = None) -> bool:
    """Whether nothing of the job is awaited on this host: it came home, or was never to."""
    return all(a.state != AWAITED for a in (book or Book()).jobs([job]))


def awaited(book: Book | None = None) -> frozenset[str]:
    """All jobs of which something is awaited on this host: for lists of many."""
    return frozenset(a.job for a in (book or Book()).open())


def _views(client: Client, ids: list[str]) -> dict[str, Json | None]:
    if len(ids) > FEW:
        wanted = set(ids)
        return {v["id"]: v for v in client.get("/v1/brief")["jobs"] if v["id"] in wanted}
    found: dict[str, Json | None] = {}
    for job in ids:
        try:
            found[job] = client.get(job_path(job))
        except NotFound:
            found[job] = None
    return found


def _one(client: Client, book: Book, one: Awaited, view: Json | None, done: Pass) -> None:
    if view is None:
        told = ["the controller does not know this job any more: nothing of it comes home"]
        book.came(one.job, told, LOST)
        done.home += book.jobs([one.job])
        return
    ended = view["state"] in ENDED
    if ended and "attempts" not in view:
        view = client.get(job_path(one.job))
    if view["state"] != "queued":
        done.printed |= logs.write(client, book, one, view, last=ended)
    if not ended:
        return
    told = _files(client, book, one) if one.home else []
    book.came(one.job, told)
    done.home += book.jobs([one.job])


def _files(client: Client, book: Book, one: Awaited) -> list[str]:
    """Bring the files of an ended job. Raises Conflict while its machine still sends."""
    answer = client.get(job_path(one.job, "home"))
    changes = [HomeChange(_entry(c["now"]), _entry(c["was"]) if c["was"] else None) for c in answer["changes"]]

    def fetch(sha256: str) -> Iterator[bytes]:
        return client.download(job_path(one.job, "home", sha256))

    home = Path(one.home)
    if not home.is_dir():
        raise Conflict(f"The folder {home} is not there: make it, and what {one.job} made comes home.")
    printed = {Path(path) for path in (one.stdout, one.stderr) if path}
    arrival = Arrival(home, one.job, one.noted_ns, fetch, printed)
    arrival.run(changes, book.placed(one.job), lambda paths: book.place(one.job, paths))
    left = [f"{path!r} stayed on the machine: it is no file or link, or its name is no text" for path in answer["passed_over"]]
    return [*arrival.told, *left]


def _entry(raw: dict[str, Any]) -> HomeEntry:
    return HomeEntry(**{name: raw[name] for name in HomeEntry.__slots__})
