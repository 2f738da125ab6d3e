"""The operator's settings of SSH."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from spotsurfer.fields import AbsolutePath, Section, one_of


class SshSection(Section):
    """[ssh]: logging in to machines. Without a user nobody does."""

    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_.-]*$")] | None = None
    key_file: AbsolutePath | None = None
    port: int = Field(22, ge=1, le=65535)
    address: str = "private"
    nudge: bool = False

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        return one_of(value.lower(), ("private", "public"))
