"""The family's master secret: all keys that name, seal and encrypt checkpoints derive from it. It never enters the store.

Without it the checkpoints can't be read any more; `spotsurfer backup` saves it. A store holds a fingerprint of it, so that a
controller with another secret fails at its start and not at a restore.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer_wire.crypto import SECRET_BYTES, Keys, access_secret, fingerprint, host_seed, lineage_secret, voucher

from spotsurfer.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StoreKey:
    """The master secret in memory."""

    master: bytes = field(repr=False)
    encrypts: bool = False

    @property
    def fingerprint(self) -> str:
        """A fingerprint that distinguishes two secrets and reveals nothing."""
        return fingerprint(self.master)

    def secret_of(self, lineage: str) -> str:
        """The secret for agents of this lineage, in hexadecimal digits."""
        return lineage_secret(self.master, lineage).hex()

    def access_secret_of(self, job: str, attempt: int) -> bytes:
        """The key that seals the credentials for this attempt."""
        return access_secret(self.master, job, attempt)

    def voucher_of(self, job: str, attempt: int) -> bytes:
        """The voucher in this attempt's user-data: it opens the part that user-data leaves out, as long as that is there."""
        return voucher(self.master, job, attempt)

    def order_secret_of(self, machine: str) -> bytes:
        """The key that seals the orders for a machine that is kept, by its launch token."""
        return access_secret(self.master, f"machine:{machine}", 0)

    def host_seed_of(self, job: str, attempt: int) -> bytes:
        """The private host key of this attempt's machine."""
        return host_seed(self.master, job, attempt)

    def keys_of(self, lineage: str) -> Keys:
        """The keys that agents of this lineage have."""
        return Keys.of_hex(self.secret_of(lineage), lineage, self.encrypts)


def load(path: Path, encrypts: bool = False) -> StoreKey:
    """The secret in `path`, made atomically on first use with mode 0600.

    Raises ConfigError if the file can't be made or read, can be read by others, or holds anything else.
    """
    try:
        if not path.exists():
            _make(path)
        mode, text = path.stat().st_mode, path.read_text().strip()
        master = bytes.fromhex(text)
    except ValueError:
        master, mode = b"", 0
    except OSError as e:
        raise ConfigError(f"The store's key {path} can't be made or read: {e.strerror}. Set [store] key_file.") from None
    if len(master) != SECRET_BYTES:
        raise ConfigError(
            f"The store's key {path} is not {2 * SECRET_BYTES} hexadecimal digits: bring it back from a backup "
            "(`spotsurfer restore`), or remove it where no checkpoint is needed any more."
        )
    if mode & 0o077:
        raise ConfigError(f"The store's key {path} can be read by others: chmod 600 {path}.")
    return StoreKey(master, encrypts)


def _make(path: Path) -> None:
    """Make the file and link it into place once it is on disk: two starts at once get the same one, a crash leaves no part."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(partial)
        except FileExistsError:
            return
    finally:
        partial.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
