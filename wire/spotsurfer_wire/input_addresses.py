"""Addresses of inputs: which files an address with wildcards means, and whether it lies in spotsurfer's own store. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import unquote, urlsplit

from spotsurfer_wire import object_keys
from spotsurfer_wire.messages import Fetch

# ---- From an address with wildcards to the files that it means, and where each arrives

BUCKETS = ("s3", "gs")
WEB = ("https", "http")
SCHEMES = (*BUCKETS, *WEB)
MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an input. `place` is what is opened, `key` is the key there or, with wildcards, a pattern."""

    scheme: str
    place: str
    key: str

    @property
    def is_many(self) -> bool:
        """A folder or a wildcard: it is listed."""
        return self.scheme in BUCKETS and (self.key == "" or self.key.endswith("/") or MAGIC.search(self.key) is not None)

    @property
    def prefix(self) -> str:
        """The folder that a listing begins at, with its slash; "" for all of the bucket."""
        head = MAGIC.split(self.key, maxsplit=1)[0]
        return head.rpartition("/")[0] + "/" if "/" in head else ""

    def url(self, key: str) -> str:
        """The address of one object of it, for people and as its name."""
        return f"{self.place}/{key}" if self.scheme in BUCKETS else self.place


def address(source: str) -> Address:
    """The parts of an address. Raises ValueError with the second half of a sentence."""
    scheme, mark, rest = source.partition("://")
    if not mark or scheme not in SCHEMES:
        raise ValueError(f"has an unknown beginning, expected one of {', '.join(s + '://' for s in SCHEMES)}")
    host, slash, key = rest.partition("/")
    if not host or not slash or "\0" in rest:
        raise ValueError(f"is no address: write {scheme}://{'bucket/key' if scheme in BUCKETS else 'host/path'}")
    if "@" in host:
        raise ValueError("holds a user name or password, which everybody who sees the job could read: take it out")
    return Address(scheme, f"{scheme}://{host}", key) if scheme in BUCKETS else Address(scheme, source, "")


def arrives(fetch: Fetch, key: str) -> str:
    """Where one of its files arrives, relative to the job's folder; `key` is the object's (ignored for a web address)."""
    at = address(fetch.source)
    if at.is_many:
        folder = fetch.to.strip("/") if fetch.to else _own_folder(at)
        return "/".join(x for x in (folder, key[len(at.prefix) :]) if x)
    name = key.rpartition("/")[2] if at.scheme in BUCKETS else unquote(urlsplit(at.place).path.rpartition("/")[2])
    if fetch.to.endswith("/") or not fetch.to:
        return fetch.to + name
    return fetch.to


def _own_folder(at: Address) -> str:
    """A folder arrives under its own name, what a wildcard matches without one."""
    return at.prefix.rstrip("/").rpartition("/")[2] if not MAGIC.search(at.key) else ""


def matches(at: Address, key: str) -> bool:
    """Whether an object belongs to a folder or wildcard; the marks that consoles make for empty folders do not."""
    if key.endswith("/") or not key:
        return False
    return _pattern(at.key).fullmatch(key) is not None


def _members(inside: str) -> str:
    """Characters and ranges of a set; every other special character of regular expressions stands for itself."""
    ranges = (x.partition("-") if len(x) == 3 else (x, "", "") for x in re.findall(r"[^-]-.|.", inside, re.DOTALL))
    return "".join(re.escape(first) + mark + re.escape(last) for first, mark, last in ranges)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """`*` and `?` stay within a folder, `**` does not; [abc] and [!abc] are sets. A folder means everything below it."""
    if not MAGIC.search(text):
        return re.compile(re.escape(text) + ".*", re.DOTALL)
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    out = ""
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]|.", text, re.DOTALL):
        if piece in tokens:
            out += tokens[piece]
        elif len(piece) > 2 and piece[0] == "[":
            negated = piece[1] == "!"
            out += "[" + ("^" if negated else "") + _members(piece[2 if negated else 1 : -1]) + "]"
        else:
            out += re.escape(piece)
    try:
        return re.compile(out + (".*" if text.endswith("/") else ""), re.DOTALL)
    except re.error:  # a set like [b-a]: it matches nothing, which is reported
        return re.compile(r"(?!)")


