"""Translates errors of Google's APIs to ours, by one table.

Codes come in two ways: as the `reason` of a refused request, and as the `code` of an operation that was taken and failed later.
Sources: "Troubleshooting resource errors" and "Handle API errors" of Compute Engine's documentation, "Standard error
responses" of Google's API client guide, google.rpc.Code. A code without a row leaves open whether the order was carried out:
the order is repeated with its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
from google.auth.exceptions import GoogleAuthError
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

EXISTS = "alreadyExists"  # an earlier call used the name: see GcpProvider.launch

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
        "resourceInUseByAnotherResource",
        "INVALID_USAGE",
        "INVALID_FIELD_VALUE",
        "INVALID_ARGUMENT",
        "UNSUPPORTED_OPERATION",
        "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    ),
}
KINDS: dict[str, type[ProviderError]] = {code: kind for kind, codes in _CODES.items() for code in codes}
# Where an answer has no reason that we know: by its status.
STATUSES: dict[int, type[ProviderError]] = {
    400: Invalid, 401: CredentialsExpired, 403: ProviderDenied, 404: UnknownToProvider, 429: Throttled,
}  # fmt: skip

# Remedies for people; kinds that pass by themselves have none.
REMEDIES: dict[type[ProviderError], str] = {
    QuotaExceeded: "ask Google for more (IAM & Admin, Quotas), or lower limits.instances_max",
    CredentialsExpired: "renew the controller's credentials (`gcloud auth application-default login`), check this host's clock",
    ProviderDenied: "compare the roles of the controller's account with docs/design/providers.md",
    Invalid: "check [provider.gcp]",
}  # fmt: skip


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Turns every exception of Google's libraries inside into ProviderError or a child of it, with a sentence."""
    try:
        yield
    except (GoogleAPIError, GoogleAuthError, RequestException) as e:
        raise translated(e, what) from e
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise ProviderError(f"{what}: Google answered something that can't be read ({type(e).__name__}: {e})") from e


def translated(error: Exception, what: str) -> ProviderError:
    """Our error for one of the libraries'."""
    if isinstance(error, GoogleAuthError):
        return _made(CredentialsExpired, what, str(error))
    if not isinstance(error, GoogleAPICallError):
        return _made(ProviderError, what, str(error))
    code = code_of(error)
    kind = KINDS.get(code) or STATUSES.get(error.code or 0, ProviderError)
    return _made(kind, what, f"{code or error.code}: {error.message}")


def code_of(error: GoogleAPICallError) -> str:
    """Google's reason; empty if the answer has none."""
    found = error.errors[0].get("reason", "") if error.errors and isinstance(error.errors[0], dict) else ""
    return str(found)


def of_operation(errors: Sequence[Any], what: str) -> ProviderError:
    """Our error for an operation that was taken and failed; `errors` are its own, the first tells."""
    first = errors[0]
    return _made(KINDS.get(first.code, ProviderError), what, f"{first.code}: {first.message}")


def _made(kind: type[ProviderError], what: str, said: str) -> ProviderError:
    remedy = REMEDIES.get(kind)
    text = f"{what}: {said.rstrip('.')}"
    return kind(f"{text}; {remedy}" if remedy else text)
