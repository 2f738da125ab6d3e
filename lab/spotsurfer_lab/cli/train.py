"""`policies train`: turns records of spot markets into a bank of models, by the plug-in that will use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spotsurfer.common.plugins import TRAINING, plugin
from spotsurfer.model.errors import UsageError
from spotsurfer_lab.cli.common import own_records, progress

if TYPE_CHECKING:
    from spotsurfer_lab.markets import Records

LEARNER = "surf"


@dataclass(frozen=True, slots=True)
class Bank:
    """The result of a training."""

    text: str
    names: list[str]


def train(source: tuple[Path | None, float | None], tick_seconds: float, states: int, seed: int) -> Bank:
    """A bank from the records in a file, or from the controller's own of so many days. Raises InputMissing, UsageError."""
    records = _records(source, tick_seconds)
    learner = plugin(TRAINING, LEARNER)
    with progress("training") as step:
        try:
            text, names = learner(records, tick_seconds, states, np.random.default_rng(seed), step)
        except ValueError as e:
            raise UsageError(f"Nothing could be learned: {e}.") from e
    return Bank(text, names)


def _records(source: tuple[Path | None, float | None], tick_seconds: float) -> Records:
    from spotsurfer_lab.markets import read_trace, records_of

    availability, days = source
    return records_of(read_trace(availability)) if availability is not None else own_records(days or 0.0, tick_seconds)
