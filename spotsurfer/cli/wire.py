"""Nouns to JSON for the API, without the web framework: the command line must start quickly."""

from __future__ import annotations

from dataclasses import asdict

from spotsurfer.model.job import JobSpec


def spec_body(spec: JobSpec) -> dict[str, object]:
    """A specification as the API takes it; its field names are the wire's (a test compares them)."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(spec).items()}
