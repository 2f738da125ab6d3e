"""AWS service clients with credentials of the default chain. Each is made when it is first needed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from spotsurfer.model.errors import ConfigError
from spotsurfer_providers.aws.settings import AwsSettings

CONNECT_SECONDS = 5
READ_SECONDS = 25
# Orders are sent once: the caller decides anew before each repetition, also whether another pool is better.
ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS)
# Questions may be repeated at once; the circuit breaker handles longer trouble.
AGAIN = Config(
    retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS
)
# The price list has three endpoints; the beginning of the region's name selects the nearest.
PRICING_REGIONS = {"eu": "eu-central-1", "ap": "ap-south-1", "cn": "cn-northwest-1"}


class Clients:
    """Makes no call itself. botocore keeps and renews credentials, only in memory."""

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings

    @cached_property
    def _session(self) -> Any:
        try:
            return boto3.Session(profile_name=self._settings.profile, region_name=self._settings.region)
        except BotoCoreError as e:
            raise ConfigError(f"[provider.aws] profile can't be used: {e}") from e

    def _client(self, service: str, config: Config, region: str | None = None) -> Any:
        return self._session.client(service, region_name=region, endpoint_url=self._settings.endpoint_url, config=config)

    @cached_property
    def orders(self) -> Any:
        """EC2, for calls that change something."""
        return self._client("ec2", ONCE)

    @cached_property
    def ec2(self) -> Any:
        """EC2, for questions."""
        return self._client("ec2", AGAIN)

    @cached_property
    def ssm(self) -> Any:
        """Parameters that name images."""
        return self._client("ssm", AGAIN)

    @cached_property
    def sts(self) -> Any:
        """Credentials of machines."""
        return self._client("sts", AGAIN)

    @cached_property
    def sqs(self) -> Any:
        """The queue of events."""
        return self._client("sqs", AGAIN)

    @cached_property
    def quotas(self) -> Any:
        """Limits of the account."""
        return self._client("service-quotas", ONCE)

    @cached_property
    def pricing(self) -> Any:
        """The price list."""
        return self._client("pricing", ONCE, PRICING_REGIONS.get(self._settings.region[:2], "us-east-1"))