# ---- Whether an input lies in spotsurfer's own store, which holds data of other jobs
#
# This check goes by addresses and is the first of two walls: it refuses early and with a clear message. The second wall is the
# machine's credentials, which open nothing of other jobs, whatever an address looks like.

SERVICES = (
    "amazonaws.com",
    "amazonaws.com.cn",
    "googleapis.com",
    "storage.cloud.google.com",
)  # where buckets are read as pages
# What the store holds: folders, which end with a slash, and single objects.
KEPT = (
    object_keys.jobs_prefix(),
    object_keys.live_prefix(),
    object_keys.handouts_prefix(),
    object_keys.runtime_prefix(),
    object_keys.controller_prefix(),
    object_keys.pulse_key(),
    object_keys.store_key(),
)
_ENDPOINTS = (
    "endpoint",
    "endpoint_url",
    "endpoint_url_s3",
    "google_base_url",
    "base_url",
)  # what obstore calls it, but for aws_
_UNQUOTED_MAX = 5  # how often an address may be percent-encoded: nobody does it more than twice by mistake


@dataclass(frozen=True, slots=True)
class OwnStore:
    """The store at `url`, as the controller or a machine sees it; `endpoint` as in its options, "" for the cloud's own."""

    url: str
    endpoint: str = ""

    @classmethod
    def of(cls, url: str, options: Mapping[str, str]) -> OwnStore:
        """`options`: of the store, in obstore's names."""
        given = (value for name, value in options.items() if name.lower().removeprefix("aws_") in _ENDPOINTS)
        return cls(url, next((value for value in given if value), ""))

    def holds(self, source: str) -> bool:
        """Whether an input of this address could be an object of the store. Raises ValueError if the text is no address."""
        store = urlsplit(self.url)
        if store.scheme not in ("s3", "s3a", "gs"):
            return False  # a folder of the controller's host: no address leads there
        at = address(source)
        home = f"{store.path.strip('/')}/".lstrip("/")
        kept = [home + name for name in KEPT]
        found = _in_bucket(at, store.netloc) if at.scheme in BUCKETS else self._on_the_web(at, store.netloc)
        return any(_meets(text, at.is_many, name) for key in found for text in _spellings(key) for name in kept)

    def _on_the_web(self, at: Address, bucket: str) -> Iterator[str]:
        """The key of a bucket's object that a web address leads to: the bucket is part of the host's name or a folder."""
        web = urlsplit(at.place)
        host, bucket = (web.hostname or "").rstrip("."), bucket.lower()
        first, _, rest = unquote(web.path).lstrip("/").partition("/")
        if self._is_service(host) and first.lower() == bucket:
            yield rest
        if host.startswith(f"{bucket}.") and self._is_service(host.removeprefix(f"{bucket}.")):
            yield web.path

    def _is_service(self, host: str) -> bool:
        own = urlsplit(self.endpoint).hostname or ""
        return host == own or any(host == name or host.endswith(f".{name}") for name in SERVICES)


def _in_bucket(at: Address, bucket: str) -> Iterator[str]:
    """Whatever service the address names: another endpoint may be another name of the same service."""
    if urlsplit(at.place).netloc == bucket:
        yield MAGIC.split(at.key, maxsplit=1)[0]


def _spellings(key: str) -> Iterator[str]:
    """The key as it is, and decoded for servers that take %2F for a slash; without empty parts and `..`."""
    for _ in range(_UNQUOTED_MAX):
        yield _plain(key)
        if (again := unquote(key)) == key:
            return
        key = again


def _plain(key: str) -> str:
    """A slash at the end means a folder."""
    ended = "/" if key.endswith(("/", "/.", "/..")) else ""
    return (posixpath.normpath(f"/{key}").strip("/") + ended).lstrip("/")


def _meets(text: str, is_many: bool, kept: str) -> bool:
    """Whether an object with this key, or with a key that begins like it, belongs to the store."""
    inside = text.startswith(kept) if kept.endswith("/") else text == kept
    return inside or (is_many and kept.startswith(text))
