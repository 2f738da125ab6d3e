"""The recipe of the runtime: its packages, wheels and exclusions as data, and the lock file with versions and sha256.

To add a tool to the instances, add it here. `runtime.lock` beside this file names what was built and tested; `RUNTIME.lock`
in the build folder names what a build really took.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.model.errors import RuntimeBuildError

ARCHITECTURE = "amd64"
PYTHON = "3.14"
SUITE = "unstable"  # the only Debian suite with a CRIU of at least 4.2
CRIU_VERSION_MIN = (4, 2)

# The requested packages; their dependencies are resolved.
SEEDS = (
    f"python{PYTHON}",
    "criu",
    "iproute2",
    "nftables",
    "btrfs-progs",
    "tini-static",
    "libgcc-s1",
    "libstdc++6",
    "skopeo",
    "umoci",
    "ca-certificates",
)

# Dependencies that only installation scripts or human users need; the runtime would keep none of their files.
NOT_FOLLOWED = frozenset(
    {
        "debconf",
        "cdebconf",
        "netbase",
        "media-types",
        "tzdata",
        "readline-common",
        "libtirpc-common",
        "openssl",
        "golang-github-containers-common",
        "golang-github-containers-image",
    }
)

# Same versions as in the controller's environment, so that one test suite covers both ends.
WHEELS = (
    "blake3", "cffi", "cryptography", "cuda-bindings", "cuda-pathfinder", "lz4", "numpy", "nvidia-ml-py", "obstore", "xxhash",
    "zstandard",
)  # fmt: skip
NEEDED_BY_WHEELS = frozenset({"cffi", "cuda-pathfinder"})  # of the above, those that the agent itself does not import
WHEEL_PLATFORMS = (
    "manylinux_2_34_x86_64",
    "manylinux_2_31_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)

LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = f"{LIBRARIES}/ld-linux-x86-64.so.2"
INTERPRETER = f"usr/bin/python{PYTHON}"
STANDARD_LIBRARY = f"usr/lib/python{PYTHON}"

# Name on the instance -> file in the prefix. Each gets a starter in bin/; tini-static needs none: it is static.
TOOLS = {
    "criu": "usr/sbin/criu",
    "ip": "usr/bin/ip",
    "tc": "usr/sbin/tc",
    "nft": "usr/sbin/nft",
    "btrfs": "usr/bin/btrfs",
    "skopeo": "usr/bin/skopeo",
    "umoci": "usr/bin/umoci",
}
STATIC_TOOLS = {"tini-static": "usr/bin/tini-static"}

# Libraries that programs open by name at run time, so that no ELF header mentions them.
OPENED_AT_RUN_TIME = (f"{LIBRARIES}/libgcc_s.so.1",)

# Folders to keep whole: the certificate authorities for registries of container images.
KEPT_FOLDERS = ("usr/share/ca-certificates/mozilla",)

# Parts of the standard library that are of no use on a machine without a person. Shell patterns, relative to it.
LEFT_OUT = (
    "config-*/*",
    "curses/*",
    "ensurepip/*",
    "idlelib/*",
    "pydoc_data/*",
    "sqlite3/*",
    "test/*",
    "tkinter/*",
    "turtle*",
    "turtledemo/*",
    "venv/*",
    "_pyrepl/*",
    "lib-dynload/_curses*",
    "lib-dynload/_dbm*",
    "lib-dynload/_gdbm*",
    "lib-dynload/_sqlite3*",
    "lib-dynload/_test*",
    "lib-dynload/_xxtestfuzz*",
    "lib-dynload/readline*",
    "lib-dynload/xx*",
    "sitecustomize.py",
    "__pycache__/*",
    "*/__pycache__/*",
    "EXTERNALLY-MANAGED",
    "LICENSE.txt",
)

# Parts of the wheels for type checkers, package managers and other interpreters. Shell patterns.
LEFT_OUT_OF_WHEELS = (
    "*.pyi",
    "*/py.typed",
    "*.dist-info/RECORD",
    "*.dist-info/WHEEL",
    "*.dist-info/sboms/*",
    "*/tests/*",
    "*.pxd",
    "*.pxi",
    "cuda/bindings/_v2/*.so",
    "cuda/bindings/_internal/cu*.so",
    "cuda/bindings/_internal/nv*.so",
    "cuda/bindings/_internal/runtime*",
    "cuda/bindings/cudla*",
    "cuda/bindings/cufile*",
    "cuda/bindings/cycu*",
    "cuda/bindings/cynv*",
    "cuda/bindings/cyruntime*",
    "cuda/bindings/nv*",
    "cuda/bindings/runtime*",
    "numpy/_core/include/*",
    "numpy/_core/lib/*",
    "numpy/f2py/*",
    "zstandard/_cffi.*",
    "zstandard/backend_cffi.py",
)


# ---- Lock: every Debian package and every wheel with version and sha256.


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package; `path` is relative to the mirror's address."""

    name: str
    version: str
    path: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name in the download cache, unique for its content."""
        return f"{self.name}_{self.sha256[:16]}.deb"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A Python wheel; `file` names the build (interpreter, platform) within the version."""

    name: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Lock:
    """One complete set of ingredients."""

    architecture: str
    python: str  # "3.14"
    packages: tuple[Package, ...]
    wheels: tuple[Wheel, ...]

    @property
    def digest(self) -> str:
        """Equal for equal ingredients."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def text(self) -> str:
        """The lock file: JSON, sorted and with few facts a line, so that a diff shows what changed."""
        value = dataclasses.asdict(self)
        value["packages"] = sorted(value["packages"], key=lambda p: p["name"])
        value["wheels"] = sorted(value["wheels"], key=lambda w: w["name"])
        return json.dumps(value, indent=1) + "\n"


def shipped() -> Path:
    """Path of the lock that ships with this version of spotsurfer."""
    return Path(__file__).with_name("runtime.lock")


def read(path: Path) -> Lock:
    """A lock from its file. Raises RuntimeBuildError if it is damaged."""
    try:
        raw = json.loads(path.read_text())
        packages = tuple(Package(**p) for p in raw["packages"])
        wheels = tuple(Wheel(**w) for w in raw["wheels"])
        return Lock(raw["architecture"], raw["python"], packages, wheels)
    except (ValueError, KeyError, TypeError) as e:
        raise RuntimeBuildError(
            f"{path} is damaged ({e}): restore it from the release, or rewrite it with --update-lock"
        ) from e


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
