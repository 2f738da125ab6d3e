"""The key by which a machine is known, made by the controller and given to the machine in its user-data.

So nobody has to trust a machine on first use. The key is derived from the family's master secret and the attempt: a repeated
order carries the same one, and nothing has to be remembered. The text form is OpenSSH's own (PROTOCOL.key in its sources),
because sshd before 9.6 reads no other one for Ed25519; libraries write that form with random bytes in it.
"""

from __future__ import annotations

import base64
import hashlib
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from spotsurfer.model.errors import ConfigError

KIND = b"ssh-ed25519"
BLOCK = 8  # of the cipher "none": the private part is filled up to a multiple
LINE = 70


def private_text(seed: bytes, comment: str) -> str:
    """The key of these 32 bytes, as a file for sshd. The same each time."""
    public = _public(seed)
    check = hashlib.sha256(b"check" + seed).digest()[:4]  # in the format both must be equal, nothing else
    private = check + check + _text(KIND) + _text(public) + _text(seed + public) + _text(comment.encode())
    private += bytes(range(1, 1 + -len(private) % BLOCK))
    outer = _text(b"none") + _text(b"none") + _text(b"") + struct.pack(">I", 1) + _text(_text(KIND) + _text(public))
    data = base64.b64encode(b"openssh-key-v1\0" + outer + _text(private)).decode()
    lines = "\n".join(data[i : i + LINE] for i in range(0, len(data), LINE))
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"


def public_line(seed: bytes) -> str:
    """The public half, as in known_hosts(5) without the name: what a client pins."""
    return f"{KIND.decode()} {base64.b64encode(_text(KIND) + _text(_public(seed))).decode()}"


def authorized_line(private_key: bytes, where: str) -> str:
    """The public half of a user's private key, as a line for authorized_keys(5). Raises ConfigError; `where` names the file."""
    try:
        key = load_ssh_private_key(private_key, password=None)
    except (ValueError, TypeError) as e:
        raise ConfigError(f"[ssh] key_file {where} can't be used ({e}): give an OpenSSH key without a passphrase") from None
    return f"{key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} spotsurfer"


def _public(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
