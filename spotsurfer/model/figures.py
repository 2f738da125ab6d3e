"""What the controller counts about itself and its jobs, for `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts over the whole database: they survive a restart of the controller. Money in micro-dollars."""

    at: datetime
    jobs: Mapping[str, int] = field(default_factory=dict)  # state -> jobs, without rehearsals
    machines: Mapping[Labels, int] = field(default_factory=dict)  # (provider, market, state) -> those not over
    launched: Mapping[Labels, int] = field(default_factory=dict)  # (provider, market) -> machines ever
    reclaimed: Mapping[Labels, int] = field(default_factory=dict)  # (provider, market) -> machines that the cloud took away
    refused: Mapping[Labels, int] = field(default_factory=dict)  # (provider, market) -> launches that the cloud refused
    restores_failed: int = 0
    moments: Mapping[str, int] = field(default_factory=dict)  # kind of timeline event -> how many
    stuck: int = 0  # jobs that are alive and make no progress
    saves: int = 0
    frozen_seconds: float = 0.0
    cpu_seconds: float = 0.0
    stored_bytes: int = 0
    licences: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # kind -> for jobs, in use, jobs that wait
    oldest_queued_at: datetime | None = None  # submission of the queued job that waits longest
