"""The runtime as an instance meets it: programs start from anywhere, and where there is nothing but a kernel and a shell."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.tree import ROOT

import spotsurfer
from spotsurfer.agent_runtime import base_layer, find, recipe, unpack

OUT = ROOT / "build" / "runtime"
SHELL_FILES = ("/bin/sh", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2")
PROBE = """
import json, os, sys, asyncio, ctypes, ssl, subprocess, urllib.request
import blake3, obstore.store, zstandard, spotsurfer_agent, spotsurfer_wire.messages, spotsurfer_wire.store.obstore
child = subprocess.run([sys.executable, "-c", "import spotsurfer_agent; print('child')"], capture_output=True, text=True)
print(json.dumps({
    "python": sys.version.split()[0], "path": sys.path, "version": spotsurfer_agent.__version__, "child": child.stdout,
    "environment": sorted(os.environ), "user_site": sys.flags.no_user_site, "bytecode": sys.dont_write_bytecode,
    "threads": asyncio.run(asyncio.to_thread(lambda: 1)), "argv": sys.argv[1:],
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh copy in a folder whose name needs quoting."""
    runtime = find(OUT)
    assert runtime is not None, "call make setup"
    target = tmp_path_factory.mktemp("runtime") / "it's a $place"
    unpack(runtime, target)
    return target


def _probe(starter: list[str], environment: dict[str, str], cwd: Path | None = None) -> dict[str, object]:
    command = [*starter, "-c", PROBE, "a b", "$c"]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_python_brings_everything_itself(folder: Path) -> None:
    found = _probe([str(folder / "bin/spotsurfer-python")], {"PATH": "/nowhere"})
    paths = found["path"]
    assert isinstance(paths, list)
    assert all(p.startswith(str(folder)) for p in paths), "nothing of the host's Python"
    assert found["version"] == spotsurfer.__version__
    assert found["child"] == "child\n", "sys.executable starts again"
    assert found["argv"] == ["a b", "$c"]
    assert (found["user_site"], found["bytecode"], found["threads"]) == (1, True, 1)


def test_nothing_of_the_starter_is_left_in_the_environment(folder: Path) -> None:
    """A job must not inherit the agent's Python."""
    found = _probe([str(folder / "bin/spotsurfer-python")], {"PATH": "/bin", "KEPT": "1"})
    names = found["environment"]
    assert isinstance(names, list)
    assert not [n for n in names if n.startswith(("PYTHON", "LD_"))]
    assert "KEPT" in names


def test_surroundings_do_not_reach_in(folder: Path, tmp_path: Path) -> None:
    """Neither the caller's Python settings nor a module in the current folder nor a preloaded library."""
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')")
    hostile = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "LD_PRELOAD": "/nowhere.so", "PATH": "/bin"}
    found = _probe([str(folder / "bin/spotsurfer-python")], hostile, cwd=tmp_path)
    assert found["version"] == spotsurfer.__version__


def test_starter_works_with_a_relative_path(folder: Path) -> None:
    assert _probe(["./spotsurfer-python"], {"PATH": "/bin"}, cwd=folder / "bin")["child"] == "child\n"


@pytest.mark.parametrize(
    ("tool", "argument", "says"),
    [("criu", "--version", "Version: 4."), ("ip", "-V", "iproute2"), ("tc", "-V", "iproute2"), ("nft", "--version", "nftables"),
     ("btrfs", "--version", "btrfs-progs"), ("tini-static", "--version", "tini version")],
)  # fmt: skip
def test_tool_starts(folder: Path, tool: str, argument: str, says: str) -> None:
    done = subprocess.run([folder / "bin" / tool, argument], env={}, capture_output=True, text=True, check=True)
    assert says in done.stdout


def test_description_says_what_is_inside(folder: Path) -> None:
    said = json.loads((folder / "RUNTIME.json").read_text())
    assert said["agent_version"] == spotsurfer.__version__
    assert said["versions"]["criu"].startswith("4.")
    for path in (said["loader"], said["libraries"], *said["tools"].values()):
        assert (folder / path).exists()
    assert {"name", "version", "sha256", "path"} <= set(said["packages"][0])


def test_no_link_leaves_the_runtime_or_hangs(folder: Path) -> None:
    root = folder.resolve()
    for at, folders, names in os.walk(root):
        for path in (Path(at) / n for n in (*folders, *names)):
            assert path.exists(), f"{path} points nowhere"
            assert path.resolve().is_relative_to(root), f"{path} leads out"


def test_size_is_bearable() -> None:
    runtime = find(OUT)
    assert runtime is not None
    assert runtime.path.stat().st_size < 80_000_000


@pytest.mark.real
def test_starts_where_there_is_only_a_shell(folder: Path, tmp_path: Path) -> None:
    """A root folder with /bin/sh, its C library and this runtime: no tools, no /proc, no /etc."""
    root = tmp_path / "root"
    for name in SHELL_FILES:
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, root / name[1:])
    shutil.copytree(folder, root / "opt/runtime", symlinks=True)
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"
    for tool in ("criu", "btrfs", "nft", "tini-static"):
        subprocess.run([chroot, root, f"/opt/runtime/bin/{tool}", "--version"], env={}, check=True, capture_output=True)
    found = _probe([chroot, str(root), "/opt/runtime/bin/spotsurfer-python"], {})
    assert found["child"] == "child\n"


def test_two_builds_are_equal(runtime_folder: Path, tmp_path: Path) -> None:
    """From the same packages, in another folder, byte by byte."""
    ingredients = recipe.read(runtime_folder / "RUNTIME.json")
    here = base_layer.cached(OUT, ingredients)
    assert here is not None, "call make setup"
    for cache in ("debs", "wheels"):
        (tmp_path / cache).symlink_to(OUT / cache)
    again = base_layer.build(tmp_path, ingredients, say=lambda _line: None)
    assert again.member.read_bytes() == here.member.read_bytes()
