"""Asks a registry for container images through skopeo, and explains what can go wrong with one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from spotsurfer_wire.container_image import Reference
from spotsurfer_wire.linux import syscalls

from spotsurfer_agent.host import tools
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.store.layers import Retry

log = logging.getLogger(__name__)

# ---- What can go wrong with an image: a table from the tools' own words to one sentence with the remedy
#
# The tools are skopeo and umoci. If no row matches, their own words are shown.


class Kind(StrEnum):
    """Who caused the failure, which decides what happens next."""

    WRONG = "image"  # the job's or the registry's content: another machine would fare no better
    LATER = "store"  # no answer, or a busy registry: try again later
    MACHINE = "refused"  # this machine can't hold the image: another type may


class ImageError(EngineError):
    """A job can't have its image here. `kind` is a `Kind`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of failure: the tools' words, who caused it, our sentence; {image}, {host} and {said} are filled in."""

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
CERTIFICATE = "x509: "  # begins a certificate error: our sentence replaces the text before it
OTHER = Row("other", "", Kind.WRONG, "the image {image} can't be used: {said}")


def row(said: str) -> Row:
    """The row of the table for a tool's message."""
    return next((r for r in ROWS if re.search(r.said, said)), OTHER)


def failure(said: str, image: str, host: str) -> ImageError:
    """The error for a tool's message about `image` of the registry `host`."""
    found = row(said)
    return ImageError(found.kind, found.sentence.format(image=image, host=host, said=gist(said)))


def gist(said: str) -> str:
    """The last part of a tool's message, which is the cause: the tools wrap it again and again."""
    lines = [x for x in said.strip().splitlines() if x.strip()] or ["no reason given"]
    found = re.search(r'msg="(.*?)"\s*$', lines[-1])
    text = found.group(1) if found else lines[-1]
    text = text.replace('\\"', '"').strip()
    text = text[text.index(CERTIFICATE) + len(CERTIFICATE) :] if CERTIFICATE in text else text
    return text if len(text) <= 200 else "…" + text[-199:]


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of an image's configuration that counts here."""

    architecture: str = ""
    system: str = "linux"
    entry_point: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    user: str = ""

    @staticmethod
    def of_oci(raw: Mapping[str, Any]) -> ImageConfig:
        """From the configuration object that a registry holds, in the OCI or in Docker's form."""
        inner = raw.get("config") or {}
        pairs = (str(x).partition("=") for x in inner.get("Env") or [])
        return ImageConfig(
            str(raw.get("architecture", "")),
            str(raw.get("os", "linux")),
            [str(x) for x in inner.get("Entrypoint") or []],
            [str(x) for x in inner.get("Cmd") or []],
            {name: value for name, _, value in pairs if name},
            str(inner.get("WorkingDir") or ""),
            str(inner.get("User") or ""),
        )

    def words(self, entry_point: list[str] | None, command: list[str]) -> list[str]:
        """The whole command line; the job's own words win: its command over the image's, its entry point over the image's."""
        first = self.entry_point if entry_point is None else entry_point
        return [*first, *(command or ([] if entry_point is not None else self.command))]


# ---- Calls of skopeo: asking a registry what a name means, and fetching an image by its digest
#
# Signatures are not checked: the digest, which is the job's, determines what is fetched.

ASK_SECONDS = 60
STALL_SECONDS = 120.0  # a download without a new byte for so long is given up
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)  # the last one again and again
LAYOUT = "image"  # name of the image inside the folder that it is fetched into
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # the kernel's name -> the registries'
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


@dataclass(frozen=True, slots=True)
class ImageRules:
    """How images are fetched and kept."""

    cache_bytes: int = 0  # all images of a machine; 0 = half of its disk
    insecure: tuple[str, ...] = ()  # registries that may speak without TLS
    patience_seconds: float = 30.0  # a registry that does not answer is asked again for so long
    authorities: str = ""  # certificates in PEM that registries are trusted by, besides the machine's own


