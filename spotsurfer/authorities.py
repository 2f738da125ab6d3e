"""Certificates that machines trust registries by, besides the usual ones: read from files, handed to agents in user-data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from spotsurfer.model.errors import ConfigError

BYTES_MAX = 8192  # user-data of a cloud holds 16 KiB in all


def read(paths: Iterable[Path]) -> str:
    """All certificates of these files in PEM, one after the other, without whatever else stands there.

    Raises ConfigError for a file that can't be read or holds none, and for more than user-data has room for.
    """
    text = "".join(_certificates(path) for path in paths)
    if len(text) > BYTES_MAX:
        raise ConfigError(
            f"images.authorities are {len(text)} bytes, at most {BYTES_MAX} fit: name only those that registries need"
        )
    return text


def _certificates(path: Path) -> str:
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"images.authorities: {path} can't be read: {e.strerror}") from e
    except ValueError:
        raise ConfigError(f"images.authorities: {path} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)") from None
    return "".join(c.public_bytes(Encoding.PEM).decode() for c in found)
