"""Runtimes in the store: pushed once, listed with what they are, and said on the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from spotsurfer_wire import object_keys
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreUnreachable
from support.dict_store import DictStore

from spotsurfer.agent_runtime import Runtime, base_layer, builder, recipe
from spotsurfer.agent_runtime.provision import push, stored
from spotsurfer.cli.main import main
from spotsurfer.model.errors import HostUnfit, StoreUnwritable


def a_runtime(folder: Path, body: bytes = b"tarball") -> Runtime:
    """As `build` leaves it."""
    folder.mkdir(exist_ok=True)
    sha = hashlib.sha256(body).hexdigest()
    path = folder / f"{sha}.tar.gz"
    path.write_bytes(body)
    inputs = builder._inputs(base_layer.folder(folder, recipe.read(recipe.shipped())))
    (folder / "latest.json").write_text(json.dumps({"sha256": sha, "agent_version": "7", "inputs": inputs}))
    (folder / "current").mkdir(exist_ok=True)
    (folder / "current" / "RUNTIME.json").write_text("{}")
    return Runtime(path, sha, "7")


def test_it_is_sent_once(tmp_path: Path) -> None:
    store, runtime = DictStore(), a_runtime(tmp_path)
    assert push(store, runtime)
    assert not push(store, runtime)
    assert store.objects == {object_keys.runtime_key(runtime.sha256): b"tarball"} and len(store.writes) == 1


def test_half_of_one_is_replaced(tmp_path: Path) -> None:
    store, runtime = DictStore(), a_runtime(tmp_path)
    store.objects[object_keys.runtime_key(runtime.sha256)] = b"tar"
    assert push(store, runtime)
    assert store.objects[object_keys.runtime_key(runtime.sha256)] == b"tarball"


def test_the_list_passes_over_what_is_none(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    one, two = ("1" * 64, "2" * 64)
    for name in (f"{one}.tar.gz", f"{two}.tar.gz", "README", "3.tar.gz", f"{one}.tar.gz.old"):
        store.put(f"runtime/{name}", b"x" * 5)
    found = stored(store)
    assert {r.sha256 for r in found} == {one, two} and {r.size_bytes for r in found} == {5}
    assert all(r.modified is not None and r.modified > 1e9 for r in found)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("SPOTSURFER_STORE__URL", (tmp_path / "store").as_uri())
    monkeypatch.setenv("SPOTSURFER_RUNTIME__PATH", str(tmp_path / "runtime"))
    return tmp_path


def listed(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capfd.readouterr()
    assert main(["agent-runtime", "list", "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capfd.readouterr().out)["runtimes"]
    return found


def test_the_commands(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "runtime").write_text("in the way")
    assert main(["agent-runtime", "push"]) == HostUnfit.exit_code
    assert listed(capfd) == []
    (here / "runtime").unlink()
    old = a_runtime(here / "runtime", b"old")
    assert main(["agent-runtime", "push", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"sha256": old.sha256, "sent": True}
    new = a_runtime(here / "runtime", b"newer")
    lines = {x["sha256"]: x for x in listed(capfd)}
    assert lines[new.sha256] == {"sha256": new.sha256, "size_bytes": 5, "age_seconds": None, "stored": False, "used": True}
    assert (lines[old.sha256]["stored"], lines[old.sha256]["used"]) == (True, False)
    assert main(["agent-runtime", "push"]) == 0
    assert main(["agent-runtime", "push"]) == 0
    assert "was in the store already" in capfd.readouterr().out
    assert {x["sha256"] for x in listed(capfd) if x["stored"]} == {old.sha256, new.sha256}
    assert main(["agent-runtime", "list"]) == 0
    out = capfd.readouterr().out
    assert new.sha256 in out and "days" in out


def test_a_store_that_is_down_is_named(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from spotsurfer.agent_runtime import provision

    def down(*_: object) -> None:
        raise StoreUnreachable("cut off")

    a_runtime(here / "runtime")
    monkeypatch.setattr(provision, "push", down)
    monkeypatch.setattr(provision, "stored", down)
    for command in ("push", "list"):
        assert main(["agent-runtime", command]) == StoreUnwritable.exit_code
        assert "cut off" in capfd.readouterr().err
