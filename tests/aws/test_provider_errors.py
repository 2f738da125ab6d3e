"""What AWS says, as errors of ours: every code of the table, and what botocore itself says."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from spotsurfer_providers.aws import error_codes

from spotsurfer.controller.machines.circuit_breaker import failure
from spotsurfer.core.scheduling.placement import REFUSALS
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

# By hand from the EC2 API reference, "Error codes": what each must become. Not read from the table that is tested.
DOCUMENTED = {
    "InsufficientInstanceCapacity": NoCapacity,
    "InsufficientFreeAddressesInSubnet": NoCapacity,
    "SpotMaxPriceTooLow": NoCapacity,
    "UnfulfillableCapacity": NoCapacity,
    "InsufficientVolumeCapacity": NoCapacity,
    "MaxSpotInstanceCountExceeded": QuotaExceeded,
    "VcpuLimitExceeded": QuotaExceeded,
    "InstanceLimitExceeded": QuotaExceeded,
    "VolumeLimitExceeded": QuotaExceeded,
    "VolumeIOPSLimit": QuotaExceeded,
    "SecurityGroupsPerInstanceLimitExceeded": QuotaExceeded,
    "PrivateIpAddressLimitExceeded": QuotaExceeded,
    "ResourceCountLimitExceeded": QuotaExceeded,
    "RequestLimitExceeded": Throttled,
    "Throttling": Throttled,
    "UnauthorizedOperation": ProviderDenied,
    "OptInRequired": ProviderDenied,
    "PendingVerification": ProviderDenied,
    "AuthFailure": CredentialsExpired,
    "RequestExpired": CredentialsExpired,
    "ExpiredToken": CredentialsExpired,
    "InvalidClientTokenId": CredentialsExpired,
    "InvalidInstanceID.NotFound": UnknownToProvider,
    "Unsupported": Invalid,
    "InvalidParameterValue": Invalid,
    "InvalidParameterCombination": Invalid,
    "InvalidAMIID.NotFound": Invalid,
    "InvalidSubnetID.NotFound": Invalid,
    "InvalidSecurityGroupId.Malformed": Invalid,
    "InvalidLaunchTemplateName.NotFoundException": Invalid,
    "UnsupportedTenancy": Invalid,
    "VolumeTypeNotAvailableInZone": Invalid,
    "VPCResourceNotSpecified": Invalid,
    "ServerInternal": ProviderError,
    "InternalError": ProviderError,
    "InternalFailure": ProviderError,
    "Unavailable": ProviderError,
    "ServiceUnavailable": ProviderError,
    "SomethingNew": ProviderError,
}


def _error(code: str, message: str = "words") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "RunInstances")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(("code", "kind"), DOCUMENTED.items())
def test_code(code: str, kind: type[ProviderError]) -> None:
    made = error_codes.translated(_error(code), "RunInstances aws/us-east-1a/m6i.large")
    assert type(made) is kind
    assert str(made).startswith(f"RunInstances aws/us-east-1a/m6i.large: {code}: words")


def test_each_code_stands_once() -> None:
    codes = [c for some in error_codes._CODES.values() for c in some]
    assert len(codes) == len(set(codes)) == len(error_codes.KINDS)


@pytest.mark.parametrize("kind", [QuotaExceeded, CredentialsExpired, ProviderDenied, Invalid])
def test_what_needs_a_person_says_what_to_do(kind: type[ProviderError]) -> None:
    code = next(c for c, k in error_codes.KINDS.items() if k is kind)
    assert str(error_codes.translated(_error(code), "x")).endswith(error_codes.REMEDIES[kind])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoCredentialsError(), CredentialsExpired),
        (EndpointConnectionError(endpoint_url="http://x"), ProviderError),
        (ConnectTimeoutError(endpoint_url="http://x"), ProviderError),
        (ReadTimeoutError(endpoint_url="http://x"), ProviderError),
    ],
    ids=lambda e: getattr(e, "__name__", type(e).__name__),
)
def test_before_anybody_answered(error: Exception, kind: type[ProviderError]) -> None:
    with pytest.raises(ProviderError) as caught, error_codes.calling("RunInstances"):
        raise error
    assert type(caught.value) is kind


@pytest.mark.parametrize("error", [KeyError("Instances"), TypeError("None"), ValueError("no time"), IndexError("list")])
def test_an_answer_that_is_not_whole_says_nothing_about_what_was_done(error: Exception) -> None:
    with pytest.raises(ProviderError, match="can't be read") as caught, error_codes.calling("RunInstances"):
        raise error
    assert type(caught.value) not in REFUSALS


# (is it a clear no to this pool?, does it speak against the API?)
REACTIONS = {
    NoCapacity: (True, False),
    QuotaExceeded: (True, False),
    ProviderDenied: (True, False),
    Invalid: (True, False),
    Throttled: (False, True),
    CredentialsExpired: (False, True),
    ProviderError: (False, True),
}


@pytest.mark.parametrize(("kind", "reaction"), REACTIONS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_reaction(kind: type[ProviderError], reaction: tuple[bool, bool]) -> None:
    assert (kind in REFUSALS, failure(kind("x"))) == reaction
