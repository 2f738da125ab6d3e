"""Secrets of jobs from the secret services of AWS and Google Cloud, fetched with the controller's credentials.

The libraries come with the extras `aws` and `gcp`; they find the credentials as all tools of their cloud do.
`…#KEY` takes one value out of a secret that is a JSON object.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from spotsurfer.common import plugins
from spotsurfer.model.errors import Denied, InputMissing
from spotsurfer_providers import google_credentials

GCP_ENDPOINT = "https://secretmanager.googleapis.com"
ANSWER_SECONDS = 20.0
# Error codes of the services if access is denied, and if the secret does not exist.
AWS_DENIED = ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException")
AWS_ABSENT = ("ResourceNotFoundException", "InvalidRequestException")  # the second: it is marked for deletion
GCP_DENIED, GCP_ABSENT = ("401", "403"), ("404", "400")  # 400: the version is disabled or destroyed


def aws(place: str) -> bytes:
    """The current value of a secret by its name or ARN. Raises InputMissing, Denied, HostUnfit."""
    with plugins.needed_for("aws-secretsmanager:", "aws"):
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    name, _, key = place.partition("#")
    region = name.split(":")[3] if name.startswith("arn:") and name.count(":") >= 6 else None
    try:
        settings = Config(connect_timeout=ANSWER_SECONDS, read_timeout=ANSWER_SECONDS, retries={"total_max_attempts": 3})
        session = boto3.Session(region_name=region)  # of its own: the shared one may not be used by several threads
        found = session.client("secretsmanager", config=settings).get_secret_value(SecretId=name)
    except ClientError as e:
        raise _refused(f"aws-secretsmanager:{place}", str(e.response["Error"]["Code"]), AWS_DENIED, AWS_ABSENT) from None
    except BotoCoreError as e:
        raise InputMissing(f"aws-secretsmanager:{place} can't be asked for ({e}); check the controller's credentials") from None
    value = found["SecretString"].encode() if "SecretString" in found else bytes(found["SecretBinary"])
    return _part(value, key, f"aws-secretsmanager:{place}")


def gcp(place: str, endpoint: str = GCP_ENDPOINT) -> bytes:
    """A secret by `NAME`, of the credentials' own project, or `projects/P/secrets/NAME`, with `/versions/V` or the latest.

    Raises InputMissing, Denied, HostUnfit.
    """
    with plugins.needed_for("gcp-secret:", "gcp"):
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
    name, _, key = place.partition("#")
    try:
        credentials, project = google_credentials.default(endpoint == GCP_ENDPOINT)
        authorized: Any = AuthorizedSession  # its types are those of the class below it
        with authorized(credentials) as session:
            url = f"{endpoint}/v1/{_full_name(name, project)}:access"
            answer = session.get(url, timeout=ANSWER_SECONDS, max_allowed_time=3 * ANSWER_SECONDS)
    except (GoogleAuthError, OSError) as e:
        why = type(e).__name__  # the words behind it may quote an answer
        raise InputMissing(f"gcp-secret:{place} can't be asked for ({why}); check the controller's credentials") from None
    if answer.status_code != 200:
        raise _refused(f"gcp-secret:{place}", str(answer.status_code), GCP_DENIED, GCP_ABSENT)
    return _part(base64.b64decode(answer.json()["payload"]["data"]), key, f"gcp-secret:{place}")


def _full_name(name: str, project: str | None) -> str:
    if not name.startswith("projects/"):
        if project is None:
            raise InputMissing(
                f"gcp-secret:{name} names no project, and the credentials have none: write projects/P/secrets/{name}"
            )
        name = f"projects/{project}/secrets/{name}"
    return name if "/versions/" in name else name + "/versions/latest"


def _refused(what: str, code: str, denied: tuple[str, ...], absent: tuple[str, ...]) -> Exception:
    if code in denied:
        return Denied(f"{what}: the controller's credentials may not read it ({code}); grant that, or give it as file: or env:")
    if code in absent:
        return InputMissing(f"{what} is not there, or not any more ({code}); check name, region or project, and version")
    return InputMissing(f"{what} can't be read now ({code}); submit again later")


def _part(value: bytes, key: str, what: str) -> bytes:
    if not key:
        return value
    try:
        table: Any = json.loads(value)
        found = table[key]
    except (ValueError, KeyError, TypeError):
        raise InputMissing(f"{what}: the secret is no JSON object with that key; leave out #{key}, or correct it") from None
    return found.encode() if isinstance(found, str) else json.dumps(found).encode()
