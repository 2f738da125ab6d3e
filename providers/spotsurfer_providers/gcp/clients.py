"""Clients of Compute Engine with application default credentials. Each is made when it is first needed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import google.auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from spotsurfer_providers.gcp.settings import GcpSettings
from spotsurfer_providers.gcp.vm_request import SCOPE

SECONDS = 25.0  # of one call
# Orders are sent once: the caller decides anew before each repetition, also whether another pool is better.
ONCE: dict[str, Any] = {"retry": None, "timeout": SECONDS}


class Clients:
    """Makes no call itself. google-auth keeps and renews credentials, only in memory."""

    def __init__(self, settings: GcpSettings) -> None:
        self._settings = settings

    @cached_property
    def _credentials(self) -> Any:
        if self._settings.endpoint_url is not None:
            return AnonymousCredentials()  # type: ignore[no-untyped-call]
        return google.auth.default(scopes=[SCOPE])[0]  # raises GoogleAuthError in the call that needs them first

    def _client(self, kind: Any) -> Any:
        options = {"api_endpoint": self._settings.endpoint_url} if self._settings.endpoint_url is not None else None
        return kind(credentials=self._credentials, client_options=options)

    @cached_property
    def instances(self) -> Any:
        """VMs."""
        return self._client(compute_v1.InstancesClient)

    @cached_property
    def operations(self) -> Any:
        """Operations of a zone. Our own client: the one that `result()` of an operation makes ignores the endpoint."""
        return self._client(compute_v1.ZoneOperationsClient)

    @cached_property
    def all_operations(self) -> Any:
        """Operations of all zones."""
        return self._client(compute_v1.GlobalOperationsClient)

    @cached_property
    def machine_types(self) -> Any:
        """What can be had in which zone."""
        return self._client(compute_v1.MachineTypesClient)
