"""`policies train`: records of spot markets become a bank of models, by the plug-in that will use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spotsurfer.cli.backtests.show import progress
from spotsurfer.model.errors import UsageError
from spotsurfer.plugins import TRAINING, plugin

if TYPE_CHECKING:
    from spotsurfer.sim.traces import Records

LEARNER = "surf"


@dataclass(frozen=True, slots=True)
class Bank:
    """What was made."""

    text: str
    names: list[str]


def train(availability: Path | None, tick_seconds: float, states: int, seed: int) -> Bank:
    """A bank of these records, or of the controller's own. Raises InputMissing, UsageError."""
    records = _records(availability, tick_seconds)
    learner = plugin(TRAINING, LEARNER)
    with progress("training") as step:
        try:
            text, names = learner(records, tick_seconds, states, np.random.default_rng(seed), step)
        except ValueError as e:
            raise UsageError(f"Nothing could be learned: {e}.") from e
    return Bank(text, names)


def _records(availability: Path | None, tick_seconds: float) -> Records:
    from spotsurfer.sim.traces import read_trace, records_of

    if availability is not None:
        return records_of(read_trace(availability))
    from spotsurfer.cli.common import SESSION
    from spotsurfer.sim.history import records_of_own

    return records_of_own(SESSION.client().get("/v1/spots")["spots"], tick_seconds)
