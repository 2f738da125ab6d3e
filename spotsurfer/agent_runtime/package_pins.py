"""How to build the base if the mirror no longer has a package in the version that the lock names."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

from spotsurfer.agent_runtime import base_layer, package_fetch, recipe
from spotsurfer.agent_runtime.base_layer import Base, Say
from spotsurfer.agent_runtime.recipe import Lock
from spotsurfer.model.errors import RuntimeBuildError


class Pins(StrEnum):
    """What to do about packages that the lock names and the mirror no longer has."""

    PREFER = "prefer"  # take today's signed ones, say so and record them
    REQUIRE = "require"  # an error
    RENEW = "renew"  # take today's in any case and rewrite the lock


def base_for(out: Path, pins: Pins, mirror: str | None, say: Say) -> Base:
    """The base of the lock, or of packages that the mirror still has. Raises RuntimeBuildError (Pins.REQUIRE)."""
    wanted = recipe.read(recipe.shipped()) if recipe.shipped().exists() or pins is not Pins.RENEW else None
    if pins is Pins.RENEW or wanted is None:
        taken = base_layer.resolve(out, package_fetch.source(mirror), say)
        recipe.shipped().write_text(taken.text())
        return base_layer.cached(out, taken) or base_layer.build(out, taken, say)
    if found := base_layer.cached(out, wanted):
        return found
    if pins is Pins.PREFER and (earlier := taken_before(out, wanted)) and (found := base_layer.cached(out, earlier)):
        return found
    source = package_fetch.source(mirror)
    gone = base_layer.fetch(out, wanted.packages, source, say)
    if not gone:
        package_fetch.fetch_wheels(wanted.wheels, out / "wheels")
        return base_layer.build(out, wanted, say)
    say(f"the mirror no longer has {gone[0].name} {gone[0].version} and {len(gone) - 1} others of the lock")
    if pins is Pins.REQUIRE:
        raise RuntimeBuildError(
            f"the mirror no longer has the packages of the lock: set {package_fetch.MIRROR_VARIABLE} to an archive that "
            "keeps old versions, or build without --locked"
        )
    taken = base_layer.resolve(out, source, say)
    _record(out, wanted, taken, say)
    return base_layer.cached(out, taken) or base_layer.build(out, taken, say)


def taken_before(out: Path, wanted: Lock) -> Lock | None:
    """The packages that an earlier build took instead of those of this lock."""
    path = out / "RUNTIME.lock"
    if not path.exists() or json.loads(path.read_text()).get("instead_of") != wanted.digest:
        return None
    return recipe.read(path)


def _record(out: Path, wanted: Lock, taken: Lock, say: Say) -> None:
    """Reports and records how this runtime differs from the tested one."""
    old = {p.name: p.version for p in wanted.packages}
    for package in taken.packages:
        if old.get(package.name) != package.version:
            say(f"NOTICE: {package.name} {package.version} instead of the tested {old.get(package.name, '(none)')}")
    value = {"instead_of": wanted.digest, **json.loads(taken.text())}
    replace_file(out / "RUNTIME.lock", (json.dumps(value, indent=1) + "\n").encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that it is never seen half written."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.rename(path)
