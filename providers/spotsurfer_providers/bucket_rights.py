"""What the credentials of one attempt have to cover in buckets, for clouds whose documents of rights have little room. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from urllib.parse import urlsplit

from spotsurfer_wire.input_addresses import KEPT, OwnStore

from spotsurfer.model.errors import ConfigError
from spotsurfer.ports.provider import BootBucket

_WILD = ("*", "?", "[")

Read = tuple[str, str]  # a bucket, and a key or a pattern of keys in it that ends with *


def bucket_and_prefix(url: str, schemes: Sequence[str]) -> tuple[str, str]:
    """Of scheme://bucket/prefix; the prefix ends with a slash or is empty. Raises ConfigError for another kind of store."""
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.netloc:
        raise ConfigError(f"store.url is {url!r}: machines of this provider need a store like {schemes[0]}://bucket/prefix")
    path = parts.path.strip("/")
    return parts.netloc, f"{path}/" if path else ""


def boot_bucket(
    store_url: str, boot_url: str | None, schemes: Sequence[str], options: tuple[Mapping[str, str], Mapping[str, str]]
) -> BootBucket | None:
    """Where machines of a cloud begin; None = in the store, which is of that cloud. `schemes`: of its own stores.

    `options`: the controller's and the machines'. Raises ConfigError if the store lies elsewhere and no bucket is named.
    """
    if urlsplit(store_url).scheme in schemes:
        bucket_and_prefix(store_url, schemes)
        return None
    if boot_url is None:
        raise ConfigError(
            f"store.url is {store_url!r}, which machines of this provider can't read with their own rights: set boot_url to a "
            f"bucket of their own cloud, like {schemes[0]}://bucket/prefix, or use a store there"
        )
    bucket_and_prefix(boot_url, schemes)
    return BootBucket(boot_url, *options)


def reads(inputs: Iterable[str], scheme: str, store: OwnStore) -> list[Read]:
    """What these addresses of inputs mean, those of the scheme; none of them opens anything of the store."""
    return [_input(x) for x in inputs if x.startswith(f"{scheme}://") and not store.holds(x)]


def _input(address: str) -> Read:
    """Bucket and pattern of an input: a folder or a wildcard covers everything with the same beginning."""
    parts = urlsplit(address, allow_fragments=False)
    key = (parts.path + (f"?{parts.query}" if parts.query else "")).lstrip("/")
    begin = min((key.index(mark) for mark in _WILD if mark in key), default=len(key))
    whole = begin == len(key) and key != "" and not key.endswith("/")
    return parts.netloc, key if whole else f"{key[:begin]}*"


def summed_up(read: Sequence[Read], own: str, prefix: str) -> list[Read]:
    """By bucket; in the store's bucket (`own`, `prefix`) also by where they diverge from the store's keys."""
    groups: dict[tuple[str, str], list[str]] = {}
    for bucket, pattern in read:
        key = pattern.removesuffix("*")
        common = [len(_beginning([key, prefix + name])) for name in KEPT] if bucket == own else [-1]
        if max(common) == len(key):  # one file whose name is the beginning of a folder of the store
            groups[bucket, pattern] = [pattern]
        else:
            groups.setdefault((bucket, key[: 1 + max(common)]), []).append(f"{key}*")
    return [(bucket, keys[0] if len(keys) == 1 else f"{_beginning(keys)}*") for (bucket, _), keys in sorted(groups.items())]


def _beginning(texts: Sequence[str]) -> str:
    """The common beginning of all."""
    return "".join(column[0] for column in takewhile(lambda c: len(set(c)) == 1, zip(*texts, strict=False)))
