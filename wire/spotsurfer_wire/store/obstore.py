"""The object store by way of obstore; files of a local folder are written directly and durably.

Everything durable rests on one primitive: *create if absent*. S3, GCS, Azure, local disks and NFS all have it, and obstore
supports all of them. Nothing here needs If-Match, because obstore's local store lacks it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from obstore.store import GCSStore, LocalStore, MemoryStore, from_url

from spotsurfer_wire.linux.addresses import address
from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.store.port import Listed, Rights, RightsUnreachable, StoreDenied, StoreError, StoreFull, StoreUnreachable

# ---- Local files: many objects into a folder, quickly and never torn
#
# Data comes first, then the name; all names become durable at once. A nameless file is filled and written back, many side by
# side, and linked only then. So every file with a name is whole, also after a power failure. Only the folders must still be
# made durable: once for a whole batch instead of once for each object.

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")  # keys that are their own file names
CANNOT = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV})  # no files without a name here
ALIGNMENT = 4096  # of memory and length, for the disk to read it directly; what every disk takes
DIRECT_BYTES_MIN = 256 << 10
SYNC_THREADS = 16  # a disk does concurrent flushes together


def create(root: Path, key: str, data: Buffer) -> bool | None:
    """Write one object if absent; None if this file system or key needs another way. Raises OSError.

    Its name is not durable yet, but always stands for the whole object.
    """
    if not _PLAIN.fullmatch(key):
        return None
    path = f"{root}/{key}"  # no Path: a thousand objects a second come by here, and one thread at a time runs Python
    if os.access(path, os.F_OK):
        return False
    try:
        return _made(path, memoryview(data))
    except OSError as e:
        if e.errno in CANNOT:
            return None
        raise


def read(root: Path, key: str, start: int = 0, length: int | None = None) -> bytes | None:
    """An object or a part of it, with a single copy; None if this key needs another way. Raises OSError."""
    if not _PLAIN.fullmatch(key):
        return None
    fd = os.open(root / key, os.O_RDONLY | os.O_CLOEXEC)
    try:
        left = max(os.fstat(fd).st_size - start, 0)
        size = left if length is None else min(length, left)  # read() allocates the requested size at once
        data = os.pread(fd, size, start)
        while len(data) < size and (more := os.pread(fd, size - len(data), start + len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def fsync_all(paths: Iterable[Path]) -> None:
    """Flush many files or folders at once: a disk does concurrent flushes together."""
    with ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="fsync") as threads:
        for _ in threads.map(fsync, paths):
            pass


def fsync(path: Path) -> None:
    """Make a file's content or a folder's names durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _up(path: Path, root: Path) -> Iterator[Path]:
    """A path and every folder above it, up to the root."""
    while True:
        yield path
        if path == root:
            return
        path = path.parent


def _is_aligned(view: memoryview) -> bool:
    """Whether the disk can read the buffer directly, without a copy in the page cache."""
    if len(view) < DIRECT_BYTES_MIN or len(view) % ALIGNMENT:
        return False
    return address(view) % ALIGNMENT == 0


def _made(path: str, view: memoryview) -> bool:
    folder, direct = path.rpartition("/")[0], os.O_DIRECT if _is_aligned(view) else 0
    try:
        fd = _nameless(folder, direct)
    except FileNotFoundError:
        Path(folder).mkdir(parents=True, exist_ok=True)
        fd = _nameless(folder, direct)
    try:
        while view:
            view = view[os.write(fd, view) :]
        os.fdatasync(fd)
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)  # a folder makes it linkat, which follows
    except FileExistsError:
        return False
    finally:
        os.close(fd)
    return True


def _nameless(folder: str, direct: int) -> int:
    flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(folder, flags | direct, 0o644)
    except OSError as e:
        if not direct or e.errno not in CANNOT:
            raise
    return os.open(folder, flags, 0o644)


