"""What the runtime is made of: every Debian package and every wheel with version and sha256.

`runtime.lock` beside this file is what was built and tested; `RUNTIME.lock` in the build folder is what a build really took.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.model.errors import RuntimeBuildError


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package; `path` is relative to the mirror's address."""

    name: str
    version: str
    path: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name in the download cache: unique for its content."""
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
        """The lock file: JSON, one ingredient a line's neighbourhood, sorted, so that a diff shows what changed."""
        value = dataclasses.asdict(self)
        value["packages"] = sorted(value["packages"], key=lambda p: p["name"])
        value["wheels"] = sorted(value["wheels"], key=lambda w: w["name"])
        return json.dumps(value, indent=1) + "\n"


def shipped() -> Path:
    """Where the lock lies that came with this version of spotsurfer."""
    return Path(__file__).with_name("runtime.lock")


def read(path: Path) -> Lock:
    """A lock from its file. Raises RuntimeBuildError where it is damaged."""
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
