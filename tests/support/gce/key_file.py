"""A service account's key, with which Google's libraries get their tokens from a test server."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


def write(path: Path, account: str, project: str, endpoint: str) -> Path:
    """The file, whose tokens come from `endpoint`/token."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    info = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "1",
        "private_key": key.private_bytes(*form).decode(),
        "client_email": account,
        "client_id": "1",
        "token_uri": f"{endpoint}/token",
    }
    path.write_text(json.dumps(info))
    return path
