"""Where a save happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent.cgroup import JobCgroup
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.limits import Limits
from spotsurfer_agent.engines.base import Bases
from spotsurfer_agent.engines.device import NO_DEVICE, Device
from spotsurfer_agent.jobroot import Mount
from spotsurfer_agent.scratch import Scratch
from spotsurfer_agent.storeport import ObjectStore
from spotsurfer_agent.tools import Tools


@dataclass(frozen=True, slots=True)
class Place:
    """The job of one base folder, and all that a save of it needs."""

    folder: Path  # <base>/job
    base: Path
    job: str
    engine: str
    tools: Tools
    store: ObjectStore
    scratch: Scratch
    mounts: list[Mount]
    root: str  # digest of the container image that is its root; "" = there is none
    place: Callable[[str], str]  # where on this machine lies what the job sees under a path
    cgroup: JobCgroup
    criu_version: str
    tool_entries: list[str]
    keys: Keys
    bases: Bases
    limits: Limits
    memory_bytes: int  # that a save may hold; 0 = half of what is free
    device: Device = NO_DEVICE
