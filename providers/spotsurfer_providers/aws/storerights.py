"""The controller's credentials for a store in S3: those of the default chain, as for all else that it asks of AWS."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from spotsurfer.model.errors import ConfigError

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class NoCredentials(Exception):
    """The chain has none."""


class Chain:
    """For obstore. botocore renews them where they end, and keeps them in memory only."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __call__(self) -> Any:
        """An `S3Credential`. Raises NoCredentials, and what botocore raises where the chain is broken."""
        found = self._session.get_credentials()
        if found is None:
            raise NoCredentials("no AWS credentials: set AWS_PROFILE, or see `aws sts get-caller-identity`")
        now = found.get_frozen_credentials()
        # "Over already": so each request asks here, and botocore knows best when to renew.
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": LONG_AGO,
        }

    def refused(self) -> None:
        """Nothing to be done: botocore renews by the clock."""


def find(tables: Mapping[str, Any]) -> Chain | None:
    """The entry point. `tables`: those of [provider]; the profile is that of [provider.aws]. None where boto3 is missing.

    Raises ConfigError for a profile that there is not.
    """
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ModuleNotFoundError:
        return None
    session = botocore.session.Session(profile=tables.get("aws", {}).get("profile"))
    try:
        session.get_credentials()
    except BotoCoreError as e:
        raise ConfigError(f"the store's AWS profile can't be used: {e}") from e
    return Chain(session)
