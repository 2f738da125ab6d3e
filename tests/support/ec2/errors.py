"""The errors that the layer answers by itself: HTTP status and words. Codes and statuses: EC2's "Error codes for the API"."""

from __future__ import annotations

from collections.abc import Mapping

from support.ec2.wire import Refused

ERRORS: Mapping[str, tuple[int, str]] = {
    "DryRunOperation": (412, "Request would have succeeded, but DryRun flag is set."),
    "IdempotentInstanceTerminated": (400, "The client token was used by a request whose instances have been terminated."),
    "IdempotentParameterMismatch": (400, "Arguments on this idempotent request differ from those of the previous request."),
    "InsufficientInstanceCapacity": (500, "We currently do not have sufficient {kind} capacity in {zone} ({market})."),
    "InvalidAMIID.Malformed": (400, 'Invalid id: "{image}" (expecting "ami-...")'),
    "InvalidAMIID.NotFound": (400, "The image id '[{image}]' does not exist"),
    "InvalidInstanceID.Malformed": (400, 'Invalid id: "{id}"'),
    "InvalidInstanceID.NotFound": (400, "The instance ID '{id}' does not exist"),
    "InvalidNextToken": (400, "The token is not valid."),
    "InvalidParameterCombination": (400, "The parameter {one} cannot be used with the parameter {other}"),
    "InvalidParameterValue": (400, "Invalid value '{value}' for {name}."),
    "InvalidSubnetID.NotFound": (400, "The subnet ID '{id}' does not exist"),
    "InvalidUserData.Malformed": (400, "{why}"),
    "MissingParameter": (400, "The request must contain the parameter {name}"),
    "RequestExpired": (400, "Request has expired."),
    "UnknownParameter": (400, "The parameter {name} is not recognized"),
    "Unsupported": (
        400,
        "Your requested instance type ({kind}) is not supported in your Availability Zone ({zone}).",
    ),
}


def refusal(code: str, **words: object) -> Refused:
    """The error `code` with its words filled in."""
    status, text = ERRORS[code]
    return Refused(code, text.format(**words), status)
