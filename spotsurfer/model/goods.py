"""What a job wants brought to its machines: inputs from elsewhere, shared file systems."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class InputFetch:
    """An object, a file behind a web address, a folder (ends in /) or a wildcard, which machines fetch by themselves."""

    source: str
    to: str = ""  # below the job's folder; "" = under its last name
    sha256: str = ""
    version: str = ""
    options: dict[str, str] = field(default_factory=dict)  # how it is reached, as obstore names it; no secrets


@dataclass(frozen=True, slots=True)
class SharedMount:
    """A shared file system, as mount(8) takes it."""

    name: str
    type: str
    source: str
    target: str
    options: str = ""
    read_only: bool = True
