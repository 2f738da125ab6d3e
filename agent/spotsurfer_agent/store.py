"""Objects in shared storage. Everything durable rests on one primitive: *create if absent*.

S3, GCS, Azure, local disks and NFS all have it; obstore speaks to all of them. Nothing here needs If-Match, because
obstore's local store has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, MemoryStore, from_url

from spotsurfer_agent import loosefiles
from spotsurfer_agent.buffers import Buffer
from spotsurfer_agent.loosefiles import LooseFiles
from spotsurfer_agent.storeport import Listed, Rights, StoreDenied, StoreError, StoreFull, StoreUnreachable

RETRY_SECONDS = 10.0  # obstore's default of 180 s would hide an outage from the lease
# What obstore says of a server that gave no whole answer, or one that means "later". A local store says neither.
# What S3 says to credentials that are over, or to a request that was signed by a clock that is wrong; some of it as 400.
REFUSED = re.compile(
    r"403 Forbidden|<Code>(?:ExpiredToken|InvalidToken|TokenRefreshRequired|InvalidAccessKeyId|RequestTimeTooSkewed)</Code>"
)
# Options by which S3 is told whose request it is; where none is given, credentials come from elsewhere.
SECRET_OPTIONS = frozenset({"access_key_id", "secret_access_key", "token", "session_token", "skip_signature"})
SKEWED = "RequestTimeTooSkewed"
PASSING = re.compile(r"HTTP error|non-2xx status code: (408|429|500|502|503|504)\b")
RANGE_BYTES = 16 << 20  # of a file read piece by piece
# Of a file that is sent: bytes of a part, and parts under way, which is what is in memory. S3 takes no smaller part; a disk is
# not faster with larger ones.
PARTS_FAR, PARTS_HERE = (5 << 20, 4), (1 << 20, 2)


class ObstoreStore:
    """Any store that obstore speaks to."""

    def __init__(self, store: Any, root: Path | None = None, refused: Callable[[], None] | None = None) -> None:
        """`refused` is called where the store denies our rights: who renews them may have newer ones."""
        self._store = store
        self._refused = refused
        self._root = root  # of a local store: obstore does not fsync there, we do
        self._loose = LooseFiles(root) if root is not None else None

    def create(self, key: str, data: bytes) -> bool:
        """Write durably if absent."""
        try:
            return self._create(key, data)
        except (BaseError, OSError) as e:
            raise self._error(e, key) from e

    def _create(self, key: str, data: Buffer) -> bool:
        try:
            made = loosefiles.create(self._root, key, data) if self._root is not None else None
            if made is not None:
                self._make_durable(key)  # also what is there: maybe our own, from before a crash
                return made
            self._put(key, data, "create")
        except AlreadyExistsError:
            self._make_durable(key)  # maybe our own, from before a crash: who hears of it relies on it
            return False
        return True

    def create_later(self, key: str, data: Buffer) -> bool:
        """Write if absent; durable once `sync` returned. Only a local store knows the difference."""
        try:
            made = self._loose.create(key, data) if self._loose is not None else None
            return made if made is not None else self._create(key, data)
        except (BaseError, OSError) as e:
            raise self._error(e, key) from e

    def sync(self) -> None:
        """What `create_later` wrote is durable when it returns."""
        try:
            if self._loose is not None:
                self._loose.sync()
        except OSError as e:
            raise self._error(e, "the store's folders") from e

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, durably."""
        try:
            self._put(key, data, "overwrite")
        except (BaseError, OSError) as e:
            raise self._error(e, key) from e

    def _put(self, key: str, data: Buffer, mode: Any) -> None:
        plain: Any = data  # obstore takes any buffer, but says bytes
        obstore.put(self._store, key, plain, mode=mode, use_multipart=False)
        self._make_durable(key)

    def _make_durable(self, key: str) -> None:
        if self._root is not None:
            _fsync_up(self._root / key, self._root)

    def get(self, key: str) -> bytes | None:
        """The whole object, or None."""
        _check(key)
        try:
            if self._root is not None and (data := loosefiles.read(self._root, key)) is not None:
                return data
            return bytes(obstore.get(self._store, key).bytes())
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError, ValueError) as e:
            raise self._error(e, key) from e

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of an object, or None."""
        _check(key)
        try:
            if self._root is not None and (data := loosefiles.read(self._root, key, start, length)) is not None:
                return data
            return bytes(obstore.get_range(self._store, key, start=start, length=length))
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError, ValueError) as e:
            raise self._error(e, key) from e

    def copy(self, source: str, target: str) -> None:
        """Copy within the store; in a local one it is a hard link."""
        try:
            obstore.copy(self._store, source, target, overwrite=True)
            self._make_durable(target)
        except (BaseError, OSError) as e:
            raise self._error(e, source) from e

    def put_file(self, key: str, path: Path) -> int:
        """Write or overwrite from a file, in parts where it is large."""
        with path.open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            try:
                part, many = PARTS_FAR if self._root is None else PARTS_HERE
                obstore.put(self._store, key, f if size else b"", mode="overwrite", chunk_size=part, max_concurrency=many)
                self._make_durable(key)
            except (BaseError, OSError) as e:
                raise self._error(e, key) from e
        return size

    def get_file(self, key: str, path: Path) -> int | None:
        """The object into a file, range by range: each has the time limit of one request."""
        _check(key)
        try:
            size = int(obstore.head(self._store, key)["size"])
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError, ValueError) as e:
            raise self._error(e, key) from e
        with path.open("wb") as f:
            for start in range(0, size, RANGE_BYTES):
                piece = self.get_range(key, start, min(RANGE_BYTES, size - start))
                if piece is None:
                    raise StoreError(f"{key}: it vanished while it was read")
                f.write(piece)
        return size

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        """All objects below `prefix` in key order."""
        try:
            batches = obstore.list(self._store, prefix=prefix, offset=after)
            found = [
                Listed(str(m["path"]), int(m["size"]), f"{m.get('e_tag')}/{(at := m['last_modified'].timestamp())}", at)
                for batch in batches
                for m in batch
            ]
        except (NotFoundError, FileNotFoundError):
            return []
        except (BaseError, OSError) as e:
            raise self._error(e, prefix) from e
        return sorted((x for x in found if x.key.startswith(prefix)), key=lambda x: x.key)

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Names of the folders right below `prefix`, which ends in /. What is in them is not listed. Raises StoreError."""
        try:
            found = obstore.list_with_delimiter(self._store, prefix=prefix)["common_prefixes"]
        except (NotFoundError, FileNotFoundError):
            return ()
        except (BaseError, OSError) as e:
            raise self._error(e, prefix) from e
        return tuple(sorted(str(path).rstrip("/").rpartition("/")[2] for path in found))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; absent ones are no error."""
        for key in keys:
            try:
                obstore.delete(self._store, key)
            except (NotFoundError, FileNotFoundError):
                continue
            except (BaseError, OSError) as e:
                raise self._error(e, key) from e

    def _error(self, e: Exception, key: str) -> StoreError:
        error = _error(e, key)
        if self._refused is not None and isinstance(error, StoreDenied):
            self._refused()
        return error


def open_store(url: str, options: Mapping[str, str] | None = None, rights: Rights | None = None) -> ObstoreStore:
    """The store at `url`: file:///path, memory:///, s3://bucket/prefix, gs://…, az://…

    `options` are obstore's own (for S3 also `endpoint`, `access_key_id`, `allow_http` …). With `rights`, which only S3 takes,
    they hold no credentials.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        root = Path(unquote(parts.path))
        root.mkdir(0o700, parents=True, exist_ok=True)
        return ObstoreStore(LocalStore(prefix=str(root)), root)
    if parts.scheme == "memory":
        return ObstoreStore(MemoryStore())
    plain: Any = dict(options or {})  # obstore types each key, and checks them at run time
    client: Any = {"allow_http": plain.pop("allow_http", "false") == "true", "timeout": "30s", "connect_timeout": "5s"}
    retry: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    extra: Any = {} if rights is None else {"credential_provider": rights}
    opened = from_url(url, config=plain or None, client_options=client, retry_config=retry, **extra)
    return ObstoreStore(opened, refused=rights.refused if rights is not None else None)


def _check(key: str) -> None:
    """Names that others wrote (a checkpoint in a head entry, an output) become parts of keys. Raises StoreError."""
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise StoreError(f"{key!r} is no key: it has an empty part, or one that leads elsewhere")


def _fsync_up(path: Path, root: Path) -> None:
    """Make file and names durable: the file, then every folder up to the root (each may be new)."""
    loosefiles.fsync(path)
    for folder in path.parents:
        loosefiles.fsync(folder)
        if folder == root:
            return


def _error(e: Exception, key: str) -> StoreError:
    text = f"{key}: {e}".partition("\n\nDebug source")[0]  # obstore appends its own structure
    denied = isinstance(e, PermissionDeniedError | UnauthenticatedError | PermissionError)
    if SKEWED in text:
        return StoreDenied(f"{key}: the store refuses our requests because this machine's clock is wrong; set it ({text})")
    if denied or REFUSED.search(text):  # of a listing obstore makes no error of its own
        return StoreDenied(text)
    if "No space left" in text or "Disk quota" in text or "QuotaExceeded" in text:
        return StoreFull(text)
    return StoreUnreachable(text) if isinstance(e, GenericError) and PASSING.search(text) else StoreError(text)
