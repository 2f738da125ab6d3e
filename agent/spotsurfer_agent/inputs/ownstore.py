"""Whether an input lies in spotsurfer's own store, where other jobs keep what is theirs. Pure.

It goes by addresses, so it is the first of two walls: it says early and clearly what is not to be had. The second are the
credentials of the machine, which open nothing of other jobs, whatever an address looks like.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from spotsurfer_agent import objectkeys
from spotsurfer_agent.inputs import naming

SERVICES = (
    "amazonaws.com",
    "amazonaws.com.cn",
    "googleapis.com",
    "storage.cloud.google.com",
)  # where buckets are read as pages
# What is kept there: folders, which end with a slash, and single objects.
KEPT = (
    objectkeys.jobs_prefix(),
    objectkeys.live_prefix(),
    objectkeys.handouts_prefix(),
    objectkeys.runtime_prefix(),
    objectkeys.controller_prefix(),
    objectkeys.pulse_key(),
    objectkeys.store_key(),
)
_ENDPOINTS = (
    "endpoint",
    "endpoint_url",
    "endpoint_url_s3",
    "google_base_url",
    "base_url",
)  # what obstore calls it, but for aws_
_UNQUOTED_MAX = 5  # how often an address may have been coded: nobody does it more than twice by mistake


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
        """Whether an input of this address could be something that the store keeps. Raises ValueError for no address."""
        store = urlsplit(self.url)
        if store.scheme not in ("s3", "s3a", "gs"):
            return False  # a folder of the controller's host: no address leads there
        at = naming.address(source)
        home = f"{store.path.strip('/')}/".lstrip("/")
        kept = [home + name for name in KEPT]
        found = _in_bucket(at, store.netloc) if at.scheme in naming.BUCKETS else self._on_the_web(at, store.netloc)
        return any(_meets(text, at.is_many, name) for key in found for text in _spellings(key) for name in kept)

    def _on_the_web(self, at: naming.Address, bucket: str) -> Iterator[str]:
        """What a bucket's object is called where an address of the web leads to it: the bucket is a host's name or a folder."""
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


def _in_bucket(at: naming.Address, bucket: str) -> Iterator[str]:
    """Whatever service it is said to be at: another endpoint may be another name of the same one."""
    if urlsplit(at.place).netloc == bucket:
        yield naming.MAGIC.split(at.key, maxsplit=1)[0]


def _spellings(key: str) -> Iterator[str]:
    """As it is, and as it is once more for whoever takes %2F for a slash; without empty parts and ways up."""
    for _ in range(_UNQUOTED_MAX):
        yield _plain(key)
        if (again := unquote(key)) == key:
            return
        key = again


def _plain(key: str) -> str:
    """The slash at its end says that a folder is meant."""
    ended = "/" if key.endswith(("/", "/.", "/..")) else ""
    return (posixpath.normpath(f"/{key}").strip("/") + ended).lstrip("/")


def _meets(text: str, is_many: bool, kept: str) -> bool:
    """Whether one object of this key, or any whose key begins like it, is something kept."""
    inside = text.startswith(kept) if kept.endswith("/") else text == kept
    return inside or (is_many and kept.startswith(text))
