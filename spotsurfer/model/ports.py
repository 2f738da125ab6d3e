"""Ports on which a job listens for others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobPort:
    """A TCP port of a job; it is found under its name, whatever machine the job is on."""

    name: str
    port: int
