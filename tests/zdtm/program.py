"""One program of the suite: how it is called, and what its `.desc` file says it needs."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LISTS = ("flags", "feature", "arch", "opts", "dopts", "ropts")
USUAL_SECONDS = 30  # the suite's own limit


@dataclass(frozen=True)
class Program:
    """`command` is relative to the folder in which it runs. The rest has the names that `.desc` files use."""

    name: str
    group: str  # "static": it waits; "transition": it works
    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    feature: tuple[str, ...] = ()  # of CRIU and the kernel, as `criu check --feature` knows them
    arch: tuple[str, ...] = ()  # empty: all
    opts: tuple[str, ...] = ()  # of criu, by its two calls
    dopts: tuple[str, ...] = ()
    ropts: tuple[str, ...] = ()
    timeout: int = USUAL_SECONDS

    @property
    def key(self) -> str:
        """Its name among all: some names are there twice."""
        return self.name if self.group == "static" else f"{self.group}-{self.name}"

    @property
    def is_root(self) -> bool:
        """It is meant to run as root."""
        return "suid" in self.flags

    @property
    def pidfile(self) -> str:
        """Where it writes its number, in its folder."""
        return f"{self.name}.pid"

    @property
    def outfile(self) -> str:
        """Where it writes its verdict."""
        return f"{self.name}.out"

    def text(self) -> str:
        """As JSON, for a scene in a box."""
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> Program:
        """From `text`."""
        raw: dict[str, Any] = json.loads(text)
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
        return Program(**fields)


def desc(path: Path) -> dict[str, Any]:
    """What a `.desc` file says, as fields of a Program. There is none: nothing."""
    return fields(path.read_text()) if path.exists() else {}


def fields(text: str) -> dict[str, Any]:
    """The same of its text: a dictionary of Python. One that is computed (from the host's devices) wants its host set up."""
    try:
        raw: Mapping[str, Any] = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        raw = {"flags": "noauto"}
    found: dict[str, Any] = {name: tuple(raw[name].split()) for name in LISTS if name in raw}
    return {**found, "timeout": int(raw["timeout"])} if "timeout" in raw else found
