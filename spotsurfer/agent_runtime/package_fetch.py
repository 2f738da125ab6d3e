"""Debian packages and Python wheels of the runtime: resolved, fetched, unpacked without touching the host."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from spotsurfer.agent_runtime import recipe
from spotsurfer.agent_runtime.recipe import Package, Wheel, file_sha256
from spotsurfer.model.errors import RuntimeBuildError

# ---- Unpacking: a .deb is an ar archive with a tar as data member. Runs nothing and touches nothing of the system.

_MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60


def unpack_deb(deb: Path, prefix: Path) -> list[str]:
    """Lays the package's files below `prefix`; returns their paths relative to it."""
    with tarfile.open(fileobj=io.BytesIO(_data_member(deb)), mode="r:*") as tar:
        members = [m for m in tar.getmembers() if m.isdir() or m.isfile() or m.issym() or m.islnk()]
        names = [_inside(m.name, deb) for m in members if not m.isdir()]
        tar.extractall(prefix, members=members)  # noqa: S202 - signed packages, and names are checked above
    return names


def _inside(name: str, deb: Path) -> str:
    parts = Path(name).parts
    if name.startswith("/") or ".." in parts:
        raise RuntimeBuildError(f"{deb.name} holds the path {name}, which leaves its folder: do not use this mirror")
    return "/".join(p for p in parts if p != ".")


def _data_member(deb: Path) -> bytes:
    data = deb.read_bytes()
    if not data.startswith(_MAGIC):
        raise RuntimeBuildError(f"{deb} is not a Debian package: remove it and build again")
    at = len(_MAGIC)
    while at + _HEADER_BYTES <= len(data):
        header = data[at : at + _HEADER_BYTES]
        name, length = header[:16].decode().strip(), int(header[48:58])
        at += _HEADER_BYTES
        if name.startswith("data.tar"):
            return data[at : at + length]
        at += length + length % 2  # members begin at even offsets
    raise RuntimeBuildError(f"{deb} has no data: remove it and build again")


# ---- Debian: packages of another release, fetched without touching the system's own packages.
# On Debian apt does the work, with its own sources list and lists folder and an empty status file. Elsewhere we download the
# index plainly, and gpgv checks its signature. Packages of a lock need no index: their sha256 is the proof.

MIRROR_VARIABLE = "SPOTSURFER_DEBIAN_MIRROR"
KEYRING_VARIABLE = "SPOTSURFER_DEBIAN_KEYRING"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT_HELPER = Path("/usr/lib/apt/apt-helper")
FETCH_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Stanza:
    """An entry of a Packages index, as far as it matters here."""

    package: Package
    needs: tuple[tuple[str, ...], ...]  # each: alternatives, first preferred
    provides: tuple[str, ...]


def source(mirror: str | None = None) -> Source:
    """The given mirror, else that of the environment, else the one that this Debian's apt uses.

    Raises RuntimeBuildError if none is known.
    """
    mirror = mirror or os.environ.get(MIRROR_VARIABLE)
    keyring = Path(os.environ.get(KEYRING_VARIABLE) or KEYRING)
    if APT_HELPER.exists() and shutil.which("apt-get"):
        return AptSource((mirror or _apt_mirror()).rstrip("/"), keyring)
    if mirror is None:
        raise RuntimeBuildError(f"this host has no apt: set {MIRROR_VARIABLE} to the address of a Debian mirror")
    return PlainSource(mirror.rstrip("/"), keyring)


def _apt_mirror() -> str:
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if re.fullmatch(r"https?://.*/debian/?", line):
            return line
    raise RuntimeBuildError(
        f"apt's sources name no Debian mirror (is this another distribution?): set {MIRROR_VARIABLE} to the address of one"
    )


