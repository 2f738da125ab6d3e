"""The operator's settings of the front."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from spotsurfer.fields import Interval, Section, one_of

PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")


class FrontSection(Section):
    """[front]: where ports of jobs are answered."""

    address: str = "127.0.0.1"
    ports: str = "20500-20999"
    wait: Interval = 600.0
    connections_max: int = Field(512, ge=1, le=100_000)
    machines: str = "private"

    @field_validator("ports")
    @classmethod
    def _ports(cls, value: str) -> str:
        found = PORTS.fullmatch(value)
        if found is None or not 1 <= int(found[1]) <= int(found[2]) <= 65535:
            raise ValueError(f'is {value!r}, expected the first and the last port, like "20500-20999"')
        return value

    @field_validator("machines")
    @classmethod
    def _machines(cls, value: str) -> str:
        return one_of(value.lower(), ("private", "public"))

    @property
    def range(self) -> range:
        """All ports."""
        first, _, last = self.ports.partition("-")
        return range(int(first), int(last) + 1)
