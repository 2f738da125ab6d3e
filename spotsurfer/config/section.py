"""What all sections of the configuration are made of: their base, and types of values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from spotsurfer.common.units import parse_seconds, parse_usd

SHORTEST_SECONDS = 0.05  # of any repeated action


def _absolute(value: object) -> Path:
    path = Path(str(value)).expanduser()
    if not str(value) or not path.is_absolute():
        raise ValueError(f"is {value!r}, expected an absolute path")
    return path


def _interval(value: object) -> float:
    seconds = parse_seconds(value)
    if seconds < SHORTEST_SECONDS:
        raise ValueError(f"is {value!r}, expected at least {SHORTEST_SECONDS} s")
    return seconds


Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Interval = Annotated[float, BeforeValidator(_interval)]  # a duration that may not be zero
UsdMicros = Annotated[int, BeforeValidator(parse_usd)]
AbsolutePath = Annotated[Path, BeforeValidator(_absolute)]


class Section(BaseModel):
    """One table of the file: no other keys, no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