@dataclass(frozen=True, slots=True)
class AptSource:
    """Through apt, with its proxies, certificates and retries."""

    mirror: str
    keyring: Path

    def index(self) -> dict[str, Stanza]:
        """The newest packages of the suite, by name, from a signed index. Raises RuntimeBuildError."""
        _need_keyring(self.keyring)
        with tempfile.TemporaryDirectory(prefix="spotsurfer-apt-") as folder:
            options = self.options(Path(folder))
            _run(["apt-get", *options, "update", "-qq"], "the package index could not be fetched")
            text = _run(["apt-cache", *options, "dumpavail"], "the package index could not be read")
        return parse_index(text)

    def options(self, folder: Path, kind: str = "deb") -> list[str]:
        """apt's options for this mirror alone, with its files in `folder`; `kind` "deb-src": sources of packages."""
        (folder / "lists" / "partial").mkdir(parents=True)
        sources = folder / "sources.list"
        sources.write_text(f"{kind} [arch={recipe.ARCHITECTURE} signed-by={self.keyring}] {self.mirror} {recipe.SUITE} main\n")
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": "/dev/null",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Acquire::Languages": "none",
            "APT::Sandbox::User": "root",
        }
        return [f"-o{key}={value}" for key, value in settings.items()]

    def fetch(self, packages: Iterable[Package], folder: Path) -> None:
        """Downloads what it can into `folder`; the caller looks at what arrived and checks it.

        One call for all, because apt keeps the connection open.
        """
        arguments: list[str] = []
        for p in packages:
            arguments += [f"{self.mirror}/{p.path}", str(folder / p.file_name), f"SHA256:{p.sha256}"]
        if arguments:
            command = [str(APT_HELPER), "-oAPT::Sandbox::User=root", "download-file", *arguments]
            subprocess.run(command, capture_output=True, check=False)


@dataclass(frozen=True, slots=True)
class PlainSource:
    """Plain downloads, for hosts that are not Debian."""

    mirror: str
    keyring: Path

    def index(self) -> dict[str, Stanza]:
        """The newest packages of the suite, by name, from a signed index. Raises RuntimeBuildError."""
        _need_keyring(self.keyring)
        if not shutil.which("gpgv"):
            raise RuntimeBuildError("gpgv is needed to check the mirror's signature: install GnuPG")
        base = f"{self.mirror}/dists/{recipe.SUITE}"
        release = self._verified(_download(f"{base}/InRelease"))
        name = f"main/binary-{recipe.ARCHITECTURE}/Packages.xz"
        known = re.search(rf"^ ([0-9a-f]{{64}})\s+\d+ {re.escape(name)}$", release, re.MULTILINE)
        packed = _download(f"{base}/{name}")
        if known is None or hashlib.sha256(packed).hexdigest() != known[1]:
            raise RuntimeBuildError(
                f"the package index of {self.mirror} does not match its signature: try again or another mirror"
            )
        return parse_index(lzma.decompress(packed).decode())

    def _verified(self, signed: bytes) -> str:
        with tempfile.TemporaryDirectory(prefix="spotsurfer-gpg-") as folder:
            inner, plain = Path(folder) / "InRelease", Path(folder) / "Release"
            inner.write_bytes(signed)
            command = ["gpgv", "--keyring", str(self.keyring), "--output", str(plain), str(inner)]
            _run(command, f"the signature of {self.mirror} is not from a key in {self.keyring}")
            return plain.read_text()  # only what was signed, not what stands around it

    def fetch(self, packages: Iterable[Package], folder: Path) -> None:
        """Downloads what it can into `folder`; the caller looks at what arrived and checks it."""
        for p in packages:
            try:
                data = _download(f"{self.mirror}/{p.path}")
            except RuntimeBuildError:
                continue
            (folder / p.file_name).write_bytes(data)


Source = AptSource | PlainSource


def absent(packages: Iterable[Package], folder: Path) -> list[Package]:
    """Packages without a file in the folder, or with wrong bytes: such a file is removed."""
    out = []
    for p in packages:
        path = folder / p.file_name
        if path.exists() and file_sha256(path) == p.sha256:
            continue
        path.unlink(missing_ok=True)
        out.append(p)
    return out


def closure(index: dict[str, Stanza], seeds: Iterable[str], not_followed: frozenset[str]) -> list[Package]:
    """The seeds and everything that they depend on, by name. Raises RuntimeBuildError if the suite lacks something."""
    providers: dict[str, str] = {}
    for name in sorted(index):
        for virtual in index[name].provides:
            providers.setdefault(virtual, name)
    found: dict[str, Package] = {}
    todo: list[tuple[str, ...]] = [(s,) for s in seeds]
    while todo:
        alternatives = todo.pop()
        if not_followed.intersection(alternatives):
            continue
        known = [n if n in index else providers.get(n, "") for n in alternatives]
        name = next((n for n in known if n), "")
        if not name:
            raise RuntimeBuildError(f"the mirror's {recipe.SUITE} suite has no {' or '.join(alternatives)}: try again tomorrow")
        if name not in found:
            found[name] = index[name].package
            todo.extend(index[name].needs)
    return [found[n] for n in sorted(found)]


