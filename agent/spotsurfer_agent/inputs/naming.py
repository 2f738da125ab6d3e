"""From an address with wildcards to the files that it means, and where each arrives. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from urllib.parse import unquote, urlsplit

from spotsurfer_agent.inputs.wire import Fetch

BUCKETS = ("s3", "gs")
WEB = ("https", "http")
SCHEMES = (*BUCKETS, *WEB)
MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an input lies. `place` is what is opened, `key` what is asked for there: a key or, with wildcards, a pattern."""

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
    """Characters and ranges of a set; all else that means something in a regular expression stands for itself."""
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
    except re.error:  # a set like [b-a]: it matches nothing, and that is said
        return re.compile(r"(?!)")
