"""What an object store must do, what a listing says, and how it fails. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spotsurfer_wire.linux.buffers import Buffer


class StoreError(Exception):
    """A request failed: the store is unreachable, full or failing. The outcome of a write is unknown."""


class StoreDenied(StoreError):
    """The store refuses our rights. Not the same as absent."""


class StoreFull(StoreError):
    """No space left."""


class StoreUnreachable(StoreError):
    """No answer, or a temporary server error: a retry may help."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing. `version` changes whenever the object is rewritten."""

    key: str
    size: int
    version: str
    modified: float | None = None  # by the store's clock, seconds since 1970


class ObjectStore(Protocol):
    """Objects by key. Every method may raise StoreError and its children; after one, a write may or may not have happened."""

    def create(self, key: str, data: bytes) -> bool:
        """Write durably if absent. False: an object is there already, maybe our own after a lost answer."""
        ...

    def create_later(self, key: str, data: Buffer) -> bool:
        """Write if absent; durable only once `sync` returned. For objects that something else refers to only after that."""
        ...

    def sync(self) -> None:
        """Everything that `create_later` wrote, or found, is durable when it returns."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, durably. Only for objects with a single writer."""
        ...

    def get(self, key: str) -> bytes | None:
        """The whole object, or None if there is none."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of an object, shorter if the object ends before; None if there is no such object."""
        ...

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        """All objects below `prefix` in key order, those greater than `after`."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; absent ones are no error."""
        ...


class RightsUnreachable(Exception):
    """Whoever knows the credentials can't be asked now; it says nothing of the rights."""


class Rights(Protocol):
    """Credentials that change: obstore calls it before a request."""

    def __call__(self) -> Any:
        """An obstore `S3Credential` or `GCSCredential`; any exception but RightsUnreachable counts as a refusal."""
        ...

    def refused(self) -> None:
        """The store denied them."""
        ...


class FileStore(ObjectStore, Protocol):
    """An object store that also moves whole files without holding them in memory."""

    def put_file(self, key: str, path: Path) -> int:
        """Write or overwrite from a file, durably; returns the bytes sent. OSError if the file can't be read."""
        ...

    def get_file(self, key: str, path: Path) -> int | None:
        """The object into a new or emptied file; returns its size, None if there is none. OSError if the disk refuses."""
        ...


class CopyingStore(FileStore, Protocol):
    """A store that copies objects by itself, without a byte passing through us, and tells its folders."""

    def copy(self, source: str, target: str) -> None:
        """Make `target` the same as `source`, durably; StoreError if `source` is absent."""
        ...

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Names of the folders right below `prefix`, which ends in /."""
        ...
