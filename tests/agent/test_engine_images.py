"""Jobs that bring a container image, with a real registry and the real engine on miniboxes."""

from __future__ import annotations

import dataclasses
import shlex
import shutil

import pytest
from support.image_scenes import SPEAKS
from support.minibox import minibox
from support.registry import Recipe, push, times_fetched

pytestmark = [pytest.mark.real]
MODULE = "support.image_scenes"
TOOL = Recipe(["python3", "dash", "coreutils"], {"/etc/mark": "image one\n"}, environment={"WAVE": "big"})
SMALL = Recipe(["dash", "coreutils"])
SPOKEN = dataclasses.replace(
    SMALL,
    entry_point=["/bin/sh", "-c"],
    command=[SPEAKS],
    environment={"WAVE": "big", "PATH": "/opt/bin:/usr/bin"},
    folder="/srv/tool",
    user="surfer",
    files={"/srv/tool/x": ""},
)
ARM = dataclasses.replace(SMALL, architecture="arm64")
IMAGES = {"tool:1": TOOL, "small:1": SMALL, "spoken:1": SPOKEN, "arm:1": ARM}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """A registry's folder with all of them; trees are made once."""
    top = tmp_path_factory.mktemp("images")
    for name, recipe in IMAGES.items():
        push(recipe, top / "registry", name, top / ("tool" if recipe is TOOL else "small"))
    return top / "registry"


@pytest.fixture
def store(tmp_path, storage):
    shutil.copytree(storage, tmp_path / "store" / "registry")
    return tmp_path / "store"


@pytest.fixture
def box(tmp_path, store):
    with minibox(tmp_path / "box", store, module=MODULE) as made:
        yield made


def test_a_job_brings_its_root_and_surfs_on_although_the_tag_moves(tmp_path, store, storage):
    with minibox(tmp_path / "a", store, module=MODULE) as machine:
        machine.run("first")
    moved = dataclasses.replace(TOOL, files={"/etc/mark": "image two\n"})
    push(moved, store / "registry", "tool:1", storage.parent / "tool")
    with minibox(tmp_path / "b", store, module=MODULE) as machine:
        machine.run("refusals")
        machine.run("last")


def test_what_the_image_says_of_its_program_counts_where_the_job_says_nothing(box):
    home, path = "/var/lib/spotsurfer/home", "/opt/bin:/usr/bin:/var/lib/spotsurfer/.spotsurfer/bin"
    lines = [
        f"1234 1234 1234 77 /srv/tool {home} big {path}",
        f"0 77 77 /var/lib/spotsurfer/work/deep {home} small {path}",
        f"1234 1234 1234 77 /var/lib/spotsurfer/work {home} big {path}",
    ]
    box.run("speaks", *map(shlex.quote, lines))


def test_an_image_is_fetched_once_a_machine(box, store):
    box.run("once")
    assert times_fetched(store / "registry", "small") == 1


@pytest.mark.parametrize("scene", ["trouble", "trusted", "signed", "killed", "room", "devices", "given", "saves_itself"])
def test_scene(box, scene):
    box.run(scene)
