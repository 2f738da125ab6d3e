"""Settings of the provider `aws`: the table `[provider.aws]`, as `terraform output -raw config` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from spotsurfer_providers import cloud_settings
from spotsurfer_providers.cloud_settings import Address, TransferPrices, like

TABLE = "provider.aws"
OWN_TAGS = frozenset(f"spotsurfer:{x}" for x in ("family", "token", "job", "attempt"))  # set by us
TAGS_MAX = 50 - len(OWN_TAGS)  # of a resource
DEFAULT_TYPES = ("c6a.*", "c6i.*", "m6a.*", "m6i.*", "r6a.*", "r6i.*")


Region = Annotated[str, like(r"[a-z]{2}(-[a-z]+)+-\d", "us-east-1")]
SubnetId = Annotated[str, like(r"subnet-[0-9a-f]+", "subnet-0a1b2c3d")]
GroupId = Annotated[str, like(r"sg-[0-9a-f]+", "sg-0a1b2c3d")]
RoleArn = Annotated[str, like(r"arn:aws[a-z-]*:iam::\d{12}:role/.+", "arn:aws:iam::123456789012:role/spotsurfer-job")]
Image = Annotated[str, like(r"ami-[0-9a-f]+|/.+", "ami-0a1b2c3d, or an SSM parameter's name like /aws/service/debian/…")]
BootUrl = Annotated[str, like(r"s3://[^/]+.*", "s3://bucket/prefix")]
Wildcard = Annotated[str, like(r"[a-z0-9*?.-]+", "m6i.large or m6i.*")]


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
    boot_url: BootUrl | None = None  # where machines begin if the store lies in another cloud
    placement_scores: bool = False
    profile: str | None = None  # of ~/.aws/config, e.g. one that assumes a role
    transfer_usd_per_gib: TransferPrices = Field(default_factory=TransferPrices.model_construct)
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
    def controllers_store(self) -> dict[str, str]:
        """The controller's options for a bucket of this region, in obstore's names."""
        elsewhere = {
            "endpoint": self.endpoint_url or "",
            "allow_http": "true",
            "virtual_hosted_style_request": "false",
        }
        return {"region": self.region, **(elsewhere if self.endpoint_url else {})}

    @property
    def machines_store(self) -> dict[str, str]:
        """Machines' options for the store, in obstore's names; no credentials."""
        return {**self.controllers_store, **self.store_options}

    @property
    def partition(self) -> str:
        """The account's partition: aws, aws-cn, aws-us-gov …"""
        return self.job_role_arn.split(":")[1]


def read_settings(table: Mapping[str, object]) -> AwsSettings:
    """Settings from their table. Raises ConfigError: one sentence with the key and the expected value."""
    return cloud_settings.read(AwsSettings, table, TABLE)
