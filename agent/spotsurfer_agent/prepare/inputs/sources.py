"""Where inputs come from, through obstore, and what can go wrong with one."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

import obstore
from obstore.exceptions import (
    BaseError,
    GenericError,
    NotFoundError,
    NotModifiedError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url
from spotsurfer_wire import input_addresses
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.messages import Fetch
from spotsurfer_wire.store.obstore import has_credentials
from spotsurfer_wire.store.port import Rights, StoreUnreachable

from spotsurfer_agent.files.staging import FULL, FilesError


class Kind(StrEnum):
    """What is wrong."""

    ABSENT = "absent"
    DENIED = "denied"
    CHANGED = "changed"
    REWRITTEN = "rewritten"
    CHECKSUM = "checksum"
    VERSION = "version"
    SHORT = "short"
    EMPTY = "empty"
    TWICE = "twice"
    MANY = "many"
    FULL = "full"
    REFUSED = "refused"
    REGION = "region"
    DISK = "disk"
    OWN_STORE = "own store"


# The sentences for users; {source} and the other names are filled in.
SENTENCES: dict[Kind, str] = {
    Kind.ABSENT: "input {source} is not there: check the address, or put it there",
    Kind.DENIED: "input {source} is refused to this machine ({why}): let its role read it, or say how in [inputs] of the "
    "controller's configuration",
    Kind.CHANGED: "input {source} is not what the job started with: {what} was {old} then and is {new} now: "
    "put the old one back, or submit the job again",
    Kind.REWRITTEN: "input {source} was rewritten while it was fetched: write inputs first, then submit",
    Kind.CHECKSUM: "input {source} has sha256 {new}, the job file says {old}: correct one of the two",
    Kind.VERSION: "input {source} is at version {new}, the job file says {old}: correct one of the two",
    Kind.SHORT: "input {source} ended after {new} bytes, {old} were announced: its server cuts it off",
    Kind.EMPTY: "nothing matches the input {source}: check bucket, folder and wildcard",
    Kind.TWICE: "{source} and {other} would both arrive as {path}: give one of them another `to`",
    Kind.MANY: "input {source} means more than {limit} files: pack them into archives",
    Kind.FULL: "the machine's disk is full: the inputs take {wanted} bytes more, {free} are free: ask for a larger disk",
    Kind.REGION: 'input {source} lies in another region: say which in the job file, like region = "eu-west-1"',
    Kind.REFUSED: "input {source} can't be fetched: {why}",
    Kind.OWN_STORE: "input {source} lies in the store of spotsurfer, where each job reads what is its own alone: "
    "copy it to another folder or bucket (`spotsurfer outputs` fetches results)",
    Kind.DISK: "the inputs can't be kept on this machine's disk: {why}",
}
MACHINE = frozenset({Kind.FULL, Kind.DISK})  # another machine may do; all other kinds would be the same there
ERRORS = (BaseError, FileNotFoundError, PermissionError)  # obstore's; some of them are Python's own
SHOWN = 300  # characters of somebody else's error
_STATUS = re.compile(r"status(?: code:)? (\d{3})\b")  # addresses and times in the text have numbers, too


class InputTrouble(FilesError):
    """An input can't be delivered, and a retry would not help. One sentence for the user."""

    def __init__(self, what: Kind, /, **parts: object) -> None:
        super().__init__("refused" if what in MACHINE else "input", SENTENCES[what].format(**parts))
        self.what = what


class Unreachable(StoreUnreachable):
    """The input's server gave no whole answer: a retry may help."""


def trouble_of_store(e: Exception, source: str) -> InputTrouble | Unreachable:
    """What obstore's error means."""
    text = str(e).partition("\n\nDebug source")[0]
    if isinstance(e, NotFoundError | FileNotFoundError) or _status(text) == "404":
        return InputTrouble(Kind.ABSENT, source=source)
    if isinstance(e, PermissionDeniedError | UnauthenticatedError | PermissionError) or "403 Forbidden" in text:
        return InputTrouble(Kind.DENIED, source=source, why=_status(text) or "no right to read it")
    if isinstance(e, PreconditionError | NotModifiedError):
        return InputTrouble(Kind.REWRITTEN, source=source)
    if "configured region" in text or "PermanentRedirect" in text or "AuthorizationHeaderMalformed" in text:
        return InputTrouble(Kind.REGION, source=source)
    if isinstance(e, GenericError) and not _lasting(text):
        return Unreachable(f"input {source} can't be reached: {_short(text)}")
    return InputTrouble(Kind.REFUSED, source=source, why=_short(text))


