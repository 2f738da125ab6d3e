"""Translates errors of Google's APIs to ours, by one table.

Codes come in two ways: as the `reason` of a refused request, and as the `code` of an operation that was taken and failed later.
Sources: "Troubleshooting resource errors" and "Handle API errors" of Compute Engine's documentation, "Standard error
responses" of Google's API client guide, google.rpc.Code. A code without a row leaves open whether the order was carried out:
the order is repeated with its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
from google.auth.exceptions import GoogleAuthError, TransportError
from requests.exceptions import RequestException

from spotsurfer.model.errors import (
    CredentialsExpired,
    Invalid,
    NoCapacity,
    ProviderDenied,
    ProviderError,
    QuotaExceeded,
    Throttled,
    UnknownToProvider,
)
from spotsurfer_providers import cloud_errors

EXISTS = "alreadyExists"  # an earlier call used the name: see GcpProvider.launch
UNKNOWN_ZONE = "Unknown zone"  # in the text of an `invalid`

_CODES: dict[type[ProviderError], tuple[str, ...]] = {
    NoCapacity: (
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "RESOURCE_POOL_EXHAUSTED",
        "IP_SPACE_EXHAUSTED",
        "IP_SPACE_EXHAUSTED_WITH_DETAILS",
    ),
    QuotaExceeded: (
        "QUOTA_EXCEEDED",
        "quotaExceeded",
        "limitExceeded",
    ),
    Throttled: (
        "rateLimitExceeded",
        "userRateLimitExceeded",
        "concurrentLimitExceeded",
        "RATE_LIMIT_EXCEEDED",
        "RESOURCE_OPERATION_RATE_EXCEEDED",
    ),
    CredentialsExpired: ("authError", "expired", "invalidCredentials", "UNAUTHENTICATED"),
    ProviderDenied: (
        "forbidden",
        "insufficientPermissions",
        "accessNotConfigured",
        "accountDisabled",
        "billingNotEnabled",
        "PERMISSIONS_ERROR",
        "PERMISSION_DENIED",
        "SERVICE_DISABLED",
        "conditionNotMet",
        "CONDITION_NOT_MET",
    ),
    UnknownToProvider: ("notFound", "RESOURCE_NOT_FOUND"),
    Invalid: (
        "invalid",
        "invalidParameter",
        "badRequest",
        "parseError",
        "required",
        "unsupportedOperation",
        "INVALID_USAGE",
        "INVALID_FIELD_VALUE",
        "INVALID_ARGUMENT",
        "UNSUPPORTED_OPERATION",
    ),
}
# These pass by themselves, whatever their status says.
_CODES[ProviderError] = (
    "resourceNotReady", "RESOURCE_NOT_READY", "resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    "backendError", "internalError", "INTERNAL_ERROR",
)  # fmt: skip
KINDS = cloud_errors.by_code(_CODES)
# Where an answer has no reason that we know: by its status.
STATUSES: dict[int, type[ProviderError]] = {
    400: Invalid, 401: CredentialsExpired, 403: ProviderDenied, 404: UnknownToProvider, 429: Throttled,
}  # fmt: skip

# Remedies for people; kinds that pass by themselves have none.
REMEDIES: dict[type[ProviderError], str] = {
    QuotaExceeded: "ask Google for more (IAM & Admin, Quotas), or lower limits.instances_max",
    CredentialsExpired: "renew the controller's credentials (`gcloud auth application-default login`), check this host's clock",
    ProviderDenied: "give the controller's account the right that is named",
    Invalid: "check [provider.gcp]",
}  # fmt: skip


def calling(what: str) -> AbstractContextManager[None]:
    """Turns every exception of Google's libraries inside into ProviderError or a child of it, with a sentence."""
    return cloud_errors.calling(what, "Google", (GoogleAPIError, GoogleAuthError, RequestException), translated)


def translated(error: Exception, what: str) -> ProviderError:
    """Our error for one of the libraries'."""
    if isinstance(error, GoogleAuthError):
        passes = isinstance(error, TransportError) or error.retryable
        # Its other arguments may be Google's whole answer, with a token in it.
        return _made(ProviderError if passes else CredentialsExpired, what, str(error.args[0] if error.args else error))
    if not isinstance(error, GoogleAPICallError):
        return _made(ProviderError, what, str(error))
    code = code_of(error)
    kind = KINDS.get(code) or STATUSES.get(error.code or 0, ProviderError)
    return _made(kind, what, f"{code or error.code}: {_message(error)}")


def code_of(error: GoogleAPICallError) -> str:
    """Google's reason; empty if the answer has none."""
    return str(_first(error).get("reason", ""))


def _message(error: GoogleAPICallError) -> str:
    """Google's words; the library puts the request's address before them."""
    return str(_first(error).get("message") or error.message)


def _first(error: GoogleAPICallError) -> Mapping[str, Any]:
    return error.errors[0] if error.errors and isinstance(error.errors[0], dict) else {}


def of_operation(errors: Sequence[Any], what: str) -> ProviderError:
    """Our error for an operation that was taken and failed; `errors` are its own, the first tells."""
    first = errors[0]
    return _made(KINDS.get(first.code, ProviderError), what, f"{first.code}: {first.message}")


def _made(kind: type[ProviderError], what: str, said: str) -> ProviderError:
    return cloud_errors.error(kind, what, said, REMEDIES)
