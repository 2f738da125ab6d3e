"""Bodies received over HTTP, version 1."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from spotsurfer.common import plugins
from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.jobspec.validate import problems
from spotsurfer.model.errors import ConfigError, JobFileError
from spotsurfer.model.job import SIZE_OFF, JobSpec, main_command
from spotsurfer.model.market import Market

Mode = Annotated[int, Field(ge=0, le=0o777)]


class Asked(BaseModel):
    """Base of everything received: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


def checked(spec: JobSpec) -> JobSpec:
    """A job as asked for; raises JobFileError naming the key for values that no job may have."""
    spec = replace(spec, command=spec.command or main_command(spec.steps))
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

    spec: JobSpec
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

    spec: JobSpec


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
