"""A container image as a job names it, and the pin that says what the name meant at the first attempt."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spotsurfer_wire import clock, object_keys
from spotsurfer_wire.json_codec import decode, encode
from spotsurfer_wire.store.port import ObjectStore, StoreError

# ---- The name of an image: `docker://host/name:tag` or `docker://host/name@sha256:…`

SCHEME = "docker://"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
FORM = re.compile(
    rf"docker://(?P<name>(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
HOSTLESS = "that names without a host mean"


@dataclass(frozen=True, slots=True)
class Reference:
    """An image as its user names it."""

    name: str  # host and path, without tag and digest
    tag: str = ""
    digest: str = ""

    @staticmethod
    def parse(text: str) -> Reference:
        """The parts of a name. Raises ValueError with the second half of a sentence."""
        found = FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"is {text!r}, expected docker://host/name:tag or docker://host/name@sha256:…, in small letters")
        return Reference(found["name"], found["tag"] or "", found["digest"] or "")

    @property
    def host(self) -> str:
        """The registry's host from the name."""
        first, slash, _ = self.name.partition("/")
        return first if slash and ("." in first or ":" in first or first == "localhost") else HOSTLESS

    @property
    def asked(self) -> str:
        """What to ask the registry for: the digest if one is given, else the tag."""
        return self.at(self.digest) if self.digest else f"{SCHEME}{self.name}:{self.tag or 'latest'}"

    def at(self, digest: str) -> str:
        """The image of this name with a certain digest."""
        return f"{SCHEME}{self.name}@{digest}"


# ---- The pin: what the name meant when the first attempt asked, written once, so that a tag that moves changes no job


@dataclass(frozen=True, slots=True)
class Pin:
    """`jobs/<job>/IMAGE.json`."""

    reference: str  # as the job names it
    digest: str  # of the manifest for `architecture`
    architecture: str
    packed_bytes: int = 0
    at: str = ""  # for people


class Pins:
    """The pin of one job; read from the store once."""

    def __init__(self, store: ObjectStore, job: str) -> None:
        self._store, self._key = store, object_keys.image_key(job)
        self._known: Pin | None = None

    def read(self) -> Pin | None:
        """The pin, None if no attempt has resolved the name yet. Raises StoreError, ProtocolError."""
        if self._known is None:
            data = self._store.get(self._key)
            self._known = decode(Pin, data) if data is not None else None
        return self._known

    def write(self, reference: str, digest: str, architecture: str, packed_bytes: int) -> Pin:
        """Write the pin, unless another attempt was faster: then its pin counts. Raises StoreError."""
        wanted = Pin(reference, digest, architecture, packed_bytes, clock.utc_text())
        if self._store.create(self._key, encode(wanted)):
            self._known = wanted
            return wanted
        found = self.read()
        if found is None:
            raise StoreError(f"{self._key} can't be written and is not there")
        return found
