"""Secrets of a job on their way from its user to its processes: one sealed object in the store, opened by its agents alone.

The controller seals them the moment they arrive, the agent opens them when it starts the job and before it brings it back;
nobody keeps them in between. The seal is AES-256-GCM with a key of the job's lineage that is used for nothing else, bound to
the lineage and the job: an object that was moved to another job, or changed by a bit, does not open.

Names that a user can't give begin with a colon: what travels this way without being one of the job's own secrets.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from spotsurfer_agent import objectkeys
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.storeport import ObjectStore, StoreError

ENVIRONMENT, FILE = "environment", "file"  # how a job gets a secret
BYTES_MAX = 1 << 20  # of all of them together
MARK = b"SSX1"
NONCE_BYTES = 12
Secrets = Mapping[str, bytes]


class SecretsLost(StoreError):
    """They are not in the store, or what is there was not sealed for this job; one sentence."""


def seal(values: Secrets, keys: Keys, job: str) -> bytes:
    """The object that carries them. Two seals of the same values differ."""
    text = json.dumps({name: base64.b64encode(value).decode() for name, value in sorted(values.items())}).encode()
    nonce = os.urandom(NONCE_BYTES)
    return MARK + nonce + AESGCM(keys.secrets).encrypt(nonce, text, _context(keys, job))


def unseal(data: bytes, keys: Keys, job: str) -> dict[str, bytes]:
    """The values. Raises SecretsLost for whatever was not sealed for this job with its lineage's key."""
    at = len(MARK) + NONCE_BYTES
    try:
        if not data.startswith(MARK):
            raise ValueError(MARK)
        text = AESGCM(keys.secrets).decrypt(data[len(MARK) : at], data[at:], _context(keys, job))
    except (InvalidTag, ValueError):  # whose own words would only be about bytes
        raise SecretsLost(
            f"the secrets of {job} do not open: they were changed in the store, or sealed for another job; submit it again"
        ) from None
    return {name: base64.b64decode(value) for name, value in json.loads(text).items()}


def fetch(store: ObjectStore, keys: Keys, job: str) -> dict[str, bytes]:
    """What lies in the store for this job, nothing where it was submitted without. Raises SecretsLost, StoreError."""
    data = store.get(objectkeys.secrets_key(job))
    return {} if data is None else unseal(data, keys, job)


def _context(keys: Keys, job: str) -> bytes:
    return MARK + json.dumps([keys.lineage, job]).encode()
