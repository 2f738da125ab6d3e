"""What an image says of the program in it: entry point, environment, working folder, user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
