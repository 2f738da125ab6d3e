"""Calls to the controller. It may be away, as while it restarts: jobs go on without it, and so does the workflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from spotsurfer.model.errors import Conflict, NoController, NotFound, SpotsurferError
from spotsurfer.web.client import PIECE_BYTES, Client, job_path

T = TypeVar("T")
Body = Mapping[str, Any]
BATCH = 500  # jobs in one request
LOG_BYTES_MAX = 1 << 20  # of a job's stderr that is kept
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.5, 10.0
CANCEL_SECONDS = 30.0  # so long a cancelled workflow waits for a controller that is away


class Controller:
    """The jobs of one run of a workflow, which have the tag `workflow`."""

    def __init__(self, client: Client, run: str, tell: Callable[[str], None]) -> None:
        self._client, self._run, self._tell = client, run, tell

    def bring(self, name: str, files: Mapping[str, Path]) -> str:
        """Upload the files of a job to come; its id. Waits for a controller that is away. Raises SpotsurferError, OSError."""
        job = str(self._patient(lambda: self._client.post("/v1/ids", {"name": name}))["job"])
        for arrives, source in files.items():
            self._patient(lambda arrives=arrives, source=source: self._upload(job, arrives, source))
        return job

    def _upload(self, job: str, name: str, source: Path) -> None:
        self._client.upload(job_path(job, "inputs", name), _pieces(source), source.stat().st_size)

    def submit(self, bodies: Sequence[Body]) -> dict[str, SpotsurferError | None]:
        """Make jobs, `{job, spec, modes}` of each, in few requests; by id, why one was refused. Waits for a controller."""
        told: dict[str, SpotsurferError | None] = {}
        for at in range(0, len(bodies), BATCH):
            batch = bodies[at : at + BATCH]
            try:
                self._patient(lambda batch=batch: self._client.post("/v1/jobs", {"jobs": batch}))
                told |= {str(body["job"]): None for body in batch}
            except SpotsurferError:  # one of them is refused, or an earlier try was received and its answer lost
                told |= {str(body["job"]): self._submit_one(body) for body in batch}
        return told

    def _submit_one(self, body: Body) -> SpotsurferError | None:
        try:
            self._patient(lambda: self._client.post("/v1/jobs", {"jobs": [body]}))
        except Conflict as e:
            with suppress(NotFound):
                job = self._patient(lambda: self._client.get(job_path(str(body["job"]))))
                if job["spec"]["tags"].get("workflow") == self._run:
                    return None
            return e
        except SpotsurferError as e:
            return e
        return None

    def states(self) -> dict[str, dict[str, Any]]:
        """All jobs that the user may see, by their ids, in one request. Raises NoController."""
        return {str(row["id"]): row for row in self._client.get("/v1/brief")["jobs"]}

    def results(self, job: str) -> list[str]:
        """Names of a job's results. Raises NoController."""
        return [str(row["path"]) for row in self._client.get(job_path(job, "outputs"))["outputs"]]

    def result(self, job: str, name: str) -> Iterator[bytes]:
        """One result in pieces. Raises NoController."""
        return self._client.download(job_path(job, "outputs", name))

    def stderr(self, job: str) -> bytes:
        """The end of what a job told, which is what Snakemake said on its machine. Raises NoController."""
        told, at = bytearray(), 0
        while piece := self._client.data(job_path(job, "log/err"), offset=at, limit=PIECE_BYTES):
            at += len(piece)
            told = (told + piece)[-LOG_BYTES_MAX:]
        return bytes(told)

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


def _pieces(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


__all__ = ["Controller", "NoController", "SpotsurferError"]
