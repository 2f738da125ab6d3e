"""One connection to a machine whose key is known beforehand."""

from __future__ import annotations

import base64
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotsurfer import extras
from spotsurfer.model.errors import ConfigError, HostKeyMismatch, MachineUnreachable

if TYPE_CHECKING:
    import paramiko

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 15
ELSEWHERE = "is its port open to you, and is [ssh] address right?"


@dataclass(frozen=True, slots=True)
class Target:
    """A machine. `host_key` is its public key as in known_hosts(5), without the name."""

    address: str
    user: str
    host_key: str
    port: int = 22


def connect(target: Target, key_file: Path | None = None, seconds: float = CONNECT_SECONDS) -> paramiko.SSHClient:
    """An open connection, by the key in the file, else by the keys that the user's agent holds.

    Raises MachineUnreachable, HostKeyMismatch, ConfigError, and HostUnfit without the extra `ssh`.
    """
    ssh = _library()
    own = _key(key_file) if key_file is not None else None
    try:
        raw = socket.create_connection((target.address, target.port), timeout=seconds)
    except OSError as e:
        raise MachineUnreachable(f"{target.address}:{target.port} can't be reached ({e.strerror or e}): {ELSEWHERE}") from e
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the library leaves it off: 44 ms a command instead of 1.4
    client = ssh.SSHClient()
    kind, _, data = target.host_key.partition(" ")
    client.get_host_keys().add(_name(target), kind, ssh.PKey.from_type_string(kind, base64.b64decode(data)))
    client.set_missing_host_key_policy(ssh.RejectPolicy())
    try:
        client.connect(
            target.address,
            port=target.port,
            username=target.user,
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
        raise _error(ssh, e, target) from e
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(KEEPALIVE_SECONDS)
    return client


def _name(target: Target) -> str:
    """As the library looks it up."""
    return target.address if target.port == 22 else f"[{target.address}]:{target.port}"


def _error(ssh: Any, e: Exception, target: Target) -> MachineUnreachable | HostKeyMismatch:
    at = f"{target.user}@{target.address}:{target.port}"
    # A server without a key of the pinned kind shows another one, which nobody knows: that is no less wrong.
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
    with extras.needed_for("SSH"):
        import paramiko
    return paramiko
