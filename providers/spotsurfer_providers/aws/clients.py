"""AWS service clients with the default credential chain, and AWS errors translated to ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import boto3
from botocore.config import Config
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
    ConfigError,
    CredentialsExpired,
    Invalid,
    NoCapacity,
    ProviderDenied,
    ProviderError,
    QuotaExceeded,
    Throttled,
    UnknownToProvider,
)
from spotsurfer_providers.aws.settings import AwsSettings

# Errors of AWS as errors of ours: one table.
#
# The codes are those of the EC2 API reference ("Error codes for the Amazon EC2 API": client errors, server errors, common
# errors), of "Common Errors" of STS, and of the query and JSON protocols of SSM, SQS and Pricing. What has no row says nothing
# about what was done: the order is repeated with its token.

MISMATCH = "IdempotentParameterMismatch"  # the token was used before, with other words: see provider.launch
TERMINATED = "IdempotentInstanceTerminated"  # what the token made has ended
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

# What botocore itself says before it asks anybody.
NO_CREDENTIALS = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    ProfileNotFound,
    UnauthorizedSSOTokenError,
)
# What a person can do about it; kinds that heal by themselves have none.
REMEDIES: dict[type[ProviderError], str] = {
    QuotaExceeded: "ask AWS for more (Service Quotas, EC2), or lower limits.instances_max",
    CredentialsExpired: "renew the controller's credentials (`aws sts get-caller-identity` tells) and check this host's clock",
    ProviderDenied: "compare the controller's role with terraform/aws",
    Invalid: "check [provider.aws]",
}


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Everything that botocore raises within comes out as ProviderError or one of its children, with a sentence."""
    try:
        yield
    except (ClientError, BotoCoreError, ResponseParserError) as e:  # the last is botocore's, but no BotoCoreError
        raise translated(e, what) from e
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise ProviderError(f"{what}: AWS answered something that can't be read ({type(e).__name__}: {e})") from e


def translated(error: ClientError | BotoCoreError | ResponseParserError, what: str) -> ProviderError:
    """The error of ours for one of botocore's."""
    if isinstance(error, ClientError):
        kind = KINDS.get(code_of(error), ProviderError)
        text = error.response.get("Error", {}).get("Message") or "no message"
        return kind(_with_remedy(f"{what}: {code_of(error)}: {text.rstrip('.')}", kind))
    kind = CredentialsExpired if isinstance(error, NO_CREDENTIALS) else ProviderError
    return kind(_with_remedy(f"{what}: {error}", kind))


def code_of(error: ClientError) -> str:
    """AWS's word for it; empty where the answer has none."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _with_remedy(text: str, kind: type[ProviderError]) -> str:
    remedy = REMEDIES.get(kind)
    return f"{text}; {remedy}" if remedy else text


# The services of AWS that are asked, with credentials of the default chain. Each is made when it is first needed.

CONNECT_SECONDS = 5
READ_SECONDS = 25
# Orders are sent once: who repeats them decides anew each time, also whether another pool is better.
ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS)
# Questions may be asked again at once; more patience than that is the circuit breaker's.
AGAIN = Config(
    retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS
)
# The price list has three endpoints; the nearest by the beginning of the region's name.
PRICING_REGIONS = {"eu": "eu-central-1", "ap": "ap-south-1", "cn": "cn-northwest-1"}


class Clients:
    """Made without a call. Credentials are kept and renewed by botocore, in memory only."""

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
        """EC2, for what changes something."""
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
