"""What the specification says of inputs and shared file systems, and what was seen of the inputs at the first start."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fetch:
    """An input that the machine fetches: an object, a file behind a web address, a folder (ends in /) or a wildcard."""

    source: str  # s3://bucket/key, gs://bucket/key, https://host/path
    to: str = ""  # below the job's folder; "" = its last name. For several files the folder that they arrive in
    sha256: str = ""  # of a single file, in hexadecimal digits
    version: str = ""  # of a single object: its ETag, or the id of a version in a bucket that keeps them
    options: dict[str, str] = field(default_factory=dict)  # how it is reached: names of obstore, no secrets


@dataclass(frozen=True, slots=True)
class Share:
    """A shared file system that the job sees. `type` and `options` are those of mount(8)."""

    name: str
    type: str
    source: str
    target: str  # absolute, or below the job's folder
    options: str = ""
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Pinned:
    """One file as it was when the job first started. `version` is the ETag, or what else its server tells versions apart by."""

    path: str  # below the job's folder
    source: str
    size: int
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Pins:
    """All fetched inputs of a job, by the object that is created once and never changed."""

    files: list[Pinned] = field(default_factory=list)
    at: str = ""  # for people
