"""Settings of the provider `aws`: the table `[provider.aws]`, as `terraform output -raw config` writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.model.errors import ConfigError

TABLE = "provider.aws"
OWN_TAGS = frozenset(f"spotsurfer:{x}" for x in ("family", "token", "job", "attempt"))  # set by us
TAGS_MAX = 50 - len(OWN_TAGS)  # of a resource
DEFAULT_TYPES = ("c6a.*", "c6i.*", "m6a.*", "m6i.*", "r6a.*", "r6i.*")


def _like(pattern: str, example: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"is {value!r}, expected something like {example}")
        return value

    return AfterValidator(check)


Region = Annotated[str, _like(r"[a-z]{2}(-[a-z]+)+-\d", "us-east-1")]
SubnetId = Annotated[str, _like(r"subnet-[0-9a-f]+", "subnet-0a1b2c3d")]
GroupId = Annotated[str, _like(r"sg-[0-9a-f]+", "sg-0a1b2c3d")]
RoleArn = Annotated[str, _like(r"arn:aws[a-z-]*:iam::\d{12}:role/.+", "arn:aws:iam::123456789012:role/spotsurfer-job")]
Image = Annotated[str, _like(r"ami-[0-9a-f]+|/.+", "ami-0a1b2c3d, or an SSM parameter's name like /aws/service/debian/…")]
Wildcard = Annotated[str, _like(r"[a-z0-9*?.-]+", "m6i.large or m6i.*")]
Address = Annotated[str, _like(r"https?://.+", "https://sqs.us-east-1.amazonaws.com/123456789012/spotsurfer")]


class AwsSettings(BaseModel):
    """config.example.toml explains each key to operators."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    region: Region
    subnets: dict[str, SubnetId] = Field(min_length=1)  # zone -> subnet
    job_role_arn: RoleArn
    instance_profile: str | None = Field(None, min_length=1)  # name or ARN; None = the launch template has one
    security_groups: list[GroupId] = Field(default_factory=list)
    image: Image | None = None  # None = the launch template has one
    launch_template: str | None = Field(None, min_length=1)  # "lt-…" or a name, with ":version" or the default one
    key_name: str | None = None
    instance_types: list[Wildcard] = Field(default_factory=lambda: list(DEFAULT_TYPES), min_length=1)
    queue_url: Address | None = None
    rebalance: Literal["ignore", "checkpoint", "move"] = "ignore"
    tags: dict[str, str] = Field(default_factory=dict, max_length=TAGS_MAX)
    root_volume_gib: int | None = Field(None, ge=1, le=16384)
    store_options: dict[str, str] = Field(default_factory=dict)  # machines' options for the store, in obstore's names
    placement_scores: bool = False
    profile: str | None = None  # of ~/.aws/config, e.g. one that assumes a role
    endpoint_url: Address | None = None  # of all services, for tests

    @model_validator(mode="after")
    def _whole(self) -> AwsSettings:
        for zone in self.subnets:
            if not zone.startswith(self.region):
                raise ValueError(
                    f"subnets names the zone {zone!r}, which is not of region {self.region}: write zone = subnet id"
                )
        if self.launch_template is None and (self.image is None or self.instance_profile is None):
            raise ValueError("needs image and instance_profile, or a launch_template that has them")
        if self.root_volume_gib is not None and self.image is None:
            raise ValueError("has root_volume_gib, which needs image as well: the root device's name is the image's")
        for name in self.tags:
            if name in OWN_TAGS or name.startswith("aws:"):
                raise ValueError(f"tags has {name!r}, which is taken: choose another name")
        return self

    @property
    def template(self) -> dict[str, str] | None:
        """The launch template in the form of RunInstances."""
        if self.launch_template is None:
            return None
        name, _, version = self.launch_template.partition(":")
        kind = "LaunchTemplateId" if name.startswith("lt-") else "LaunchTemplateName"
        return {kind: name, "Version": version or "$Default"}

    @property
    def machines_store(self) -> dict[str, str]:
        """Machines' options for the store, in obstore's names; no credentials."""
        elsewhere = {
            "endpoint": self.endpoint_url or "",
            "allow_http": "true",
            "virtual_hosted_style_request": "false",
        }
        return {"region": self.region, **(elsewhere if self.endpoint_url else {}), **self.store_options}

    @property
    def partition(self) -> str:
        """The account's partition: aws, aws-cn, aws-us-gov …"""
        return self.job_role_arn.split(":")[1]


def read_settings(table: Mapping[str, object]) -> AwsSettings:
    """Settings from their table. Raises ConfigError: one sentence with the key and the expected value."""
    try:
        return AwsSettings.model_validate(dict(table))
    except ValidationError as e:
        raise ConfigError(_sentence(e)) from None


def _sentence(error: ValidationError) -> str:
    first, *others = error.errors()
    key = ".".join(str(x) for x in first["loc"])
    more = f" ({len(others)} more after this.)" if others else ""
    return f"[{TABLE}] {key}{' ' if key else ''}{_what(first, key)}.{more}"


def _what(first: Any, key: str) -> str:
    if first["type"] == "extra_forbidden":
        return f"is an unknown key. {did_you_mean(key, AwsSettings.model_fields)}".rstrip(".?")
    if first["type"] == "missing":
        return "is missing: `terraform output -raw config` writes it, or see config.example.toml"
    cause = first.get("ctx", {}).get("error")
    return str(cause) if cause else f"is {first['input']!r}: {first['msg'].lower()}"