def _status(text: str) -> str:
    found = _STATUS.search(text)
    return found.group(1) if found else ""


def _lasting(text: str) -> bool:
    """Whether an HTTP status is final, so that a retry would not help."""
    return _status(text)[:1] == "4" and _status(text) not in ("408", "429")


def _short(text: str) -> str:
    """The error without the page that the server sent along."""
    return " ".join(text.partition("<")[0].split())[:SHOWN].rstrip(" :")


def trouble_of_disk(e: OSError, wanted: int, free: int) -> InputTrouble:
    """What the disk's refusal means."""
    if e.errno in FULL or e.errno == errno.EFBIG:
        return InputTrouble(Kind.FULL, wanted=wanted, free=free)
    return InputTrouble(Kind.DISK, why=e.strerror or str(e))


FILES_MAX = 100_000
PIECE_BYTES = 1 << 20  # handed on at once
SILENCE = "20s"  # of a server in the middle of an answer
ANSWER = "24h"  # a large file over a slow link
CLIENT = ("allow_http", "proxy_url", "user_agent")  # options that belong to the connection


@dataclass(frozen=True, slots=True)
class Seen:
    """One file as its server shows it now. `version` is "" if the server distinguishes no versions."""

    fetch: Fetch
    source: str
    key: str
    path: str  # where it arrives
    size: int
    version: str
    id: str = ""  # of the version that is asked for


