"""Credentials of one attempt on their way from the controller to its machine: one sealed object in the store.

Every machine may read every such object, so the seal is what keeps them apart: AES-256-GCM with a key that only the controller
and this one machine have (it traded its voucher for it), bound to job and attempt. An object of another attempt, or one that
was changed by a bit, does not open. An older one of the same attempt does: it holds less life, and nothing else.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MARK = b"SSA1"
NONCE_BYTES = 12


class BadHandout(ValueError):
    """Not sealed for this attempt; a sentence."""


@dataclass(frozen=True, slots=True)
class Handout:
    """Credentials as they were made. A machine's clock may be wrong, so their life is told as a duration."""

    values: dict[str, str] = field(repr=False)  # in obstore's names of options
    life_seconds: float  # at the moment they were made
    issued_at: str  # by the controller's clock, for people


def seal(handout: Handout, key: bytes, job: str, attempt: int) -> bytes:
    """The object that carries it; `key` has 32 bytes. Two seals of the same values differ."""
    nonce = os.urandom(NONCE_BYTES)
    return MARK + nonce + AESGCM(key).encrypt(nonce, json.dumps(asdict(handout)).encode(), _context(job, attempt))


def unseal(data: bytes, key: bytes, job: str, attempt: int) -> Handout:
    """What was handed out. Raises BadHandout for whatever was not sealed for this attempt."""
    at = len(MARK) + NONCE_BYTES
    try:
        if not data.startswith(MARK):
            raise ValueError(MARK)
        text = AESGCM(key).decrypt(data[len(MARK) : at], data[at:], _context(job, attempt))
        return Handout(**json.loads(text))
    except (InvalidTag, ValueError, TypeError):  # whose own words would only be about bytes
        raise BadHandout(
            f"the credentials for {job}, attempt {attempt}, do not open: changed in the store, or another machine's"
        ) from None


def _context(job: str, attempt: int) -> bytes:
    return MARK + json.dumps([job, attempt]).encode()
