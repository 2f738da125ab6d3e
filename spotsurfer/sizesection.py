"""The section [size] of the settings."""

from __future__ import annotations

from pydantic import Field, field_validator

from spotsurfer.core.size import SizeRules
from spotsurfer.fields import Interval, Seconds, Section

LOOKS = (10.0, 20.0, 30.0, 60.0)


class SizeSection(Section):
    """[size]: how running jobs may be moved to other types, where a size policy is asked for them."""

    look_seconds: Interval = 60.0
    moves_per_hour: int = Field(12, ge=3)
    cool_down_seconds: Seconds = 0.0
    cpu_factor: float = Field(4.0, ge=1)
    memory_factor: float = Field(4.0, ge=1)

    @field_validator("look_seconds")
    @classmethod
    def _look(cls, value: float) -> float:
        if value not in LOOKS:
            raise ValueError(f"is {value:g} seconds, expected 10, 20, 30 or 60: whole windows of usage that make up a minute")
        return value

    def as_rules(self) -> SizeRules:
        """The same as the value that decisions see."""
        return SizeRules(**self.model_dump())
