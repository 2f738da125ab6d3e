"""As `nobody` on the controller's host: nothing that the controller keeps can be read, listed, changed or talked to."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_wire.store.obstore import open_store

from spotsurfer.config.settings import Settings
from spotsurfer.controller import wiring
from spotsurfer.web.app import load_token
from spotsurfer.web.server import unix_socket

pytestmark = pytest.mark.real

PYTHON = "/usr/bin/python3"  # this one may lie in a folder that nobody may enter
ATTEMPTS = r"""
import json, os, socket, sys
def read(path):
    with open(path, "rb") as f: f.read(1)
def write(path):
    with open(path, "ab") as f: f.write(b"x")
def make(path):
    with open(path + "/made", "xb"): pass
def connect(path):
    with socket.socket(socket.AF_UNIX) as s: s.connect(path)
verbs = {"read": read, "write": write, "list": os.listdir, "make": make, "connect": connect, "remove": os.unlink}
done = []
for verb, path in json.load(sys.stdin):
    try:
        verbs[verb](path)
    except PermissionError:
        continue
    except OSError as e:
        done.append([verb, path, str(e)])
    else:
        done.append([verb, path, "done"])
print(json.dumps(done))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may enter: what pytest gives is closed to others, and would hide a mistake."""
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)
    os.umask(before)


def as_nobody(attempts: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """What of it was not refused for want of rights."""
    done = subprocess.run(
        [PYTHON, "-I", "-c", ATTEMPTS],
        input=json.dumps(attempts),
        user="nobody",
        group="nogroup",
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [(verb, path, said) for verb, path, said in json.loads(done.stdout)]


def test_everything_is_out_of_reach(folder: Path) -> None:
    data, store = folder / "data", folder / "store"
    settings = Settings(controller={"data_dir": str(data)}, store={"url": store.as_uri()})  # type: ignore[arg-type]
    controller = wiring.build(settings)
    listener = unix_socket(data / "api.sock")
    try:
        load_token(data / "token")
        (data / "uploads").mkdir(exist_ok=True)
        (data / "uploads/half").write_bytes(b"an input under way")
        open_store(store.as_uri()).put("jobs/job/chunks/ab/x", b"a job's memory")
        (folder / "open").write_bytes(b"x")
        files = [p for top in (data, store) for p in top.rglob("*") if p.is_file()]
        folders = [data, store, *(p for top in (data, store) for p in top.rglob("*") if p.is_dir())]
        assert {"state.db", "store.key", "token", "half", "x"} <= {p.name for p in files}
        attempts = [(verb, str(p)) for p in files for verb in ("read", "write", "remove")]
        attempts += [(verb, str(p)) for p in folders for verb in ("list", "make")]
        attempts += [("connect", str(data / "api.sock"))]
        attempts += [("read", f"/proc/{os.getpid()}/{name}") for name in ("environ", "mem", "maps")]
        assert as_nobody([("read", str(folder / "open")), *attempts]) == [("read", str(folder / "open"), "done")]
    finally:
        listener.close()
        controller.stop()


def test_a_socket_outside_of_the_data_folder_is_closed_too(folder: Path) -> None:
    listener = unix_socket(folder / "api.sock")
    try:
        assert as_nobody([("connect", str(folder / "api.sock"))]) == []
    finally:
        listener.close()