_WANTED = re.compile(r"^(Package|Version|Filename|SHA256|Pre-Depends|Depends|Provides): (.*)$", re.MULTILINE)


def parse_index(text: str) -> dict[str, Stanza]:
    """A Packages file."""
    out: dict[str, Stanza] = {}
    for block in text.split("\n\n"):
        fields = dict(_WANTED.findall(block))
        if "SHA256" in fields and "Filename" in fields:
            name = fields["Package"]
            package = Package(name, fields["Version"], fields["Filename"], fields["SHA256"])
            needs = [*_names(fields.get("Pre-Depends", "")), *_names(fields.get("Depends", ""))]
            provides = tuple(n for group in _names(fields.get("Provides", "")) for n in group)
            out[name] = Stanza(package, tuple(needs), provides)
    return out


def _names(field: str) -> list[tuple[str, ...]]:
    """ "a (>= 1), b | c:any" -> [(a,), (b, c)]."""
    groups = [g for g in field.split(",") if g.strip()]
    return [tuple(re.split(r"[ :(]", a.strip(), maxsplit=1)[0] for a in g.split("|")) for g in groups]


def _need_keyring(keyring: Path) -> None:
    if not keyring.exists():
        raise RuntimeBuildError(f"{keyring} is not there: set {KEYRING_VARIABLE} to a copy of Debian's archive keyring")


def _download(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=FETCH_TIMEOUT_SECONDS) as answer:  # noqa: S310 - the operator's mirror
            data: bytes = answer.read()
            return data
    except (urllib.error.URLError, OSError) as e:
        raise RuntimeBuildError(f"{address} could not be fetched ({e}): check the network or set {MIRROR_VARIABLE}") from e


def _run(command: list[str], trouble: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeBuildError(
            f"{trouble} ({said[-1] if said else done.returncode}): check the network or set {MIRROR_VARIABLE}"
        )
    return done.stdout


# ---- Wheels: for the runtime's interpreter, fetched by pip from the index that this host uses.


def resolve_wheels(cache: Path) -> tuple[Wheel, ...]:
    """Wheels of the versions that this environment runs, downloaded into the cache."""
    return tuple(_newest(name, importlib.metadata.version(name), cache) for name in recipe.WHEELS)


def _newest(name: str, version: str, cache: Path) -> Wheel:
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        _pip_download([f"{name}=={version}"], Path(folder))
        (path,) = Path(folder).glob("*.whl")
        path.rename(cache / path.name)
        return Wheel(name, version, path.name, file_sha256(cache / path.name))


def fetch_wheels(wheels: Sequence[Wheel], cache: Path) -> None:
    """Ensures that exactly these wheels lie in the cache. Raises RuntimeBuildError."""
    todo = [w for w in wheels if not _have(w, cache)]
    if not todo:
        return
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in todo))
        _pip_download(["--require-hashes", "-r", str(wanted)], cache)
    if missing := [w.file for w in todo if not _have(w, cache)]:
        raise RuntimeBuildError(f"the package index gave other files than {', '.join(missing)}: see --update-lock")


def _have(wheel: Wheel, cache: Path) -> bool:
    path = cache / wheel.file
    return path.exists() and file_sha256(path) == wheel.sha256


def _pip_download(arguments: list[str], folder: Path) -> None:
    platforms = [f"--platform={p}" for p in recipe.WHEEL_PLATFORMS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += [f"--python-version={recipe.PYTHON}", "--implementation=cp", *platforms, f"--dest={folder}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RuntimeBuildError(
            f"pip could not fetch a wheel ({said[-1] if said else 'no message'}): check the network and pip's index"
        )


def unpack_wheels(wheels: Sequence[Wheel], cache: Path, site: Path) -> None:
    """Lays the wheels' files into `site`, licences included, without what only a package manager needs."""
    site.mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(cache / wheel.file) as archive:
            for name in archive.namelist():
                if not any(fnmatch(name, pattern) for pattern in recipe.LEFT_OUT_OF_WHEELS):
                    archive.extract(name, site)
