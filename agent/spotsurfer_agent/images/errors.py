"""What can go wrong with a container image: a table from the tools' own words to one sentence with the remedy.

The tools are skopeo and umoci; what no row knows is told in their words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Whose fault it is, and so what is done next."""

    WRONG = "image"  # the job's or the registry's content: another machine would fare no better
    LATER = "store"  # no answer, or a busy one: the same again later
    MACHINE = "refused"  # this machine can't hold it: another type may


class ImageError(Exception):
    """One sentence for the user."""

    def __init__(self, kind: Kind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of failure: what the tools say of it, whose it is, our sentence; {image}, {host} and {said} are filled in."""

    name: str
    said: str
    kind: Kind
    sentence: str


# In this order: the first row whose pattern is found counts. A full disk also shows as a broken layer, so it stands first.
ROWS = (
    Row(
        "full disk",
        r"no space left on device|disk quota exceeded",
        Kind.MACHINE,
        "the machine's disk is full: the image {image} does not fit: ask for a larger disk or a smaller image",
    ),
    Row(
        "throttled",
        r"toomanyrequests|too many requests|status: 429",
        Kind.LATER,
        "the registry {host} answers too many requests with a pause: it is asked again; registry_auth may allow more",
    ),
    Row(
        "plain registry",
        r"server gave HTTP response to HTTPS client",
        Kind.WRONG,
        "the registry {host} speaks no TLS: name it in insecure_registries of [images] if that is meant to be",
    ),
    Row(
        "another name",
        r"x509: (certificate is valid for|certificate is not valid for any|cannot validate certificate for)",
        Kind.WRONG,
        "the certificate of the registry {host} is not for that name ({said}): use the name that it is made for",
    ),
    Row(
        "expired",
        r"x509: certificate has expired or is not yet valid",
        Kind.WRONG,
        "the certificate of the registry {host} is out of date ({said}): renew it, or set the clock that is wrong",
    ),
    Row(
        "untrusted",
        r"x509:|certificate signed by unknown authority|tls: failed to verify",
        Kind.WRONG,
        "the certificate of the registry {host} is not trusted: name its authority in authorities of [images] ({said})",
    ),
    Row(
        "denied",
        r"unauthorized|authentication required|access to the resource is denied|requested access|invalid username/password"
        r"|status (code )?40[13]|40[13] \(",
        Kind.WRONG,
        'the registry {host} does not give {image} to us: check its name, or set registry_auth = "file:auth.json"',
    ),
    Row(
        "wrong architecture",
        r"no image found in (manifest list|image index) for architecture",
        Kind.WRONG,
        "the image {image} is not made for this machine's architecture: build it for that too, or ask for another machine type",
    ),
    Row(
        "damaged layer",
        r"[Dd]igest did not match|does not match (the )?(expected )?digest|invalid checksum|blob unknown|unexpected EOF"
        r"|layer .* not valid|invalid tar header|gzip: invalid|flate: corrupt|[Dd]iff[_ ]?ID .*(invalid|mismatch)"
        r"|mismatch|corrupt|content-length|size mismatch|verif(y|ied reader)",
        Kind.WRONG,
        "the image {image} is damaged in the registry {host} ({said}): push it again",
    ),
    Row(
        "unknown image",
        r"manifest unknown|name unknown|repository name not known|reading manifest .*: (manifest|name) |not found|status 404"
        r"|404 \(",
        Kind.WRONG,
        "the registry {host} has no image {image}: check the name, the tag and the digest",
    ),
    Row(
        "registry down",
        r"connection refused|no such host|i/o timeout|network is unreachable|no route to host|connection reset"
        r"|deadline exceeded|TLS handshake|server misbehaving|broken pipe|: EOF|50[0234] |service unavailable|bad gateway",
        Kind.LATER,
        "the registry {host} can't be reached ({said}): see that it runs and that the machine's network lets it through",
    ),
)
CERTIFICATE = "x509: "  # of what is wrong with a certificate: all before it is said by our sentence
OTHER = Row("other", "", Kind.WRONG, "the image {image} can't be used: {said}")


def row(said: str) -> Row:
    """The row of the table for what a tool said."""
    return next((r for r in ROWS if re.search(r.said, said)), OTHER)


def failure(said: str, image: str, host: str) -> ImageError:
    """The error for what a tool said while it worked on `image` of the registry `host`."""
    found = row(said)
    return ImageError(found.kind, found.sentence.format(image=image, host=host, said=gist(said)))


def gist(said: str) -> str:
    """The last part of a tool's words, which is the cause: they wrap it again and again."""
    lines = [x for x in said.strip().splitlines() if x.strip()] or ["no reason given"]
    found = re.search(r'msg="(.*?)"\s*$', lines[-1])
    text = found.group(1) if found else lines[-1]
    text = text.replace('\\"', '"').strip()
    text = text[text.index(CERTIFICATE) + len(CERTIFICATE) :] if CERTIFICATE in text else text
    return text if len(text) <= 200 else "…" + text[-199:]