RETRY_SECONDS = 10.0  # obstore's default of 180 s would hide an outage from the lease
# A refused listing, and S3's answers to expired credentials or to a wrong clock, some of them with status 400: for them obstore
# has no error class.
REFUSED = re.compile(
    r"40(?:1 Unauthorized|3 Forbidden)"
    r"|<Code>(?:ExpiredToken|InvalidToken|TokenRefreshRequired|InvalidAccessKeyId|RequestTimeTooSkewed)</Code>"
)
NOWHERE = re.compile(r"<Code>(?:NoSuchBucket|ContainerNotFound)</Code>")  # not the object is absent, but all of the store
# Options that carry credentials of S3, Cloud Storage or Azure, less what may stand before them: see `has_credentials`.
SECRET_OPTIONS = frozenset({
    "access_key_id", "secret_access_key", "token", "session_token", "skip_signature",
    "service_account", "service_account_path", "service_account_key", "application_credentials",
    "account_key", "access_key", "master_key", "sas_key", "sas_token", "bearer_token", "client_secret", "federated_token_file",
})  # fmt: skip
CLOUDS = re.compile(r"^(?:aws|google|azure_storage|azure)_")
SKEWED = re.compile(r"RequestTimeTooSkewed|Request date header too old")  # S3, Azure
# obstore's words for a server that gave no whole answer, or one that means "later". A local store gives neither.
# obstore calls it a refusal, too, if whoever knows the credentials could not be asked.
UNASKED = re.compile(rf"credential provider: {RightsUnreachable.__name__}\b")
PASSING = re.compile(r"HTTP error|non-2xx status code: (408|429|500|502|503|504)\b")
RANGE_BYTES = 16 << 20  # of a file read piece by piece
# For a file that is sent: bytes of a part, and parts under way, which are in memory. S3 accepts no smaller part; a disk is not
# faster with larger ones.
PARTS_FAR, PARTS_HERE = (5 << 20, 4), (1 << 20, 2)
ABSENT = (NotFoundError, FileNotFoundError)


