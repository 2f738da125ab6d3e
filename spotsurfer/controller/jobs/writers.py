"""Two open jobs that would write one file of a folder are refused, as far as their declared outputs tell.

A job that waits for others may write again what they wrote. What nobody declared is found when it comes home.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from sqlalchemy import Connection

from spotsurfer.model.errors import Conflict, JobFileError
from spotsurfer.model.job import JobSpec
from spotsurfer.model.queueing.arrays import PLACE
from spotsurfer.state import jobs as rows

WILD = frozenset("*?[")


REMEDY = "give them other names, wait for its end, or let one wait for the other (after)"


def refuse_twice(connection: Connection, owner: str, specs: Iterable[JobSpec]) -> None:
    """Raises Conflict or JobFileError with the file and who writes it."""
    wanted: dict[tuple[str, str], str] = {}
    for spec in specs:
        if not spec.home or spec.after:
            continue
        for path in set(_declared(spec.folder, spec.outputs)):
            if spec.array and not PLACE.search(path):
                raise JobFileError(
                    f"outputs names {path}, which all tasks of the array would write: put {{task}} into its name"
                )
            if (other := wanted.get((spec.home, path))) is not None:
                raise Conflict(f"{other} and {spec.name} would both write {path} in {spec.home}: {REMEDY}")
            wanted[spec.home, path] = spec.name
    for home in {home for home, _ in wanted}:
        for job, folder, outputs in rows.open_outputs(connection, owner, home):
            if twice := next((path for path in _declared(folder, outputs) if (home, path) in wanted), ""):
                raise Conflict(f"{job} has not ended and will write {twice} in {home}, too: {REMEDY}")


def _declared(folder: str, outputs: Iterable[str]) -> Iterator[str]:
    """Names of files, below the home folder; what a wildcard means is not known yet."""
    return (posixpath.normpath(posixpath.join(folder, path)) for path in outputs if not WILD & set(path))
