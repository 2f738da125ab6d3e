"""Building: pins, what a moved mirror does, and that nothing is built twice. The slow steps are replaced by recorders."""

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from spotsurfer.agent_runtime import base_layer, builder, package_fetch, recipe
from spotsurfer.agent_runtime.base_layer import Base, Say
from spotsurfer.agent_runtime.package_fetch import Stanza
from spotsurfer.agent_runtime.package_pins import Pins
from spotsurfer.agent_runtime.recipe import Lock, Package
from spotsurfer.model.errors import RuntimeBuildError

OLD = Lock("amd64", "3.14", (Package("criu", "4.2.1-1", "pool/criu_1.deb", "11" * 32),), ())
NEW = dataclasses.replace(OLD, packages=(Package("criu", "4.3-1", "pool/criu_2.deb", "22" * 32),))


class Mirror:
    """Has no file at all."""

    def index(self) -> dict[str, Stanza]:
        return {}

    def fetch(self, packages: Iterable[Package], folder: Path) -> None:
        pass


class World:
    """The builder with its slow steps replaced; says what was done."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out, self.said, self.built, self.resolved = out, list[str](), list[Lock](), 0
        self.shipped = out / "shipped.lock"
        self.shipped.write_text(OLD.text())
        monkeypatch.setattr(recipe, "shipped", lambda: self.shipped)
        monkeypatch.setattr(package_fetch, "source", lambda mirror: Mirror())
        monkeypatch.setattr(base_layer, "resolve", self._resolve)
        monkeypatch.setattr(base_layer, "build", self._build)
        monkeypatch.setattr(base_layer, "compile_python", lambda root, tree: None)

    def _resolve(self, out: Path, mirror: Mirror, say: Say) -> Lock:
        self.resolved += 1
        return NEW

    def _build(self, out: Path, ingredients: Lock, say: Say) -> Base:
        self.built.append(ingredients)
        made = Base(base_layer.folder(out, ingredients), ingredients)
        made.tree.mkdir(parents=True)
        (made.folder / "facts.json").write_text("{}")
        made.member.write_bytes(b"")
        return made

    def build(self, pins: Pins = Pins.PREFER) -> builder.Runtime:
        return builder.build(self.out, pins=pins, say=self.said.append)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_moved_mirror_is_told_and_recorded(world: World) -> None:
    world.build()
    assert any("NOTICE: criu 4.3-1 instead of the tested 4.2.1-1" in line for line in world.said)
    recorded = json.loads((world.out / "RUNTIME.lock").read_text())
    assert recorded["packages"][0]["version"] == "4.3-1"
    assert recorded["instead_of"] == OLD.digest
    assert world.shipped.read_text() == OLD.text(), "the tested pins stay"


def test_moved_mirror_is_asked_once(world: World) -> None:
    first = world.build()
    assert world.build() == first
    assert (world.resolved, world.built) == (1, [NEW])


def test_locked_refuses_a_moved_mirror(world: World) -> None:
    with pytest.raises(RuntimeBuildError, match="no longer has the packages of the lock"):
        world.build(Pins.REQUIRE)
    assert builder.find(world.out) is None


def test_locked_does_not_take_what_a_build_without_it_took(world: World) -> None:
    world.build()
    with pytest.raises(RuntimeBuildError):
        world.build(Pins.REQUIRE)


def test_update_rewrites_the_pins(world: World) -> None:
    world.build(Pins.RENEW)
    assert recipe.read(world.shipped) == NEW
    world.build(Pins.REQUIRE)
    assert world.built == [NEW]


def test_changed_agent_makes_another_tarball_from_the_same_base(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = tmp_path / "spotsurfer_agent"
    agent.mkdir()
    (agent / "__init__.py").write_text("")
    monkeypatch.setattr(builder, "agent_packages", lambda: [agent])
    first = world.build()
    (agent / "new.py").write_text("x = 1\n")
    second = world.build()
    assert first.sha256 != second.sha256
    assert builder.find(world.out) == second
    assert len(world.built) == 1
    assert first.path.exists(), "a controller may still read it"


def test_old_tarballs_go(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agent = tmp_path / "spotsurfer_agent"
    agent.mkdir()
    monkeypatch.setattr(builder, "agent_packages", lambda: [agent])
    made = []
    for n in range(builder.KEPT + 3):
        (agent / "__init__.py").write_text(f"n = {n}\n")
        made.append(world.build().path)
    assert len(list(world.out.glob("*.tar.gz"))) == len(made), "all are young: somebody may read them"
    for n, path in enumerate(made):
        os.utime(path, (n, n))
    (agent / "__init__.py").write_text("n = -1\n")
    newest = world.build()
    assert set(world.out.glob("*.tar.gz")) == {newest.path, *made[-(builder.KEPT - 1) :]}


def test_current_is_switched_as_a_whole(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agent = tmp_path / "spotsurfer_agent"
    agent.mkdir()
    (agent / "__init__.py").write_text("one = 1\n")
    monkeypatch.setattr(builder, "agent_packages", lambda: [agent])
    world.build()
    current = world.out / "current"
    (agent / "__init__.py").write_text("two = 2\n")
    before = current.resolve()
    world.build()
    assert (current / "site/spotsurfer_agent/__init__.py").read_text() == "two = 2\n"
    assert (before / "site/spotsurfer_agent/__init__.py").read_text() == "one = 1\n", "a test may still read it"


def test_unpack_never_writes_into_a_folder_that_is_there(world: World, tmp_path: Path) -> None:
    runtime = world.build()
    with pytest.raises(RuntimeBuildError, match="exists"):
        builder.unpack(runtime, tmp_path)


def test_what_another_version_built_does_not_count(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An upgraded controller must not hand out the agent of before, nor one whose tools came from another lock."""
    agent = tmp_path / "spotsurfer_agent"
    agent.mkdir()
    (agent / "__init__.py").write_text("one = 1\n")
    monkeypatch.setattr(builder, "agent_packages", lambda: [agent])
    first = world.build()
    assert builder.find(world.out) == first
    (agent / "__init__.py").write_text("two = 2\n")
    assert builder.find(world.out) is None
    second = world.build()
    assert builder.find(world.out) == second
    world.shipped.write_text(dataclasses.replace(OLD, python="3.15").text())
    assert builder.find(world.out) is None


def test_one_that_lost_its_unpacked_copy_is_unpacked_again(world: World) -> None:
    first = world.build()
    (world.out / "current").unlink()
    assert builder.find(world.out) is None
    assert world.build() == first == builder.find(world.out)


def test_nothing_built_is_no_error(tmp_path: Path) -> None:
    assert builder.find(tmp_path) is None
