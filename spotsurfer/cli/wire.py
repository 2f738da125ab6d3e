"""Nouns to JSON for the API, without the web framework: the command line must start quickly."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING

from spotsurfer.model.job import JobSpec

if TYPE_CHECKING:
    from spotsurfer.jobfile import JobRequest


def spec_body(spec: JobSpec) -> dict[str, object]:
    """A specification as the API takes it; its field names are the wire's (a test compares them)."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(spec).items()}


def secret_values(request: JobRequest) -> dict[str, object]:
    """The part of a submission that is never answered, empty where a job has no secrets."""
    values = {name: base64.b64encode(value).decode() for name, value in request.secrets.items()}
    return {"secrets": values} if values else {}
