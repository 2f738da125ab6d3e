"""Bodies received over HTTP, version 1."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from spotsurfer.common import plugins
from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.jobspec.validate import problems
from spotsurfer.model.errors import ConfigError, JobFileError
from spotsurfer.model.job import SIZE_OFF, InputFetch, JobPort, JobSpec, JobStep, MarketChoice, SharedMount, main_command
from spotsurfer.model.market import Market

# Inputs from elsewhere and shared file systems on the wire.


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


# Steps of a job on the wire.


class StepBody(BaseModel):
    """One command of a job that has several."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)
    name: str
    command: list[str]
    protect: bool = True
    always: bool = False


class StepOut(BaseModel):
    """One step as it ran, or runs: then `exit_code` is null. `log`, `log_end`: bytes of each stream from the beginning."""

    model_config = ConfigDict(from_attributes=True)
    name: str
    number: int
    log: dict[str, int]
    began: str
    exit_code: int | None
    log_end: dict[str, int]
    ended: str
    cpu_seconds: float


def to_steps(bodies: Sequence[StepBody]) -> tuple[JobStep, ...]:
    """The nouns."""
    return tuple(JobStep(b.name, tuple(b.command), b.protect, b.always) for b in bodies)


# What is received over HTTP, version 1: a job as asked for, and orders about it. What is answered is in `models`.

Mode = Annotated[int, Field(ge=0, le=0o777)]


class Asked(BaseModel):
    """Base of everything received: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class PortBody(Asked):
    """A port that a job listens on."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)
    name: str
    port: int


class SpecBody(Asked):
    """A job as asked for. Keys of a job file, with units in the names."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)
    name: str
    command: list[str]
    folder: str = "."
    inputs: list[str] = []
    fetches: list[FetchBody] = []
    mounts: list[MountBody] = []
    outputs: list[str] = []
    outputs_optional: bool = False
    cpus: int = 1
    memory_bytes: int = 1 << 30
    gpus: int = 0
    gpu: str = ""
    market: MarketChoice = MarketChoice.SPOT_FIRST
    priority: int = 0
    checkpoint_interval_seconds: float | None = None
    retries: int = 0
    environment: dict[str, str] = {}
    tags: dict[str, str] = {}
    user: str | None = None
    budget_usd_micros: int | None = None
    price_max_usd_micros: int | None = None
    deadline_seconds: float | None = None
    work_seconds: float | None = None
    instance_types: list[str] = []
    on_end: list[str] = []
    engine: str = "auto"
    tcp: str = "close"
    cpu: str = "any"
    before_freeze: list[str] = []
    after_restore: list[str] = []
    hook_seconds: float = 30.0
    app_signal: str = ""
    app_command: list[str] = []
    app_file: str = ""
    app_deadline_seconds: float = 60.0
    app_done_file: str = ""
    app_done_output: str = ""
    app_done_exit: int | None = None
    app_restart_command: list[str] = []
    steps: list[StepBody] = []
    image: str = ""
    entry_point: list[str] | None = None
    devices: list[str] = []
    registry_auth: str = ""
    secrets: dict[str, dict[str, str]] = {}
    secrets_in_plain_images: bool = False
    ports: list[PortBody] = []
    idle_seconds: float | None = None
    idle_cpu: float = 0.05
    idle_gpu: float = 0.05
    size_policy: str = ""
    size_memory_min_bytes: int | None = None
    size_memory_max_bytes: int | None = None
    size_cpus_min: int | None = None
    size_cpus_max: int | None = None
    size_parameters: dict[str, bool | int | float | str] = {}

    def to_spec(self) -> JobSpec:
        """The noun; raises JobFileError naming the key for values that no job may have."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self.model_dump().items()
        }
        values |= {"ports": tuple(JobPort(p.name, p.port) for p in self.ports)}
        values |= {"steps": to_steps(self.steps), **to_goods(self.fetches, self.mounts)}
        spec = JobSpec(**{**values, "command": values["command"] or main_command(values["steps"])})
        for key, why in problems(spec):
            raise JobFileError(f"{key} {why}.")
        _check_policy(spec)
        return spec


def _check_policy(spec: JobSpec) -> None:
    """Raises JobFileError for a size policy that is not installed here, or refuses its parameters."""
    if spec.size_policy in ("", SIZE_OFF):
        return
    known = plugins.plugins(plugins.SIZE)
    if spec.size_policy not in known:
        raise JobFileError(f"size.policy is {spec.size_policy!r}. {did_you_mean(spec.size_policy, [SIZE_OFF, *known])}")
    try:
        plugins.made(plugins.SIZE, spec.size_policy, spec.size_parameters)
    except ConfigError as e:
        raise JobFileError(f"size.parameters: {e}.") from None


class NameBody(Asked):
    """A job to come."""

    name: str


class SubmitBody(Asked):
    """`modes`: permission bits of each uploaded input, by path. `secrets`: values by name, in base64; never answered."""

    spec: SpecBody
    modes: dict[str, Mode] = {}
    secrets: dict[str, SecretStr] = {}

    def opened(self) -> dict[str, bytes]:
        """The secrets; raises JobFileError naming one that is not base64."""
        found = {}
        for name, value in self.secrets.items():
            try:
                found[name] = base64.b64decode(value.get_secret_value(), validate=True)
            except ValueError:
                raise JobFileError(f"secrets.{name} is not base64.") from None
        return found


class PlanBody(Asked):
    """A job that is not submitted: what would become of it?"""

    spec: SpecBody


class MoveBody(Asked):
    """Both empty: any other machine."""

    instance_type: str | None = None
    market: Market | None = None


class BudgetBody(Asked):
    """What a job may cost in all; null = it has no limit of its own."""

    usd_micros: int | None


class PriorityBody(Asked):
    """How much a job counts; from -100 to 100."""

    priority: int
