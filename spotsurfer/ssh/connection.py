"""Host keys that the controller makes for machines, and SSH connections that pin them."""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from spotsurfer.common import plugins
from spotsurfer.model.errors import ConfigError, HostKeyMismatch, MachineUnreachable
from spotsurfer.ports.service import Machine

if TYPE_CHECKING:
    import paramiko


# ---- Host key: made by the controller, and given to the machine in its user-data.
# So nobody has to trust a machine on first use. The key is derived from the family's master secret and the attempt: a repeated
# order carries the same key, and nothing must be remembered. The text form is OpenSSH's own (PROTOCOL.key in its sources),
# because sshd before 9.6 reads no other form for Ed25519, and libraries write it with random bytes inside.

KIND = b"ssh-ed25519"
BLOCK = 8  # of the cipher "none": the private part is padded to a multiple
LINE = 70


def private_text(seed: bytes, comment: str) -> str:
    """The private key of this seed (32 bytes), as a file for sshd. The same each time."""
    public = _public(seed)
    check = hashlib.sha256(b"check" + seed).digest()[:4]  # the format only wants both copies to be equal
    private = check + check + _text(KIND) + _text(public) + _text(seed + public) + _text(comment.encode())
    private += bytes(range(1, 1 + -len(private) % BLOCK))
    outer = _text(b"none") + _text(b"none") + _text(b"") + struct.pack(">I", 1) + _text(_text(KIND) + _text(public))
    data = base64.b64encode(b"openssh-key-v1\0" + outer + _text(private)).decode()
    lines = "\n".join(data[i : i + LINE] for i in range(0, len(data), LINE))
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"


def public_line(seed: bytes) -> str:
    """The public half, as in known_hosts(5) without the name: clients pin it."""
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


# ---- Connection

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 15
ELSEWHERE = "is its port open to you, and is [ssh] address right?"


def connect(machine: Machine, key_file: Path | None = None, seconds: float = CONNECT_SECONDS) -> paramiko.SSHClient:
    """An open connection, by the key in the file, else by the keys of the user's agent.

    Raises MachineUnreachable, HostKeyMismatch, ConfigError, and HostUnfit without the extra `ssh`.
    """
    ssh = _library()
    own = _key(key_file) if key_file is not None else None
    try:
        raw = socket.create_connection((machine.address, machine.port), timeout=seconds)
    except OSError as e:
        raise MachineUnreachable(f"{machine.address}:{machine.port} can't be reached ({e.strerror or e}): {ELSEWHERE}") from e
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the library leaves it off: 44 ms a command instead of 1.4
    client = ssh.SSHClient()
    kind, _, data = machine.host_key.partition(" ")
    name = machine.address if machine.port == 22 else f"[{machine.address}]:{machine.port}"  # by which the library looks it up
    client.get_host_keys().add(name, kind, ssh.PKey.from_type_string(kind, base64.b64decode(data)))
    client.set_missing_host_key_policy(ssh.RejectPolicy())
    try:
        client.connect(
            machine.address,
            port=machine.port,
            username=machine.user,
            sock=raw,
            pkey=own,
            allow_agent=own is None,
            look_for_keys=False,
            timeout=seconds,
            banner_timeout=seconds,
            auth_timeout=seconds,
        )
    except (ssh.BadHostKeyException, ssh.SSHException, OSError, EOFError) as e:
        client.close()
        raw.close()
        raise _error(ssh, e, machine) from e
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(KEEPALIVE_SECONDS)
    return client


def _error(ssh: Any, e: Exception, machine: Machine) -> MachineUnreachable | HostKeyMismatch:
    at = f"{machine.user}@{machine.address}:{machine.port}"
    # A server without a key of the pinned kind shows an unknown key instead: that is just as wrong.
    if isinstance(e, ssh.BadHostKeyException) or "not found in known_hosts" in str(e):
        return HostKeyMismatch(
            f"{at} does not show the host key that it was given at its start: it is another machine, or somebody is in between"
        )
    if isinstance(e, ssh.AuthenticationException):
        return MachineUnreachable(f"{at} does not let us in ({e}): does [ssh] key_file hold the key of [ssh] user there?")
    return MachineUnreachable(f"{at} can't be spoken to ({str(e) or type(e).__name__}): {ELSEWHERE}")


def _key(path: Path) -> paramiko.PKey:
    ssh = _library()
    try:
        key: paramiko.PKey = ssh.PKey.from_path(path)
    except OSError as e:
        raise ConfigError(f"[ssh] key_file {path} can't be read: {e.strerror}") from e
    except (ValueError, ssh.SSHException, ssh.pkey.UnknownKeyType) as e:
        raise ConfigError(f"[ssh] key_file {path} can't be used ({e}): give an OpenSSH key without a passphrase") from e
    return key


def _library() -> Any:
    with plugins.needed_for("SSH", "ssh"):
        import paramiko
    return paramiko
