"""What is installed: four packages and nothing else, equal versions, entry points that load; what others can build it from."""

import ast
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
from support import package
from support.tree import ROOT, own_files

import spotsurfer
from spotsurfer.agent_runtime import recipe

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {"spotsurfer", *(f"spotsurfer_{name}" for name in ("wire", "agent", "policies", "providers", "lab"))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(package.build("wheel", ROOT, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    return package.unpacked(package.build("sdist", ROOT, folder / "made"), folder / "unpacked")


def test_sdist_is_the_project(sources: Path) -> None:
    """Its documents, tests and all, so that whoever has it can build and try what we do."""
    made = {p.relative_to(sources) for p in sources.rglob("*") if p.is_file()}
    assert made == {p.relative_to(ROOT) for p in own_files()} | {Path("PKG-INFO")}


def test_wheel_of_the_sdist_is_the_wheel_of_the_checkout(sources: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    with zipfile.ZipFile(package.build("wheel", sources, tmp_path)) as again:
        assert _content(again) == _content(wheel)


def _content(archive: zipfile.ZipFile) -> dict[str, int]:
    return {i.filename: i.CRC for i in archive.infolist()}


def test_wheel_holds_four_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == PACKAGES | {f"spotsurfer-{spotsurfer.__version__}.dist-info"}


def test_wheel_holds_the_data(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"spotsurfer/dashboard/templates/base.html", "spotsurfer/dashboard/static/dashboard.css"} <= names
    assert {"spotsurfer/agent_runtime/runtime.lock", "spotsurfer/py.typed", "spotsurfer_agent/py.typed"} <= names
    share = {n.removeprefix("spotsurfer/share/") for n in names if n.startswith("spotsurfer/share/")}
    folders = ROOT / "terraform", ROOT / "monitoring"
    written = {str(p.relative_to(ROOT)) for p in own_files() if any(map(p.is_relative_to, folders))}
    assert share == {"config.example.toml"} | written
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
    """Neither less nor more; and its tests run in an environment that has the same."""
    brought = {w["name"] for w in json.loads((ROOT / "spotsurfer" / "agent_runtime" / "runtime.lock").read_text())["wheels"]}
    imported = set().union(*(_imported(p) for top in ("agent", "wire") for p in (ROOT / top).rglob("*.py")))
    owners = importlib.metadata.packages_distributions()
    wanted = {_distribution(d) for m in imported for d in owners.get(m, ())} - {"spotsurfer"}
    assert wanted - recipe.NEEDED_BY_WHEELS == brought - recipe.NEEDED_BY_WHEELS
    here = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["agent"]]
    assert brought - recipe.NEEDED_BY_WHEELS <= {_distribution(d) for d in here}


def _imported(path: Path) -> set[str]:
    """Top names of the modules that a file imports, those named to `import_module` among them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found |= {str(a.value).partition(".")[0] for a in node.args if isinstance(a, ast.Constant)}
    return found


def test_a_controller_needs_no_library_of_the_agents_alone_and_of_no_extra() -> None:
    """Every module of the controller, its policies and its boxes loads where these are absent."""
    modules = sorted(
        ".".join(p.relative_to(top).with_suffix("").parts).removesuffix(".__init__")
        for top in (ROOT, *(ROOT / name for name in ("wire", "policies", "providers", "lab")))
        for p in (top / f"spotsurfer{'' if top == ROOT else '_' + top.name}").rglob("*.py")
        if p.name != "__main__.py" and not {"aws", "gcp", "migrations"} & set(p.parts)
    )
    absent = ["boto3", "botocore", "google", "paramiko", "cuda", "pynvml", "xxhash"]
    text = f"""
import importlib, sys
sys.modules |= dict.fromkeys({absent!r})
for name in {modules!r}: importlib.import_module(name)
"""
    assert len(modules) > 200
    subprocess.run([sys.executable, "-c", text], check=True)


def test_lock_names_every_dependency_with_a_hash() -> None:
    entries = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()[1:]
    assert all("==" in e and "--hash=sha256:" in e for e in entries)
    locked = {e.split("==")[0].lower() for e in entries}
    groups = [w for group in PROJECT["dependency-groups"].values() for w in group if isinstance(w, str)]
    of_extras = [w for extra in PROJECT["project"]["optional-dependencies"].values() for w in extra]
    names = {_distribution(w) for w in [*PROJECT["project"]["dependencies"], *groups, *of_extras]}
    assert names <= locked, "call make lock"


def _distribution(requirement: str) -> str:
    for mark in "[<>=! ":
        requirement = requirement.partition(mark)[0]
    return requirement.lower().replace("_", "-")


def test_runtime_has_the_versions_that_are_tested() -> None:
    entries = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {e.split("==")[0]: e.split("==")[1].split()[0] for e in entries if "==" in e}
    runtime = json.loads((ROOT / "spotsurfer" / "agent_runtime" / "runtime.lock").read_text())
    assert {w["name"]: w["version"] for w in runtime["wheels"]} == {w["name"]: locked[w["name"]] for w in runtime["wheels"]}


def test_setup_script_is_shell_that_any_sh_reads() -> None:
    for script in ("scripts/host.sh", ".ci/run"):
        subprocess.run(["sh", "-n", Path(ROOT, script)], check=True)
