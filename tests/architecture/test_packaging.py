"""What is installed: four packages and nothing else, equal versions, entry points that load."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import spotsurfer_agent
from support.tree import ROOT

import spotsurfer
from spotsurfer.runtime import recipe

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {"spotsurfer", "spotsurfer_agent", "spotsurfer_policies", "spotsurfer_providers"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_four_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == PACKAGES | {f"spotsurfer-{spotsurfer.__version__}.dist-info"}


def test_wheel_holds_the_data(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"spotsurfer/runtime/runtime.lock", "spotsurfer/py.typed", "spotsurfer_agent/py.typed"} <= names
    assert not [n for n in names if n.endswith((".pyc", ".so"))]


def test_versions_are_equal() -> None:
    assert spotsurfer.__version__ == spotsurfer_agent.__version__


def _entry_points() -> list[tuple[str, str]]:
    points = dict(PROJECT["project"]["scripts"])
    for group in PROJECT["project"]["entry-points"].values():
        points |= group
    return sorted(points.items())


@pytest.mark.parametrize(("name", "target"), _entry_points())
def test_entry_point_loads(name: str, target: str) -> None:
    module, _, attribute = target.partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_installed_entry_points_are_those_of_the_project() -> None:
    for group, points in PROJECT["project"]["entry-points"].items():
        installed = {p.name: p.value for p in importlib.metadata.entry_points(group=group)}
        assert points.items() <= installed.items(), "call make setup again"


def test_agent_needs_what_the_runtime_brings() -> None:
    """The agent's own distribution and the tarball must not drift apart."""
    agent = tomllib.loads((ROOT / "agent" / "pyproject.toml").read_text())
    named = {d.split(">")[0] for d in agent["project"]["dependencies"]}
    lock = json.loads((ROOT / "spotsurfer" / "runtime" / "runtime.lock").read_text())
    assert named == {w["name"] for w in lock["wheels"]} - recipe.NEEDED_BY_WHEELS
    assert set(agent["project"]["dependencies"]) <= set(PROJECT["project"]["dependencies"])


def test_lock_names_every_dependency_with_a_hash() -> None:
    entries = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()[1:]
    assert all("==" in e and "--hash=sha256:" in e for e in entries)
    locked = {e.split("==")[0].lower() for e in entries}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["test"], *PROJECT["dependency-groups"]["lint"]]
    names = {_distribution(w) for w in wanted}
    assert names <= locked, "call make lock"


def _distribution(requirement: str) -> str:
    for mark in "[<>=! ":
        requirement = requirement.partition(mark)[0]
    return requirement.lower()


def test_runtime_has_the_versions_that_are_tested() -> None:
    entries = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {e.split("==")[0]: e.split("==")[1].split()[0] for e in entries if "==" in e}
    runtime = json.loads((ROOT / "spotsurfer" / "runtime" / "runtime.lock").read_text())
    assert {w["name"]: w["version"] for w in runtime["wheels"]} == {w["name"]: locked[w["name"]] for w in runtime["wheels"]}


def test_setup_script_is_shell_that_any_sh_reads() -> None:
    for script in ("scripts/host.sh", ".ci/run"):
        subprocess.run(["sh", "-n", Path(ROOT, script)], check=True)
