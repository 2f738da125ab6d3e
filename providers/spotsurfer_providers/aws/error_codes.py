"""Translates AWS errors to ours, by one table.

The codes are those of the EC2 API reference ("Error codes for the Amazon EC2 API": client errors, server errors, common
errors), of "Common Errors" of STS, and of the query and JSON protocols of SSM, SQS and Pricing. A code without a row leaves
open whether the order was carried out: the order is repeated with its token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    UnauthorizedSSOTokenError,
)
from botocore.parsers import ResponseParserError

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

MISMATCH = "IdempotentParameterMismatch"  # an earlier call used the token with other parameters: see AwsProvider.launch
TERMINATED = "IdempotentInstanceTerminated"  # the instance of this token has ended
WOULD_HAVE_WORKED = "DryRunOperation"

_CODES: dict[type[ProviderError], tuple[str, ...]] = {
    NoCapacity: (
        "InsufficientInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientVolumeCapacity",
        "InsufficientAddressCapacity",
        "InsufficientCapacityOnHost",
        "UnfulfillableCapacity",
        "SpotMaxPriceTooLow",
    ),
    QuotaExceeded: (
        "InstanceLimitExceeded",
        "VcpuLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "VolumeLimitExceeded",
        "MaxIOPSLimitExceeded",
        "NetworkInterfaceLimitExceeded",
        "AttachmentLimitExceeded",
        "PrivateIpAddressLimitExceeded",
        "SecurityGroupsPerInstanceLimitExceeded",
        "SecurityGroupsPerInterfaceLimitExceeded",
        "VolumeIOPSLimit",
        "ResourceCountExceeded",
        "ResourceCountLimitExceeded",
        "ResourceLimitExceeded",
        "LimitExceeded",
    ),
    Throttled: (
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestResourceCountExceeded",
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "TransactionInProgressException",
        "OverLimit",
    ),
    CredentialsExpired: (
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignature",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "AuthFailure",
    ),
    ProviderDenied: (
        "UnauthorizedOperation",
        "UnauthorizedAccess",
        "AccessDenied",
        "AccessDeniedException",
        "OperationNotPermitted",
        "OptInRequired",
        "PendingVerification",
        "Blocked",
        "AccountDisabled",
        "RegionDisabledException",
    ),
    UnknownToProvider: (
        "InvalidInstanceID.NotFound",
        "InvalidInstanceID.Malformed",
        "ParameterNotFound",
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
    ),
    Invalid: (
        "Unsupported",
        "UnsupportedOperation",
        "UnsupportedHostConfiguration",
        "InvalidParameter",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "InvalidParameterDependency",
        "InvalidInput",
        "InvalidInstanceType",
        "InvalidUserData.Malformed",
        "InvalidAMIID.NotFound",
        "InvalidAMIID.Malformed",
        "InvalidAMIID.Unavailable",
        "InvalidSubnet",
        "InvalidSubnet.Range",
        "InvalidSubnetID.NotFound",
        "InvalidSubnetID.Malformed",
        "InvalidGroup.NotFound",
        "InvalidGroupId.Malformed",
        "InvalidGroupId.NotFound",
        "InvalidSecurityGroupID.NotFound",
        "InvalidKeyPair.NotFound",
        "InvalidIamInstanceProfileArn.Malformed",
        "InvalidLaunchTemplateId.Malformed",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.VersionNotFound",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateName.MalformedException",
        "InvalidBlockDeviceMapping",
        "InvalidAvailabilityZone",
        "InvalidZone.NotFound",
        "InvalidNetworkInterface.InUse",
        "InvalidRequest",
        "InvalidSecurityGroupId.Malformed",
        "InvalidSnapshot.NotFound",
        "InvalidInstanceFamily",
        "BootForVolumeTypeUnsupported",
        "EncryptedVolumesNotSupported",
        "InstanceCreditSpecification.NotSupported",
        "UnsupportedHibernationConfiguration",
        "UnsupportedTenancy",
        "VolumeTypeNotAvailableInZone",
        "VPCResourceNotSpecified",
        "InvalidTagKey.Malformed",
        "TagLimitExceeded",
        "MalformedPolicyDocument",
        "PackedPolicyTooLarge",
        "MissingParameter",
        "MissingAction",
        "UnknownParameter",
        "ValidationError",
        "ValidationException",
        "VPCIdNotSpecified",
    ),
}
KINDS: dict[str, type[ProviderError]] = {code: kind for kind, codes in _CODES.items() for code in codes}

# Errors of botocore itself, before any call.
NO_CREDENTIALS = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    ProfileNotFound,
    UnauthorizedSSOTokenError,
)

# Remedies for people; kinds that pass by themselves have none.
REMEDIES: dict[type[ProviderError], str] = {
    QuotaExceeded: "ask AWS for more (Service Quotas, EC2), or lower limits.instances_max",
    CredentialsExpired: "renew the controller's credentials (`aws sts get-caller-identity` tells) and check this host's clock",
    ProviderDenied: "compare the controller's role with terraform/aws",
    Invalid: "check [provider.aws]",
}


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Turns every exception of botocore inside into ProviderError or a child of it, with a sentence."""
    try:
        yield
    except (ClientError, BotoCoreError, ResponseParserError) as e:  # the last is botocore's, but no BotoCoreError
        raise translated(e, what) from e
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise ProviderError(f"{what}: AWS answered something that can't be read ({type(e).__name__}: {e})") from e


def translated(error: ClientError | BotoCoreError | ResponseParserError, what: str) -> ProviderError:
    """Our error for one of botocore's."""
    if isinstance(error, ClientError):
        kind = KINDS.get(code_of(error), ProviderError)
        text = error.response.get("Error", {}).get("Message") or "no message"
        return kind(_with_remedy(f"{what}: {code_of(error)}: {text.rstrip('.')}", kind))
    kind = CredentialsExpired if isinstance(error, NO_CREDENTIALS) else ProviderError
    return kind(_with_remedy(f"{what}: {error}", kind))


def code_of(error: ClientError) -> str:
    """AWS's error code; empty if the answer has none."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _with_remedy(text: str, kind: type[ProviderError]) -> str:
    remedy = REMEDIES.get(kind)
    return f"{text}; {remedy}" if remedy else text
