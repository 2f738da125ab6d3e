"""Secrets of jobs: fetched from the clouds' secret services, sealed at submission, then forgotten.

The controller never stores or logs a secret, and answers only with names. It fetches the secrets of a cloud at submission, not
the machines. So a job goes on elsewhere with the very values that it began with, machines need no rights of their own, and the
submitter learns at once of a secret that can't be fetched.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from spotsurfer_wire import sealed_objects
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.sealed_objects import Secrets

from spotsurfer.common import plugins
from spotsurfer.jobspec.secrets import fitting, wrong
from spotsurfer.model.errors import Denied, InputMissing, JobFileError
from spotsurfer.model.job import JobSpec, fetched

Fetch = Callable[[str], bytes]  # a secret of a cloud by its name there; raises InputMissing or Denied


class Vault:
    """Seals the secrets of new jobs. `keys_of` are those of a lineage, `sources` the clouds by the kind of a secret."""

    def __init__(self, keys_of: Callable[[str], Keys], sources: Mapping[str, Fetch]) -> None:
        self._keys_of, self._sources = keys_of, sources

    def sealed(self, job: str, spec: JobSpec, given: Secrets) -> bytes | None:
        """The object for the store, or None if the job has no secrets.

        Raises InputMissing for one that was not sent or can't be fetched, JobFileError for a value that no job can receive.
        """
        values = {**given, **{name: self._fetched(spec, name) for name in fetched(spec)}}
        self._check(spec, values)
        return sealed_objects.seal_secrets(values, self._keys_of(job), job) if values else None

    def holds(self, job: str, data: bytes, wanted: bytes) -> bool:
        """Whether two sealed objects of a job hold the same secrets."""
        keys = self._keys_of(job)
        return sealed_objects.unseal_secrets(data, keys, job) == sealed_objects.unseal_secrets(wanted, keys, job)

    def _fetched(self, spec: JobSpec, name: str) -> bytes:
        kind, _, place = spec.secrets[name]["from"].partition(":")
        return fitting(spec.secrets[name]["as"], self._sources[kind](place))

    def _check(self, spec: JobSpec, values: Secrets) -> None:
        for name in spec.secrets:
            if name not in values:
                raise InputMissing(f"secrets.{name}: its value was not sent; submit again")
        for name in values:
            if name not in spec.secrets and name != sealed_objects.REGISTRY_AUTH:
                raise JobFileError(f"secrets.{name} was sent, but the job names no such secret")
        for name, why in wrong(spec, values):
            raise JobFileError(f"secrets.{name} {why}")


# ---- Clouds: secrets of AWS and Google Cloud, fetched with the controller's credentials
#
# The libraries come with the extras `aws` and `gcp`; they find the credentials as all tools of their cloud do.
# `…#KEY` takes one value out of a secret that is a JSON object.

GCP_ENDPOINT = "https://secretmanager.googleapis.com"
GCP_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ANSWER_SECONDS = 20.0


def aws(place: str) -> bytes:
    """The current value of a secret by its name or ARN. Raises InputMissing, Denied, HostUnfit."""
    with plugins.needed_for("aws-secretsmanager:"):
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
    with plugins.needed_for("gcp-secret:"):
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
    name, _, key = place.partition("#")
    try:
        credentials, project = google.auth.default(scopes=[GCP_SCOPE])
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


SOURCES: dict[str, Callable[[str], bytes]] = {"aws-secretsmanager": aws, "gcp-secret": gcp}
# Error codes of the services if access is denied, and if the secret does not exist.
AWS_DENIED = ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException")
AWS_ABSENT = ("ResourceNotFoundException", "InvalidRequestException")  # the second: it is marked for deletion
GCP_DENIED, GCP_ABSENT = ("401", "403"), ("404", "400")  # 400: the version is disabled or destroyed


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
