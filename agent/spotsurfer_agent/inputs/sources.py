"""Where inputs come from, through obstore: what is there, and its bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotSupportedError
from obstore.store import from_url

from spotsurfer_agent.buffers import Buffer
from spotsurfer_agent.inputs import naming, trouble
from spotsurfer_agent.inputs.ownstore import OwnStore
from spotsurfer_agent.inputs.trouble import InputTrouble, Kind
from spotsurfer_agent.inputs.wire import Fetch
from spotsurfer_agent.store import SECRET_OPTIONS
from spotsurfer_agent.storeport import Rights

FILES_MAX = 100_000
PIECE_BYTES = 1 << 20  # handed on at once
SILENCE = "20s"  # of a server in the middle of an answer
ANSWER = "24h"  # a large file over a slow link
CLIENT = ("allow_http", "proxy_url", "user_agent")  # options that belong to the connection


@dataclass(frozen=True, slots=True)
class Seen:
    """One file as its server shows it now. `version` is "" where it gives nothing to tell versions apart by."""

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

    `rights`, where the machine has them, are used for S3 wherever the options name no others. Nothing is read out of `own`.
    """

    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rights: Rights | None = None
    own: OwnStore | None = None
    _open: dict[str, Any] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def look(self, fetch: Fetch) -> list[Seen]:
        """What is there of an input now, in order. Raises InputTrouble and Unreachable."""
        at = naming.address(fetch.source)
        self._refuse_own(fetch.source)
        try:
            return self._many(fetch, at) if at.is_many else [self._one(fetch, at)]
        except trouble.ERRORS as e:
            raise trouble.of_store(e, fetch.source) from e

    def read(self, seen: Seen, start: int, length: int) -> Iterator[Buffer]:
        """A part of it, piece by piece. Raises InputTrouble, also where it was rewritten meanwhile, and Unreachable."""
        self._refuse_own(seen.source)
        options: dict[str, Any] = {"range": (start, start + length)} if (start, length) != (0, seen.size) else {}
        if seen.id:
            options["version"] = seen.id
        elif seen.version and naming.address(seen.fetch.source).scheme in naming.BUCKETS:
            options["if_match"] = seen.version
        try:
            got = obstore.get(self._store(seen.fetch), seen.key, options=options or None)  # type: ignore[arg-type]
            if not options and got.meta["size"] != seen.size:
                raise InputTrouble(Kind.REWRITTEN, source=seen.source)
            for piece in got.stream(PIECE_BYTES):
                yield memoryview(piece)
        except trouble.ERRORS as e:
            raise trouble.of_store(e, seen.source) from e

    def has_ranges(self, seen: Seen) -> bool:
        """Whether a part of it can be asked for alone."""
        try:
            return len(bytes(obstore.get_range(self._store(seen.fetch), seen.key, start=0, length=1))) == 1
        except NotSupportedError:
            return False
        except trouble.ERRORS as e:
            raise trouble.of_store(e, seen.source) from e

    def _refuse_own(self, source: str) -> None:
        if self.own is not None and self.own.holds(source):
            raise InputTrouble(Kind.OWN_STORE, source=source)

    # ------------------------------------------------------------ one or many

    def _one(self, fetch: Fetch, at: naming.Address) -> Seen:
        meta = self._meta(fetch, at.key, "")
        asked, version, chosen = fetch.version.strip('"'), _version(meta), ""
        if asked and asked not in (version.strip('"'), str(meta.get("version") or "")):
            meta, chosen = self._older(fetch, at, version), asked
            version = asked
        return Seen(
            fetch,
            at.url(at.key),
            at.key,
            naming.arrives(fetch, at.key),
            int(meta["size"]),
            version,
            chosen,
        )

    def _older(self, fetch: Fetch, at: naming.Address, now: str) -> Mapping[str, Any]:
        """The version that the job file asks for, where the bucket keeps it."""
        try:
            return self._meta(fetch, at.key, fetch.version)
        except trouble.ERRORS as e:
            found = trouble.of_store(e, fetch.source)
            if isinstance(found, InputTrouble) and found.what is not Kind.DENIED:
                raise InputTrouble(Kind.VERSION, source=fetch.source, new=now or "unknown", old=fetch.version) from e
            raise found from e

    def _meta(self, fetch: Fetch, key: str, version: str) -> Mapping[str, Any]:
        """By GET, whose body is not read: an address that was signed for GET refuses HEAD."""
        if naming.address(fetch.source).scheme in naming.WEB:
            if version:
                raise InputTrouble(Kind.VERSION, source=fetch.source, new="another one", old=version)
            return obstore.get(self._store(fetch), key).meta
        options: Any = {"head": True, **({"version": version} if version else {})}
        return obstore.get(self._store(fetch), key, options=options).meta

    def _many(self, fetch: Fetch, at: naming.Address) -> list[Seen]:
        found: list[Seen] = []
        for batch in obstore.list(self._store(fetch), prefix=at.prefix or None):
            for meta in batch:
                key = str(meta["path"])
                if naming.matches(at, key):
                    path = naming.arrives(fetch, key)
                    found.append(Seen(fetch, at.url(key), key, path, int(meta["size"]), _version(meta)))
            if len(found) > FILES_MAX:
                raise InputTrouble(Kind.MANY, source=fetch.source, limit=FILES_MAX)
        if not found:
            raise InputTrouble(Kind.EMPTY, source=fetch.source)
        return sorted(found, key=lambda s: s.path)

    # ------------------------------------------------------------ places

    def _store(self, fetch: Fetch) -> Any:
        place = naming.address(fetch.source).place
        known = place + repr(sorted(fetch.options.items()))
        with self._lock:
            if known not in self._open:
                self._open[known] = self._opened(place, fetch)
            return self._open[known]

    def _opened(self, place: str, fetch: Fetch) -> Any:
        given: dict[str, Any] = dict(self._options(fetch.source)) | fetch.options
        web = naming.address(place + "/").scheme in naming.WEB
        plain = place.startswith("http://")
        client: Any = {name: given.pop(name) for name in CLIENT if name in given}
        client["allow_http"] = plain or client.get("allow_http") == "true"
        client |= {"timeout": ANSWER, "connect_timeout": "5s", "read_timeout": SILENCE}
        retry: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
        config: Any = None if web else given or None
        ours = place.startswith(("s3://", "s3a://")) and not SECRET_OPTIONS & {k.removeprefix("aws_") for k in given}
        extra: Any = {"credential_provider": self.rights} if ours and self.rights is not None else {}
        try:
            return from_url(place, config=config, client_options=client, retry_config=retry, **extra)
        except (BaseError, ValueError) as e:
            raise InputTrouble(Kind.REFUSED, source=fetch.source, why=str(e).partition("\n")[0]) from e

    def _options(self, source: str) -> Mapping[str, str]:
        """Of all beginnings that fit; longer ones win."""
        found: dict[str, str] = {}
        for begin in sorted((p for p in self.options if source.startswith(p)), key=len):
            found |= self.options[begin]
        return found


def _version(meta: Mapping[str, Any]) -> str:
    """What changes with the content: the ETag; else, on the web, the time of its last change, where the server says one."""
    if meta.get("e_tag"):
        return str(meta["e_tag"])
    when = meta.get("last_modified")
    return when.isoformat() if when is not None and when.timestamp() > 0 else ""