class Registry:
    """Calls of skopeo with temporary files in `folder`."""

    def __init__(self, tools: Tools, folder: Path, rules: ImageRules, auth: bytes | None) -> None:
        """`auth`: a containers-auth.json."""
        self._tools, self._folder = tools, folder
        self._patience = Retry(rules.patience_seconds, passes=_is_passing, pauses=PAUSES_SECONDS)
        self._options: list[str] = []
        for name in ("home", "registries.d", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        places = "".join(f"[[registry]]\nlocation = {json.dumps(host)}\ninsecure = true\n" for host in rules.insecure)
        (folder / "registries.conf").write_text(places)
        self._trusted = [tools.certificates] if tools.certificates else []
        if rules.authorities:
            (folder / "authorities").mkdir(exist_ok=True)
            (folder / "authorities/ours.pem").write_text(rules.authorities)
            self._trusted.append(str(folder / "authorities"))
        if auth is not None:
            path = folder / "auth.json"
            path.touch(mode=0o600)
            path.write_bytes(auth)
            self._options = ["--authfile", str(path)]

    def find(self, reference: Reference) -> tuple[str, int]:
        """What a name means for this machine's architecture: digest, and bytes of its packed layers. Raises ImageError."""
        raw = self._ask(["inspect", "--raw", *self._options, reference.asked], reference)
        manifest, digest = _json(raw, reference), "sha256:" + hashlib.sha256(raw).hexdigest()
        if reference.digest and digest != reference.digest:
            raise failure("Digest did not match", reference.asked, reference.host)
        if manifest.get("mediaType") in INDEXES or "manifests" in manifest:
            digest = _chosen(manifest, reference)
            manifest = _json(self._ask(["inspect", "--raw", *self._options, reference.at(digest)], reference), reference)
        self.config(reference, digest)  # refuses an image for other machines
        return digest, sum(int(x.get("size", 0)) for x in manifest.get("layers") or [])

    def config(self, reference: Reference, digest: str) -> ImageConfig:
        """The configuration of one image. Raises ImageError, also if it is made for other machines."""
        raw = self._ask(["inspect", "--config", "--raw", *self._options, reference.at(digest)], reference)
        config = ImageConfig.of_oci(_json(raw, reference))
        ours = architecture()
        if config.architecture not in ("", ours) or config.system != "linux":
            raise _wrong(reference, f"{config.system}/{config.architecture}")
        return config

    def fetch(self, reference: Reference, digest: str, into: Path) -> None:
        """Fetch an image into an OCI layout below `into`, every layer checked against its digest. Raises ImageError."""
        call = ["copy", "--quiet", *(["--src-authfile", *self._options[1:]] if self._options else [])]
        self._ask([*call, reference.at(digest), f"oci:{into}:{LAYOUT}"], reference, seconds=None)

    def _ask(self, words: list[str], reference: Reference, seconds: int | None = ASK_SECONDS) -> bytes:
        """The answer of skopeo; after silence or a temporary error it asks again for a while."""
        return self._patience.ask(lambda: self._run(words, reference, seconds))

    def _run(self, words: list[str], reference: Reference, seconds: int | None) -> bytes:
        if not self._tools.skopeo:
            raise ImageError(Kind.WRONG, "this agent's runtime has no skopeo to fetch images with: build the runtime anew")
        limit = [f"--command-timeout={seconds}s"] if seconds is not None else []
        own = ["--insecure-policy", "--registries.d", str(self._folder / "registries.d")]
        own += ["--registries-conf", str(self._folder / "registries.conf"), *limit]
        process = subprocess.Popen(
            [*self._tools.skopeo, *own, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment(),
            preexec_fn=syscalls.die_with_parent,
        )  # fmt: skip
        with tools.watched(lambda: _size(self._folder), process.kill, STALL_SECONDS) as stalled:
            out, err = process.communicate()
        if process.returncode:
            said = "i/o timeout: nothing came any more" if stalled() else err.decode(errors="replace")
            log.info("skopeo said: %s", said.strip())
            raise failure(said, reference.asked.removeprefix("docker://"), reference.host)
        return out

    def _environment(self) -> dict[str, str]:
        """An environment without credentials and settings of this machine's users, but with its proxies."""
        names = {"HOME": "home", "TMPDIR": "tmp", "XDG_RUNTIME_DIR": "home"}
        trusted = {"SSL_CERT_DIR": ":".join(["/etc/ssl/certs", *self._trusted])} if self._trusted else {}
        return {**os.environ, **trusted, **{name: str(self._folder / path) for name, path in names.items()}}


def _is_passing(e: Exception) -> bool:
    return isinstance(e, ImageError) and e.kind is Kind.LATER


def architecture() -> str:
    """This machine's architecture, in the registries' words."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def _json(raw: bytes, reference: Reference) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError as e:
        raise ImageError(Kind.WRONG, f"the registry {reference.host} gave no JSON for {reference.name}: {gist(str(e))}") from e
    if not isinstance(value, dict):
        raise ImageError(Kind.WRONG, f"the registry {reference.host} gave no object for {reference.name}")
    return value


def _chosen(index: dict[str, Any], reference: Reference) -> str:
    """The digest of the image for this machine among those of several architectures."""
    offered = [(str(m.get("digest", "")), m.get("platform") or {}) for m in index.get("manifests") or []]
    for digest, made_for in offered:
        if made_for.get("architecture") == architecture() and made_for.get("os", "linux") == "linux":
            return digest
    raise _wrong(reference, ", ".join(sorted({f"{p.get('os', 'linux')}/{p.get('architecture')}" for _, p in offered})))


def _wrong(reference: Reference, made_for: str) -> ImageError:
    return ImageError(
        Kind.WRONG,
        f"the image {reference.asked.removeprefix('docker://')} is made for {made_for or 'nothing'}, this machine is "
        f"linux/{architecture()}: build it for that too, or ask for another machine type",
    )


def _size(folder: Path) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(at, name)).st_size  # noqa: PTH118 -- many of them
    return total
