"""Jobs of programs that go on to write into the folder after their submission has returned, as submitit renames its files.

Such a job is submitted as held. When the folder had a moment to settle, it is sent once more, and the job may start.
"""

from __future__ import annotations

from contextlib import suppress

from spotsurfer.home.book import Awaited, Book, Settling
from spotsurfer.home.bring import bring
from spotsurfer.model.errors import Conflict, Denied, NoController, NotFound, SpotsurferError
from spotsurfer.model.job import JobSpec
from spotsurfer.ports.clock import SystemClock
from spotsurfer.web.client import Client, job_path


def note(book: Book, jobs: list[Awaited], spec: JobSpec, seconds: float) -> None:
    """These jobs, which are held, start when their folder has settled."""
    book.settle([Settling(a.job, a.place, a.noted_ns + int(seconds * 1e9), spec.home_files, spec.home_exclude) for a in jobs])


def settle(client: Client, book: Book) -> dict[str, str]:
    """Send the folders that have had their time, and let their jobs go. Raises NoController, Denied; what fails for one job
    is in the answer, and tried again.
    """
    now_ns, troubles = int(SystemClock().now().timestamp() * 1e9), dict[str, str]()
    for one in (s for s in book.settling(client.place) if s.due_ns <= now_ns):
        home = book.jobs([one.job])[0].home
        try:
            sent = bring(
                client, JobSpec("settling", ("true",), home=home, home_files=one.files, home_exclude=one.exclude), book=book
            )
            with suppress(Conflict, NotFound):  # it was cancelled, or released by its user
                client.post(job_path(one.job, "settle"), {"tree": sent.home_tree})
            book.settled(one.job)
        except (SpotsurferError, OSError) as e:
            if isinstance(e, NoController | Denied):
                raise
            troubles[one.job] = str(e)
    return troubles
