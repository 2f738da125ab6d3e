"""Settings of the provider `gcp`: the table `[provider.gcp]`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from spotsurfer_providers import cloud_settings
from spotsurfer_providers.cloud_settings import Address, TransferPrices, like

TABLE = "provider.gcp"
OWN_LABELS = frozenset(f"spotsurfer-{x}" for x in ("family", "token", "job", "attempt"))  # set by us
LABELS_MAX = 64 - len(OWN_LABELS)  # of a resource
DEFAULT_TYPES = ("c2d-standard-*", "n2-standard-*", "n2-highmem-*", "n2d-standard-*", "n2d-highmem-*")
NOTICE_SECONDS_MAX = 120

Project = Annotated[str, like(r"([a-z][a-z0-9.-]{0,61}[a-z0-9]:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "my-project-123456")]
Zone = Annotated[str, like(r"[a-z]+(-[a-z]+)+\d+-[a-z0-9]+", "us-central1-a")]
Subnetwork = Annotated[
    str, like(r"(projects/[^/]+/)?regions/[a-z0-9-]+/subnetworks/[a-z0-9-]+", "regions/us-central1/subnetworks/spotsurfer")
]
Account = Annotated[
    str, like(r"[a-z0-9-]+@[a-z0-9.:-]+\.gserviceaccount\.com", "spotsurfer-machine@my-project.iam.gserviceaccount.com")
]
Subscription = Annotated[
    str, like(r"projects/[^/]+/subscriptions/[A-Za-z][\w.~+%-]{2,254}", "projects/my-project/subscriptions/spotsurfer")
]
Image = Annotated[
    str,
    like(r"projects/[^/]+/global/images/(family/)?[a-z0-9-]+", "projects/debian-cloud/global/images/family/debian-12"),
]
BootUrl = Annotated[str, like(r"gs://[^/]+.*", "gs://bucket/prefix")]
Wildcard = Annotated[str, like(r"[a-z0-9*?-]+", "n2-standard-4 or n2-*")]
LabelKey = Annotated[str, like(r"[a-z][a-z0-9_-]{0,62}", "project (small letters, digits, _ and -)")]
Label = Annotated[str, like(r"[a-z0-9_-]{0,63}", "assembly (small letters, digits, _ and -)")]
NetworkTag = Annotated[str, like(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", "spotsurfer-machine")]


class GcpSettings(BaseModel):
    """What an operator says of one project."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: Project
    subnets: dict[Zone, Subnetwork] = Field(min_length=1)  # zone -> subnetwork; zones of several regions may be there
    machine_account: Account
    job_account: Account  # the controller makes tokens of it, cut down to what one attempt may touch
    preemptions: Subscription | None = None  # of what Google notes of VMs that it ends
    image: Image = "projects/debian-cloud/global/images/family/debian-12"
    machine_types: list[Wildcard] = Field(default_factory=lambda: list(DEFAULT_TYPES), min_length=1)
    disk_gib: int = Field(40, ge=10, le=65536)
    notice_seconds: int = Field(NOTICE_SECONDS_MAX, ge=0, le=NOTICE_SECONDS_MAX)  # of the early notice; 0 = not asked for
    placement_scores: bool = False
    prices: Path | None = None  # a table as price_import makes it; default: the shipped one
    external_address: bool = False
    network_tags: list[NetworkTag] = Field(default_factory=list)
    labels: dict[LabelKey, Label] = Field(default_factory=dict, max_length=LABELS_MAX)
    store_options: dict[str, str] = Field(default_factory=dict)  # machines' options for the store, in obstore's names
    boot_url: BootUrl | None = None  # where machines begin if the store lies in another cloud
    transfer_usd_per_gib: TransferPrices = Field(default_factory=TransferPrices.model_construct)
    endpoint_url: Address | None = None  # of all of Google's services, for tests

    @model_validator(mode="after")
    def _whole(self) -> GcpSettings:
        for zone, subnet in self.subnets.items():
            if f"regions/{region_of(zone)}/" not in subnet:
                raise ValueError(
                    f"subnets gives zone {zone} the subnetwork {subnet!r}, which is not of region {region_of(zone)}"
                )
        for name in self.labels:
            if name in OWN_LABELS or name.startswith("goog"):
                raise ValueError(f"labels has {name!r}, which is taken: choose another name")
        return self

    @property
    def controllers_store(self) -> dict[str, str]:
        """The controller's options for a bucket, in obstore's names."""
        return {"base_url": self.endpoint_url, "allow_http": "true"} if self.endpoint_url else {}

    @property
    def machines_store(self) -> dict[str, str]:
        """Machines' options for the store, in obstore's names; no credentials."""
        return {**self.controllers_store, **self.store_options}


def region_of(zone: str) -> str:
    """The region of a zone: its name without the last part."""
    return zone.rpartition("-")[0]


def read_settings(table: Mapping[str, object]) -> GcpSettings:
    """Settings from their table. Raises ConfigError: one sentence with the key and the expected value."""
    return cloud_settings.read(GcpSettings, table, TABLE)
