"""The name of an image: `docker://host/name:tag` or `docker://host/name@sha256:…`."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
        """The registry, as far as the name tells."""
        first, slash, _ = self.name.partition("/")
        return first if slash and ("." in first or ":" in first or first == "localhost") else HOSTLESS

    @property
    def asked(self) -> str:
        """What to ask the registry for: where a digest is given the tag says nothing."""
        return self.at(self.digest) if self.digest else f"{SCHEME}{self.name}:{self.tag or 'latest'}"

    def at(self, digest: str) -> str:
        """The image of this name with a certain digest."""
        return f"{SCHEME}{self.name}@{digest}"
