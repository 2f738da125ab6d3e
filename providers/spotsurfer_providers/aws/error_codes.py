"""Translates AWS errors to ours, by one table.

The codes are those of the EC2 API reference ("Error codes for the Amazon EC2 API": client errors, server errors, common
errors), of "Common Errors" of STS, and of the query and JSON protocols of SSM, SQS and Pricing. A code without a row leaves
open whether the order was carried out: the order is repeated with its token.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

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
from spotsurfer_providers import cloud_errors

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
KINDS = cloud_errors.by_code(_CODES)

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


def calling(what: str) -> AbstractContextManager[None]:
    """Turns every exception of botocore inside into ProviderError or a child of it, with a sentence."""
    # The last is botocore's, but no BotoCoreError.
    return cloud_errors.calling(what, "AWS", (ClientError, BotoCoreError, ResponseParserError), translated)


def translated(error: ClientError | BotoCoreError | ResponseParserError, what: str) -> ProviderError:
    """Our error for one of botocore's."""
    if isinstance(error, ClientError):
        text = error.response.get("Error", {}).get("Message") or "no message"
        return _error(KINDS.get(code_of(error), ProviderError), what, f"{code_of(error)}: {text}")
    return _error(CredentialsExpired if isinstance(error, NO_CREDENTIALS) else ProviderError, what, str(error))


def code_of(error: ClientError) -> str:
    """AWS's error code; empty if the answer has none."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _error(kind: type[ProviderError], what: str, said: str) -> ProviderError:
    return cloud_errors.error(kind, what, said, REMEDIES)
