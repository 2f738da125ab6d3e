"""Calls to the controller. It may be away, as while it restarts: jobs go on without it, and so does the workflow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from spotsurfer import home
from spotsurfer.model.errors import Conflict, NoController, NotFound, SpotsurferError
from spotsurfer.model.job import JobSpec
from spotsurfer.web.client import Client, Json, job_path
from spotsurfer.web.submitting import spec_body

T = TypeVar("T")
BATCH_BYTES = 4 << 20  # of one request; the controller takes twice as much
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.5, 10.0
CANCEL_SECONDS = 30.0  # so long a cancelled workflow waits for a controller that is away


class Controller:
    """The jobs of one run of a workflow, which have the tag `workflow`."""

    def __init__(self, client: Client, run: str, tell: Callable[[str], None]) -> None:
        self._client, self._run, self._tell = client, run, tell

    def bring(self, spec: JobSpec) -> tuple[str, JobSpec]:
        """Send what a job takes along; its id to come, and what to submit. Waits for a controller that is away.

        Raises SpotsurferError, OSError.
        """
        job = str(self._patient(lambda: self._client.post("/v1/ids", {"name": spec.name}))["job"])
        return job, self._patient(lambda: home.bring(self._client, spec))

    def submit(self, specs: Sequence[tuple[str, JobSpec]]) -> dict[str, SpotsurferError | None]:
        """Make jobs in few requests; by id, why one was refused. Waits for a controller that is away."""
        told: dict[str, SpotsurferError | None] = {}
        for batch in _batches(specs):
            bodies = [{"job": job, "spec": spec_body(spec)} for job, spec in batch]
            try:
                self._patient(lambda bodies=bodies: self._client.post("/v1/jobs", {"jobs": bodies}))
                told |= {str(body["job"]): None for body in bodies}
            except SpotsurferError:  # one of them is refused, or an earlier try was received and its answer lost
                told |= {str(body["job"]): self._submit_one(body) for body in bodies}
            made = [(spec, {"job": job, "number": 0}) for job, spec in batch if told[job] is None]
            home.expect(self._client, made, start=False)
        return told

    def _submit_one(self, body: Json) -> SpotsurferError | None:
        try:
            self._patient(lambda: self._client.post("/v1/jobs", {"jobs": [body]}))
        except Conflict as e:
            with suppress(NotFound):
                there = self._patient(lambda: self._client.get(job_path(str(body["job"]))))
                if there["spec"]["tags"].get("workflow") == self._run:
                    return None
            return e
        except SpotsurferError as e:
            return e
        return None

    def states(self) -> dict[str, Json]:
        """All jobs that the user may see, by their ids, in one request. Raises SpotsurferError."""
        return {str(row["id"]): row for row in self._client.get("/v1/brief")["jobs"]}

    def fetch(self, jobs: Sequence[str]) -> dict[str, str]:
        """Bring ended jobs home; of each that is there "", else why it is not (yet). Raises SpotsurferError."""
        done = home.deliver(self._client, jobs, wait=True)
        return {job: "" if home.at_home(job) else done.troubles.get(job, "it is on its way") for job in jobs}

    def cancel(self, jobs: Iterable[str]) -> list[str]:
        """Cancel jobs; those that no controller could be told of."""
        until, left = time.monotonic() + CANCEL_SECONDS, list(jobs)
        while left:
            try:
                with suppress(Conflict, NotFound):
                    self._client.post(job_path(left[-1], "cancel"))
                left.pop()
            except NoController:
                if time.monotonic() > until:
                    return left
                time.sleep(PAUSE_SECONDS)
        return left

    def _patient(self, call: Callable[[], T]) -> T:
        """Call until a controller answers."""
        pause, told = PAUSE_SECONDS, False
        while True:
            try:
                return call()
            except NoController as e:
                if not told:
                    self._tell(f"{e} Jobs go on without it. Waiting for it …")
                    told = True
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_SECONDS)


def _batches(specs: Sequence[tuple[str, JobSpec]]) -> Iterator[list[tuple[str, JobSpec]]]:
    batch, total = list[tuple[str, JobSpec]](), 0
    for job, spec in specs:
        size = len(json.dumps(spec_body(spec)))
        if batch and total + size > BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append((job, spec))
        total += size
    if batch:
        yield batch
