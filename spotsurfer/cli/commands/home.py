"""`home`: what is awaited of jobs that work in folders of this host, and bringing it home."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from spotsurfer.cli.common import SESSION, examples
from spotsurfer.cli.printing import complain, put, put_json, table, tell
from spotsurfer.home import courier
from spotsurfer.home.book import AWAITED, Awaited, Book
from spotsurfer.home.deliver import Pass, deliver
from spotsurfer.model.errors import NotFound
from spotsurfer.web.client import Client, Json

LOOK_SECONDS = 1.0


def add(app: typer.Typer) -> None:
    """Register the command of this file."""
    app.command(epilog=examples("spotsurfer home", "spotsurfer home --wait", "spotsurfer home --json assembly-3f9a1c"))(home)


def home(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Only these.", show_default=False)] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until all of it is home.")] = False,
) -> None:
    """Bring home what jobs made of folders of this host, and say what is still awaited."""
    client, book = SESSION.client(), Book()
    wanted = list(jobs or [])
    known = book.jobs(wanted)
    if unknown := set(wanted) - {a.job for a in known}:
        raise NotFound(
            f"Nothing of {sorted(unknown)[0]} is awaited on this host: it has no home folder, or came from elsewhere."
        )
    troubles: dict[str, str] = {}

    def heard(done: Pass) -> None:
        _say(done)
        troubles.update(done.troubles)

    if not wait:
        heard(deliver(client, wanted or None, wait=True, book=book))
    elif wanted:
        come_home(client, wanted, book)
    else:
        _in_front(client, book, heard)
    left = book.jobs(wanted) if wanted else book.open(client.place)
    if put_json([_view(a, troubles) for a in left]):
        return
    if not left:
        put("Nothing is awaited: all is home.")
    else:
        table(["job", "state", "home", "output"], [[a.job, a.state, a.home, a.stdout] for a in left])
    for one in left if wanted else []:
        for line in one.told:
            put(f"{one.job}: {line}.")


def _in_front(client: Client, book: Book, heard: Callable[[Pass], None]) -> None:
    """Until nothing is awaited, whether this process or another brings it."""
    while not courier.run(client, book, time.sleep, heard) and book.open(client.place):
        time.sleep(LOOK_SECONDS)


def come_home(client: Client, jobs: list[str], book: Book | None = None) -> None:
    """Wait until these jobs, which have ended or will, are home; says what its user must know."""
    book = book or Book()
    while any(a.state == AWAITED for a in book.jobs(jobs)):
        done = deliver(client, jobs, wait=True, book=book)
        _say(done)
        if any(a.state == AWAITED for a in book.jobs(jobs)):
            time.sleep(LOOK_SECONDS)


def _say(done: Pass) -> None:
    for one in done.home:
        tell(f"{one.job} is home{f', in {one.home}' if one.home else ''}.")
        for line in one.told:
            complain(f"{one.job}: {line}.")
    for job, why in done.troubles.items():
        complain(f"{job} is not home yet: {why}")


def _view(one: Awaited, troubles: dict[str, str]) -> Json:
    return {
        "job": one.job,
        "state": one.state,
        "home": one.home,
        "stdout": one.stdout,
        "stderr": one.stderr,
        "told": one.told,
        "trouble": troubles.get(one.job, ""),
    }
