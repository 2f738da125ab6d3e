"""Submission by a client of the API: ids, uploads, and then all jobs in one call."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from spotsurfer.model.errors import InputMissing, SpotsurferError
from spotsurfer.model.job import JobSpec
from spotsurfer.web.client import PIECE_BYTES, Client, Json, job_path

if TYPE_CHECKING:
    from spotsurfer.jobspec.parse import JobRequest
    from spotsurfer.jobspec.uploads import InputFile

Sent = Callable[[int], object]  # is told how many bytes more were sent


def spec_body(spec: JobSpec) -> Json:
    """A specification as the API takes it; a test compares its field names with the API's.

    Values to JSON without the web framework, because the command line must start quickly.
    """
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(spec).items()}


def request_body(request: JobRequest) -> Json:
    """A job to be submitted, as the API takes it."""
    secrets = {name: base64.b64encode(value).decode() for name, value in request.secrets.items()}
    return {"spec": spec_body(request.spec), "modes": request.modes, **({"secrets": secrets} if secrets else {})}


# What a specification says by default: of thousands of jobs only the rest is sent.
USUAL = {key: value for key, value in spec_body(JobSpec("", ())).items() if key not in ("name", "command")}


def upload(client: Client, job: str, request: JobRequest, sent: Sent = lambda _: None) -> None:
    """Send the inputs of a job to come."""
    for file in request.inputs:
        client.upload(job_path(job, "inputs", file.path), _pieces(file, sent), file.size)


def submit_many(client: Client, requests: Sequence[JobRequest]) -> list[Json]:
    """Make all these jobs, or none; {job, number, tasks} of each. What must come before one may name another one of them."""
    bodies, ids = [], list[str]()
    try:
        for request in requests:
            body = request_body(request)
            body["spec"] = {key: value for key, value in body["spec"].items() if key not in USUAL or value != USUAL[key]}
            if request.inputs:
                ids.append(str(client.post("/v1/ids", {"name": request.spec.name})["job"]))
                body["job"] = ids[-1]
                upload(client, ids[-1], request)
            bodies.append(body)
        return list(client.post("/v1/jobs", {"jobs": bodies})["jobs"])
    except BaseException:
        for id in ids:
            with suppress(SpotsurferError):  # Conflict: it was submitted all the same
                client.delete(job_path(id, "inputs"))
        raise


def _pieces(file: InputFile, sent: Sent) -> Iterator[bytes]:
    try:
        with file.source.open("rb") as opened:
            while piece := opened.read(PIECE_BYTES):
                yield piece
                sent(len(piece))
    except OSError as e:
        raise InputMissing(f"Input {file.source} can't be read: {e.strerror}.") from None
