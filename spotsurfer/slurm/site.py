"""Where a program of Slurm's runs: the controller, the time, this host's user, the names of partitions."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spotsurfer.slurm.options import Refused
from spotsurfer.web.client import Client, Json

if TYPE_CHECKING:
    from spotsurfer.model.job import JobSpec

VERSION = "slurm-wlm 22.05.8"  # whose output these programs have
DEFAULT_PARTITIONS = {"main": "spot-first", "spot": "spot", "on-demand": "on-demand"}


class Home:
    """The working folders of jobs, which come home; this one has none, as if submit host and machines shared all files."""

    def bring(self, client: Client, spec: JobSpec) -> JobSpec:  # noqa: ARG002
        """Send the folder that a job works in; the specification to submit."""
        return spec

    def expect(self, client: Client, spec: JobSpec, made: Json, settle: float = 0.0) -> None:
        """Note what was submitted, and the controller's answer, so that files and output come home."""

    def deliver(self, client: Client) -> None:
        """Bring home what has ended, unless another process is at it."""

    def awaited(self, client: Client) -> frozenset[str]:  # noqa: ARG002
        """Ids of jobs of which something is to come home."""
        return frozenset()


@dataclass(frozen=True)
class Site:
    """`partitions`: name -> market of their jobs; the first is the default. `connect` is called if the controller is needed."""

    connect: Callable[[], Client]
    now: datetime
    environment: Mapping[str, str]
    folder: str
    partitions: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_PARTITIONS))
    home: Home = field(default_factory=lambda: Home())
    version: str = VERSION

    @cached_property
    def client(self) -> Client:
        """The controller."""
        return self.connect()

    @property
    def partition(self) -> str:
        """The default partition."""
        return next(iter(self.partitions))

    def market(self, partition: str, program: str) -> str:
        """The market of a partition; raises Refused as Slurm does."""
        try:
            return self.partitions[partition or self.partition]
        except KeyError:
            raise Refused(
                f"{program}: error: invalid partition specified: {partition}\n"
                f"{program}: error: Batch job submission failed: Invalid partition name specified"
            ) from None

    def partition_of(self, brief: Mapping[str, Any]) -> str:
        """The partition of a job: the first of its market."""
        market = brief.get("market", "")
        return next((name for name, of in self.partitions.items() if of == market), self.partition)


def user_name() -> str:
    """The Unix user who calls."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