@dataclass
class Sources:
    """Opened places. `options`: by the beginning of an address, how it is reached (obstore's names); longer ones win.

    `rights`, if the machine has them, are used for buckets of the cloud of the store `own` unless the options name others.
    Nothing is read from that store.
    """

    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rights: Rights | None = None
    own: OwnStore | None = None
    _open: dict[str, Any] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def look(self, fetch: Fetch) -> list[Seen]:
        """The files of an input as they are now, in order. Raises InputTrouble and Unreachable."""
        at = input_addresses.address(fetch.source)
        self._refuse_own(fetch.source)
        try:
            return self._many(fetch, at) if at.is_many else [self._one(fetch, at)]
        except ERRORS as e:
            raise trouble_of_store(e, fetch.source) from e

    def read(self, seen: Seen, start: int, length: int) -> Iterator[Buffer]:
        """A part of a file, piece by piece. Raises InputTrouble, also if the file was rewritten meanwhile, and Unreachable."""
        self._refuse_own(seen.source)
        options: dict[str, Any] = {"range": (start, start + length)} if (start, length) != (0, seen.size) else {}
        if seen.id:
            options["version"] = seen.id
        elif seen.version and input_addresses.address(seen.fetch.source).scheme in input_addresses.BUCKETS:
            options["if_match"] = seen.version
        try:
            got = obstore.get(self._store(seen.fetch), seen.key, options=options or None)  # type: ignore[arg-type]
            if not options and got.meta["size"] != seen.size:
                raise InputTrouble(Kind.REWRITTEN, source=seen.source)
            for piece in got.stream(PIECE_BYTES):
                yield memoryview(piece)
        except ERRORS as e:
            raise trouble_of_store(e, seen.source) from e

    def has_ranges(self, seen: Seen) -> bool:
        """Whether the server can send a part of a file."""
        try:
            return len(bytes(obstore.get_range(self._store(seen.fetch), seen.key, start=0, length=1))) == 1
        except NotSupportedError:
            return False
        except ERRORS as e:
            raise trouble_of_store(e, seen.source) from e

    def _refuse_own(self, source: str) -> None:
        if self.own is not None and self.own.holds(source):
            raise InputTrouble(Kind.OWN_STORE, source=source)

    def _one(self, fetch: Fetch, at: input_addresses.Address) -> Seen:
        meta = self._meta(fetch, at.key, "")
        asked, version, chosen = fetch.version.strip('"'), _version(meta), ""
        if asked and asked not in (version.strip('"'), str(meta.get("version") or "")):
            meta, chosen = self._older(fetch, at, version), asked
            version = asked
        return Seen(
            fetch,
            at.url(at.key),
            at.key,
            input_addresses.arrives(fetch, at.key),
            int(meta["size"]),
            version,
            chosen,
        )

    def _older(self, fetch: Fetch, at: input_addresses.Address, now: str) -> Mapping[str, Any]:
        """The version that the job file asks for, if the bucket keeps it."""
        try:
            return self._meta(fetch, at.key, fetch.version)
        except ERRORS as e:
            found = trouble_of_store(e, fetch.source)
            if isinstance(found, InputTrouble) and found.what is not Kind.DENIED:
                raise InputTrouble(Kind.VERSION, source=fetch.source, new=now or "unknown", old=fetch.version) from e
            raise found from e

    def _meta(self, fetch: Fetch, key: str, version: str) -> Mapping[str, Any]:
        """Metadata by GET without reading the body: an address that was signed for GET refuses HEAD."""
        if input_addresses.address(fetch.source).scheme in input_addresses.WEB:
            if version:
                raise InputTrouble(Kind.VERSION, source=fetch.source, new="another one", old=version)
            return obstore.get(self._store(fetch), key).meta
        options: Any = {"head": True, **({"version": version} if version else {})}
        return obstore.get(self._store(fetch), key, options=options).meta

    def _many(self, fetch: Fetch, at: input_addresses.Address) -> list[Seen]:
        found: list[Seen] = []
        for batch in obstore.list(self._store(fetch), prefix=at.prefix or None):
            for meta in batch:
                key = str(meta["path"])
                if input_addresses.matches(at, key):
                    path = input_addresses.arrives(fetch, key)
                    found.append(Seen(fetch, at.url(key), key, path, int(meta["size"]), _version(meta)))
            if len(found) > FILES_MAX:
                raise InputTrouble(Kind.MANY, source=fetch.source, limit=FILES_MAX)
        if not found:
            raise InputTrouble(Kind.EMPTY, source=fetch.source)
        return sorted(found, key=lambda s: s.path)

    def _store(self, fetch: Fetch) -> Any:
        place = input_addresses.address(fetch.source).place
        known = place + repr(sorted(fetch.options.items()))
        with self._lock:
            if known not in self._open:
                self._open[known] = self._opened(place, fetch)
            return self._open[known]

    def _opened(self, place: str, fetch: Fetch) -> Any:
        given: dict[str, Any] = dict(self._options(fetch.source)) | fetch.options
        web = input_addresses.address(place + "/").scheme in input_addresses.WEB
        plain = place.startswith("http://")
        client: Any = {name: given.pop(name) for name in CLIENT if name in given}
        client["allow_http"] = plain or client.get("allow_http") == "true"
        client |= {"timeout": ANSWER, "connect_timeout": "5s", "read_timeout": SILENCE}
        retry: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
        config: Any = None if web else given or None
        ours = self.own is not None and _cloud(place) == _cloud(self.own.url) and not has_credentials(given)
        extra: Any = {"credential_provider": self.rights} if ours and self.rights is not None else {}
        try:
            return from_url(place, config=config, client_options=client, retry_config=retry, **extra)
        except (BaseError, ValueError) as e:
            raise InputTrouble(Kind.REFUSED, source=fetch.source, why=str(e).partition("\n")[0]) from e

    def _options(self, source: str) -> Mapping[str, str]:
        """The options of all prefixes that match; longer ones win."""
        found: dict[str, str] = {}
        for begin in sorted((p for p in self.options if source.startswith(p)), key=len):
            found |= self.options[begin]
        return found


def _cloud(url: str) -> str:
    """By the beginning of an address; s3a:// is another name of s3://."""
    return url.partition(":")[0].removesuffix("a")


def _version(meta: Mapping[str, Any]) -> str:
    """A value that changes with the content: the ETag; else, on the web, the time of the last change, if there is one."""
    if meta.get("e_tag"):
        return str(meta["e_tag"])
    when = meta.get("last_modified")
    return when.isoformat() if when is not None and when.timestamp() > 0 else ""
