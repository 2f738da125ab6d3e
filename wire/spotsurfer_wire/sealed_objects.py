"""Sealed objects in the store: a job's secrets, credentials for a machine, what its user-data must not say, orders for it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from spotsurfer_wire import object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.messages import AgentConfig
from spotsurfer_wire.store.port import ObjectStore, StoreError

NONCE_BYTES = 12
REGISTRY_AUTH = ":registry_auth"  # how a job's containers-auth.json is called among its secrets; the job never sees it


def _sealed(mark: bytes, key: bytes, context: bytes, text: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return mark + nonce + AESGCM(key).encrypt(nonce, text, context)


def _opened(mark: bytes, key: bytes, context: bytes, data: bytes) -> bytes:
    """Raises InvalidTag, ValueError."""
    at = len(mark) + NONCE_BYTES
    if not data.startswith(mark):
        raise ValueError(mark)
    return AESGCM(key).decrypt(data[len(mark) : at], data[at:], context)


# ---- Secrets of a job: one sealed object in the store, which only its agents can open
#
# The controller seals the secrets when they arrive. The agent opens them when it starts or restores the job. Nobody keeps them
# in between. The seal is AES-256-GCM with a key of the job's lineage that serves no other purpose. It is bound to the lineage
# and the job: an object that was moved to another job, or changed by a bit, does not open.
#
# Names that begin with a colon are not the job's own secrets. Users can't choose such names.

SECRET_VARIABLE, SECRET_FILE = "environment", "file"  # how a job gets a secret
SECRETS_BYTES_MAX = 1 << 20  # of all of them together
SECRETS_MARK = b"SSX1"
Secrets = Mapping[str, bytes]


class SecretsLost(StoreError):
    """The secrets are not in the store, or the object there was not sealed for this job; one sentence."""


def seal_secrets(values: Secrets, keys: Keys, job: str) -> bytes:
    """The object that carries them. Two seals of the same values differ."""
    text = json.dumps({name: base64.b64encode(value).decode() for name, value in sorted(values.items())}).encode()
    return _sealed(SECRETS_MARK, keys.secrets, _secrets_context(keys, job), text)


def unseal_secrets(data: bytes, keys: Keys, job: str) -> dict[str, bytes]:
    """The values. Raises SecretsLost for whatever was not sealed for this job with its lineage's key."""
    try:
        text = _opened(SECRETS_MARK, keys.secrets, _secrets_context(keys, job), data)
    except (InvalidTag, ValueError):  # their own messages would only be about bytes
        raise SecretsLost(
            f"the secrets of {job} do not open: they were changed in the store, or sealed for another job; submit it again"
        ) from None
    return {name: base64.b64decode(value) for name, value in json.loads(text).items()}


def fetch_secrets(store: ObjectStore, keys: Keys, job: str) -> dict[str, bytes]:
    """The secrets of this job; empty if it was submitted without any. Raises SecretsLost, StoreError."""
    data = store.get(object_keys.secrets_key(job))
    return {} if data is None else unseal_secrets(data, keys, job)


def _secrets_context(keys: Keys, job: str) -> bytes:
    return SECRETS_MARK + json.dumps([keys.lineage, job]).encode()


# ---- Handout: the credentials of one attempt on their way from the controller to its machine, one sealed object in the store
#
# Every machine may read every such object, so only the seal keeps them apart: AES-256-GCM, bound to job and attempt, with a key
# that only the controller and this machine have (the machine traded its voucher for it). An object of another attempt, or one
# that was changed by a bit, does not open. An older one of the same attempt does: its credentials only expire sooner.

HANDOUT_MARK = b"SSA1"


class BadHandout(ValueError):
    """Not sealed for this attempt; a sentence."""


@dataclass(frozen=True, slots=True)
class Handout:
    """Credentials as they were made. Their lifetime is a duration, because a machine's clock may be wrong."""

    values: dict[str, str] = field(repr=False)  # in obstore's names of options
    life_seconds: float  # at the moment they were made
    issued_at: str  # by the controller's clock, for people


def seal_handout(handout: Handout, key: bytes, job: str, attempt: int) -> bytes:
    """The object that carries it; `key` has 32 bytes. Two seals of the same values differ."""
    return _sealed(HANDOUT_MARK, key, _handout_context(job, attempt), json.dumps(asdict(handout)).encode())


def unseal_handout(data: bytes, key: bytes, job: str, attempt: int) -> Handout:
    """What was handed out. Raises BadHandout for whatever was not sealed for this attempt."""
    try:
        return Handout(**json.loads(_opened(HANDOUT_MARK, key, _handout_context(job, attempt), data)))
    except (InvalidTag, ValueError, TypeError):  # their own messages would only be about bytes
        raise BadHandout(
            f"the credentials for {job}, attempt {attempt}, do not open: changed in the store, or another machine's"
        ) from None


def _handout_context(job: str, attempt: int) -> bytes:
    return HANDOUT_MARK + json.dumps([job, attempt]).encode()


# ---- Withheld: what user-data must not contain, sealed

CONFIG, HOST_KEY = "agent.json", "host_key"  # in the agent's folder


def withhold_secrets(config: AgentConfig, voucher: bytes) -> tuple[AgentConfig, dict[str, str]]:
    """A configuration without any secret, and what was taken out of it."""
    kept = {"key": config.key, "access_secret": config.access_secret, "input_options": json.dumps(config.input_options)}
    return replace(config, key="", access_secret="", input_options={}, voucher=voucher.hex()), kept


def seal_withheld(kept: Mapping[str, str], voucher: bytes, job: str, attempt: int) -> bytes:
    """The object that holds what was taken out; only the voucher of this attempt opens it."""
    return seal_handout(Handout(dict(kept), 0.0, ""), voucher, job, attempt)


# ---- Order: the configuration of one more agent for a machine that is kept; only this machine opens it

ORDER_MARK = b"SSO1"


def seal_order(config: bytes, key: bytes, machine: str, slot: int) -> bytes:
    """The object that carries an encoded configuration; empty = nothing comes in this slot."""
    return _sealed(ORDER_MARK, key, _order_context(machine, slot), config)


def unseal_order(data: bytes, key: bytes, machine: str, slot: int) -> bytes:
    """What was ordered. Raises BadHandout for whatever was not sealed for this slot of this machine."""
    try:
        return _opened(ORDER_MARK, key, _order_context(machine, slot), data)
    except (InvalidTag, ValueError):
        raise BadHandout(f"the order for slot {slot} does not open: changed in the store, or another machine's") from None


def _order_context(machine: str, slot: int) -> bytes:
    return ORDER_MARK + json.dumps([machine, slot]).encode()
