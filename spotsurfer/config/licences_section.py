"""[licences]: pools of licences that jobs take: how many there are, or the command that says so."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from spotsurfer.config.section import Interval, Seconds, Section
from spotsurfer.model.licences import KIND, KIND_LETTERS, LicenceRule


class LicenceTable(Section):
    """[licences.NAME]: one pool."""

    total: int | None = Field(default=None, ge=0)
    command: tuple[str, ...] = ()
    every_seconds: Interval = 60.0
    keep_seconds: Seconds = 600.0
    reserve: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_source(self) -> LicenceTable:
        if (self.total is None) is not bool(self.command):
            raise ValueError('says how many there are, total = 4, or which command prints that, command = ["…"]: one of them')
        return self

    def as_rule(self, kind: str) -> LicenceRule:
        """The same values, for the controller."""
        return LicenceRule(kind, **self.model_dump())


def _table(value: Any) -> Any:
    """`vcs = 4` is short for `[licences.vcs] total = 4`; a variable of the environment is a text."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    return {"total": number} if isinstance(number, int) and not isinstance(number, bool) else value


def _kind(value: str) -> str:
    if not KIND.fullmatch(value):
        raise ValueError(f"is the name {value!r}, expected {KIND_LETTERS}")
    return value


Pools = dict[Annotated[str, AfterValidator(_kind)], Annotated[LicenceTable, BeforeValidator(_table)]]
