"""The pins: what the lock file says and how it is read."""

import json
from pathlib import Path

import pytest

from spotsurfer.agent_runtime import recipe
from spotsurfer.agent_runtime.recipe import Lock, Package, Wheel
from spotsurfer.model.errors import RuntimeBuildError

SMALL = Lock(
    "amd64",
    "3.14",
    (Package("b", "2", "pool/b.deb", "22" * 32), Package("a", "1", "pool/a.deb", "11" * 32)),
    (Wheel("w", "1", "w.whl", "33" * 32),),
)


def test_text_is_read_back_sorted(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(SMALL.text())
    assert [p.name for p in recipe.read(path).packages] == ["a", "b"]
    assert recipe.read(path).digest == SMALL.digest, "the order of packages does not matter"


@pytest.mark.parametrize("text", ["", "{}", '{"architecture": "amd64", "python": "3", "packages": [{"x": 1}], "wheels": []}'])
def test_damaged_lock_is_refused_with_the_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    with pytest.raises(RuntimeBuildError, match="--update-lock"):
        recipe.read(path)


def test_other_version_other_digest() -> None:
    raw = json.loads(SMALL.text())
    raw["packages"][0]["version"] = "1.1"
    changed = Lock(raw["architecture"], raw["python"], tuple(Package(**p) for p in raw["packages"]), SMALL.wheels)
    assert changed.digest != SMALL.digest


def test_shipped_lock_is_complete() -> None:
    shipped = recipe.read(recipe.shipped())
    names = {p.name for p in shipped.packages}
    assert {f"python{recipe.PYTHON}-minimal", *recipe.SEEDS[1:]} <= names
    assert {"libc6", "libssl3t64", "libprotobuf-c1"} <= names
    assert {w.name for w in shipped.wheels} == set(recipe.WHEELS)
    assert (shipped.architecture, shipped.python) == (recipe.ARCHITECTURE, recipe.PYTHON)
    hashes = [p.sha256 for p in shipped.packages] + [w.sha256 for w in shipped.wheels]
    assert {len(h) for h in hashes} == {64}
    criu = next(p for p in shipped.packages if p.name == "criu")
    assert tuple(int(n) for n in criu.version.split("-")[0].split(".")[:2]) >= recipe.CRIU_VERSION_MIN
