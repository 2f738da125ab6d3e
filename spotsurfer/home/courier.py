"""The courier: a process of the user, without a terminal, that brings home what is awaited and then ends.

One for each user and controller. Killing it loses nothing: the next submission or `spotsurfer home` goes on.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

from spotsurfer.common.backoff import backoff_seconds
from spotsurfer.home import logs, settling
from spotsurfer.home.book import Awaited, Book
from spotsurfer.home.deliver import FEW, Pass, deliver
from spotsurfer.model.errors import NoController
from spotsurfer.model.job import JobId, JobSpec
from spotsurfer.model.queueing import arrays
from spotsurfer.ports.clock import SystemClock
from spotsurfer.web.client import Client, Json

PAUSE_SECONDS = (1.0, 10.0)  # between two looks: the first, and the longest while nothing comes
LIST_SECONDS = 5.0  # … at least where all jobs are listed for it
AWAY_SECONDS = (2.0, 60.0)  # while no controller answers
GIVE_UP_LOOKS = 360  # after an hour in which all that is left failed, it ends; a later submission tries again
LOG = "courier.log"


def expect(
    client: Client,
    made: Iterable[tuple[JobSpec, Json]],
    *,
    book: Book | None = None,
    start: bool = True,
    settle_seconds: float = 0.0,
) -> None:
    """Note submitted jobs, each as its specification and the controller's answer to it, and start the courier.

    The answer is that of PUT /v1/jobs/{job}, or one of the list of POST /v1/jobs; of an array all tasks are noted. Jobs without
    a home or files for their output are left out. `start`: False for programs that call `deliver` themselves. `settle_seconds`:
    they are held, and start when their folder had so long to settle, see `settling`.
    """
    now_ns = int(SystemClock().now().timestamp() * 1e9)
    wanted = [(spec, list(_awaited(client, spec, answer, now_ns))) for spec, answer in made]
    if any(jobs for _, jobs in wanted):
        book = book or Book()
        book.expect(a for _, jobs in wanted for a in jobs)
        for spec, jobs in wanted if settle_seconds else ():
            settling.note(book, jobs, spec, settle_seconds)
        if start:
            ensure(client, book)


def _awaited(client: Client, spec: JobSpec, answer: Json, now_ns: int) -> Iterator[Awaited]:
    if not (spec.home or spec.stdout or spec.stderr):
        return
    job, number = JobId(str(answer.get("array") or answer.get("id") or answer["job"])), int(answer["number"])
    tasks = arrays.read_array(spec.array).tasks if spec.array else [None]
    for task in tasks:
        id = job if task is None else arrays.task_id(job, task)
        facts = {"number": number, "task": task, "job": id, "name": spec.name}
        out, err = (logs.expanded(path, facts) for path in (spec.stdout, spec.stderr))
        yield Awaited(id, client.place, spec.home, out, err, spec.output_append, now_ns)


def lock_name(place: str) -> str:
    """Of the lock that the courier of one controller holds."""
    return f"courier-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def ensure(client: Client, book: Book) -> None:
    """Start a courier unless one runs."""
    with book.alone(lock_name(client.place)) as free:
        if not free:
            return
    with (book.folder / LOG).open("ab") as log:
        words = [sys.executable, "-m", "spotsurfer.home", *(["--config", str(client.config)] if client.config else [])]
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, close_fds=True
        )


def run(
    client: Client,
    book: Book,
    pause: Callable[[float], None],
    tell: Callable[[Pass], None] = lambda _: None,
    over: Callable[[], bool] = lambda: False,
) -> bool:
    """Bring home until nothing is awaited, or `over`. Returns False at once if another courier runs."""
    while True:
        with book.alone(lock_name(client.place)) as mine:
            if not mine:
                return False
            _until_home(client, book, pause, tell, over)
            given_up = {a.job for a in book.open(client.place)}
        if over() or given_up.issuperset(a.job for a in book.open(client.place)):
            return True  # else one was noted after the last look, by somebody who found the lock taken


def _until_home(
    client: Client, book: Book, pause: Callable[[float], None], tell: Callable[[Pass], None], over: Callable[[], bool]
) -> None:
    idle, away = 0, 0
    while book.open(client.place) and not over():
        try:
            done = deliver(client, wait=True, book=book, stop=over)
        except NoController:
            away += 1
            pause(backoff_seconds(away, *AWAY_SECONDS))
            continue
        away, idle = 0, 0 if done.found_any else idle + 1
        tell(done)
        if left := book.open(client.place):
            least = LIST_SECONDS if len(left) > FEW else 0.0
            if idle >= GIVE_UP_LOOKS and all(a.job in done.troubles for a in left):
                return
            pause(max(backoff_seconds(idle + 1, *PAUSE_SECONDS), least))