def requests_to_put(size: int) -> int:
    """With how many requests a file of so many bytes goes to a bucket: one, or each part and the upload's begin and end."""
    part = PARTS_FAR[0]
    return 1 if size <= part else -(-size // part) + 2


def requests_to_get(size: int) -> int:
    """With how many requests a file of so many bytes comes from a bucket."""
    return max(1, -(-size // RANGE_BYTES))


@contextlib.contextmanager
def _unless_absent() -> Iterator[None]:
    """An object that is not there is no error; a bucket that is not there stays one."""
    try:
        yield
    except ABSENT as e:
        if NOWHERE.search(str(e)):
            raise


class ObstoreStore:
    """Any store that obstore speaks to."""

    def __init__(self, store: Any, root: Path | None = None, refused: Callable[[], None] | None = None) -> None:
        """`refused` is called when the store denies our rights, so that newer credentials can be fetched."""
        self._store = store
        self._refused = refused
        self._root = root  # of a local store: obstore does not fsync there, we do
        self._loose: set[str] = set()  # folders with names that are not durable yet
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Errors of obstore and of the disk become those of the port."""
        try:
            yield
        except (BaseError, OSError, ValueError) as e:
            error = _error(e, key)
            if self._refused is not None and isinstance(error, StoreDenied):
                self._refused()
            raise error from e

    def create(self, key: str, data: bytes) -> bool:
        """Write durably if absent."""
        with self._errors(key):
            return self._create(key, data)

    def _create(self, key: str, data: Buffer) -> bool:
        try:
            made = create(self._root, key, data) if self._root is not None else None
            if made is not None:
                self._make_durable(key)  # also what is there: maybe our own, from before a crash
                return made
            self._put(key, data, "create")
        except AlreadyExistsError:
            self._make_durable(key)  # maybe our own, from before a crash: callers rely on it
            return False
        except PermissionDeniedError:
            # Who may not replace an object of Cloud Storage may be refused before its condition is looked at.
            if not isinstance(self._store, GCSStore) or not self._is_there(key):
                raise
            return False
        return True

    def _is_there(self, key: str) -> bool:
        with contextlib.suppress(*ABSENT):
            obstore.head(self._store, key)
            return True
        return False

    def create_later(self, key: str, data: Buffer) -> bool:
        """Write if absent; durable once `sync` returned. Only a local store knows the difference."""
        with self._errors(key):
            if self._root is None or (made := create(self._root, key, data)) is None:
                return self._create(key, data)
            with self._lock:  # only a folder that is there: a store that refused to make it must not spoil every later `sync`
                self._loose.add(key.rpartition("/")[0])
            return made

    def sync(self) -> None:
        """What `create_later` wrote is durable when it returns."""
        if self._root is None:
            return
        with self._lock:
            folders, self._loose = self._loose, set()
        with self._errors("the store's folders"):
            try:
                fsync_all({up for folder in folders for up in _up(self._root / folder, self._root)})
            except OSError:
                with self._lock:
                    self._loose |= folders
                raise

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, durably."""
        with self._errors(key):
            self._put(key, data, "overwrite")

    def _put(self, key: str, data: Buffer, mode: Any) -> None:
        plain: Any = data  # obstore takes any buffer, but says bytes
        obstore.put(self._store, key, plain, mode=mode, use_multipart=False)
        self._make_durable(key)

    def _make_durable(self, key: str) -> None:
        """File and names: the file, then every folder up to the root (each may be new)."""
        if self._root is not None:
            for path in _up(self._root / key, self._root):
                fsync(path)

    def get(self, key: str) -> bytes | None:
        """The whole object, or None."""
        _check(key)
        with self._errors(key), _unless_absent():
            if self._root is not None and (data := read(self._root, key)) is not None:
                return data
            return bytes(obstore.get(self._store, key).bytes())
        return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of an object, or None."""
        _check(key)
        with self._errors(key), _unless_absent():
            if self._root is not None and (data := read(self._root, key, start, length)) is not None:
                return data
            return bytes(obstore.get_range(self._store, key, start=start, length=length))
        return None

    def copy(self, source: str, target: str) -> None:
        """Copy within the store; in a local one it is a hard link."""
        with self._errors(source):
            obstore.copy(self._store, source, target, overwrite=True)
            self._make_durable(target)

    def put_file(self, key: str, path: Path) -> int:
        """Write or overwrite from a file, in parts if it is large."""
        part, many = PARTS_FAR if self._root is None else PARTS_HERE
        with path.open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            with self._errors(key):
                obstore.put(self._store, key, f if size else b"", mode="overwrite", chunk_size=part, max_concurrency=many)
                self._make_durable(key)
        return size

    def get_file(self, key: str, path: Path) -> int | None:
        """The object into a file, range by range: each has the time limit of one request."""
        _check(key)
        size: int | None = None
        with self._errors(key), _unless_absent():
            size = int(obstore.head(self._store, key)["size"])
        if size is None:
            return None
        with path.open("wb") as f:
            for start in range(0, size, RANGE_BYTES):
                piece = self.get_range(key, start, min(RANGE_BYTES, size - start))
                if piece is None:
                    raise StoreError(f"{key}: it vanished while it was read")
                f.write(piece)
        return size

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        """All objects below `prefix` in key order."""
        found: list[Listed] = []
        with self._errors(prefix), _unless_absent():
            found = [
                Listed(str(m["path"]), int(m["size"]), f"{m.get('e_tag')}/{(at := m['last_modified'].timestamp())}", at)
                for batch in obstore.list(self._store, prefix=prefix, offset=after)
                for m in batch
            ]
        # Azure begins at the beginning: the version of its API that obstore speaks knows no `startFrom`.
        ours = (x for x in found if x.key.startswith(prefix) and (after is None or x.key > after))
        return sorted(ours, key=lambda x: x.key)

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Names of the folders right below `prefix`, which ends in /. What is in them is not listed. Raises StoreError."""
        with self._errors(prefix), _unless_absent():
            found = obstore.list_with_delimiter(self._store, prefix=prefix)["common_prefixes"]
            return tuple(sorted(str(path).rstrip("/").rpartition("/")[2] for path in found))
        return ()

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; absent ones are no error."""
        for key in keys:
            with self._errors(key), _unless_absent():
                obstore.delete(self._store, key)


def has_credentials(options: Mapping[str, str]) -> bool:
    """Whether these options say by which rights the store is opened; without, credentials come from elsewhere."""
    return any(CLOUDS.sub("", name.lower()) in SECRET_OPTIONS for name in options)


def open_store(url: str, options: Mapping[str, str] | None = None, rights: Rights | None = None) -> ObstoreStore:
    """The store at `url`: file:///path, memory:///, s3://bucket/prefix, gs://…, az://…

    `options` are obstore's own (for S3 also `endpoint`, `access_key_id`, `allow_http` …). With `rights`,
    which S3 and Cloud Storage take, they hold no credentials.
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
    """Check a key: it may contain names that others wrote (a checkpoint in a head entry, an output). Raises StoreError."""
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise StoreError(f"{key!r} is no key: it has an empty part, or one that leads elsewhere")


def _error(e: Exception, key: str) -> StoreError:
    text = f"{key}: {e}".partition("\n\nDebug source")[0]  # obstore appends its own structure
    if UNASKED.search(text):
        return StoreUnreachable(text)
    denied = isinstance(e, PermissionDeniedError | UnauthenticatedError | PermissionError)
    if SKEWED.search(text):
        return StoreDenied(f"{key}: the store refuses our requests because this machine's clock is wrong; set it ({text})")
    if denied or REFUSED.search(text):  # a refused listing raises no error class of its own in obstore
        return StoreDenied(text)
    if "No space left" in text or "Disk quota" in text or "QuotaExceeded" in text:
        return StoreFull(text)
    return StoreUnreachable(text) if isinstance(e, GenericError) and PASSING.search(text) else StoreError(text)
