"""Keys of a job's data. Each lineage has one secret; everything else is derived, so that no key serves two purposes.

A *lineage* is a job and its forks: they share chunks, so they share names and seals. The secret never enters the store in the
clear: the controller derives it from the family's master secret, and a machine gets it in its user-data or in exchange for a
voucher (`store.credentials.redeem`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import blake3

SECRET_BYTES = 32
_PURPOSES = {
    "fingerprint": "spotsurfer 2026-11-21 fingerprint of a master secret",
    "lineage": "spotsurfer 2026-11-21 secret of a lineage",
    "content": "spotsurfer 2026-11-23 AES-256-GMAC of chunks, as a universal hash",
    "name": "spotsurfer 2026-11-23 names of chunks",
    "prints": "spotsurfer 2026-11-25 AES-128 of pages, and of their fingerprints",
    "seal": "spotsurfer 2026-11-21 seals of manifests",
    "cipher": "spotsurfer 2026-11-21 AES-256-GCM of chunks and manifests",
    "secrets": "spotsurfer 2026-11-21 AES-256-GCM of the secrets that a job is given",
    "access": "spotsurfer 2026-11-22 AES-256-GCM of the credentials that one attempt is handed",
    "voucher": "spotsurfer 2026-11-25 AES-256-GCM of what the user-data of one attempt leaves out",
    "host": "spotsurfer 2026-11-22 Ed25519 key by which the machine of one attempt is known",
}


class WrongKey(ValueError):
    """A text that can't be a secret; one sentence."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one lineage. `encrypts` tells whether new data is encrypted; encrypted data is read in any case."""

    content: bytes = field(repr=False)
    name: bytes = field(repr=False)
    prints: bytes = field(repr=False)
    seal: bytes = field(repr=False)
    cipher: bytes = field(repr=False)
    secrets: bytes = field(repr=False)
    lineage: str
    encrypts: bool = False

    @classmethod
    def derive(cls, secret: bytes, lineage: str, encrypts: bool = False) -> Keys:
        """Keys from the lineage's secret; an empty one gives fixed keys that protect against nothing but accidents."""
        purposes = ("content", "name", "prints", "seal", "cipher", "secrets")
        return cls(**{name: _derived(name, secret, lineage) for name in purposes}, lineage=lineage, encrypts=encrypts)

    @classmethod
    def of_hex(cls, secret: str, lineage: str, encrypts: bool = False) -> Keys:
        """Keys from the secret as the agent's configuration has it. Raises WrongKey."""
        try:
            plain = bytes.fromhex(secret)
        except ValueError:
            plain = b"?"
        if len(plain) not in (0, SECRET_BYTES):
            raise WrongKey(f"the key of {lineage} is not {2 * SECRET_BYTES} hexadecimal digits: start the machine anew")
        return cls.derive(plain, lineage, encrypts)


def lineage_secret(master: bytes, lineage: str) -> bytes:
    """What an agent of this lineage is given: it opens nothing of other jobs."""
    return _derived("lineage", master, lineage)


def access_secret(master: bytes, job: str, attempt: int) -> bytes:
    """What opens the credentials that are handed to this attempt, and nothing else."""
    return _derived("access", master, f"{job}.{attempt}")


def voucher(master: bytes, job: str, attempt: int) -> bytes:
    """What opens, once, what this attempt's user-data leaves out, and nothing else."""
    return _derived("voucher", master, f"{job}.{attempt}")


def host_seed(master: bytes, job: str, attempt: int) -> bytes:
    """The private half of the Ed25519 key by which the machine of this attempt is known."""
    return _derived("host", master, f"{job}.{attempt}")


def fingerprint(master: bytes) -> str:
    """Tells two master secrets apart and gives nothing away."""
    return _derived("fingerprint", master, "").hex()[:32]


def _derived(purpose: str, secret: bytes, lineage: str) -> bytes:
    material = len(secret).to_bytes(8, "little") + secret + lineage.encode()
    return blake3.blake3(material, derive_key_context=_PURPOSES[purpose]).digest()
