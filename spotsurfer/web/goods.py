"""Inputs from elsewhere and shared file systems on the wire."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from spotsurfer.model.goods import InputFetch, SharedMount


class FetchBody(BaseModel):
    """An input that machines fetch."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)
    source: str
    to: str = ""
    sha256: str = ""
    version: str = ""
    options: dict[str, str] = {}


class MountBody(BaseModel):
    """A shared file system."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)
    name: str
    type: str
    source: str
    target: str
    options: str = ""
    read_only: bool = True


def to_goods(fetches: Sequence[FetchBody], mounts: Sequence[MountBody]) -> dict[str, object]:
    """The nouns, by the names of their fields in the specification."""
    return {
        "fetches": tuple(InputFetch(**f.model_dump()) for f in fetches),
        "mounts": tuple(SharedMount(**m.model_dump()) for m in mounts),
    }
