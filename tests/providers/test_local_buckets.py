"""Folders of the host that boxes read as buckets."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from spotsurfer_providers.local.box.network import listening_socket
from spotsurfer_providers.local.object_gateway.folder_store import Objects
from spotsurfer_providers.local.object_gateway.server import Gateway, Scope
from spotsurfer_providers.local.provider import LocalProvider
from spotsurfer_providers.local.settings import read_settings
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError

from spotsurfer.model.errors import ConfigError
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.provider import ProviderHost


def test_a_bucket_is_read_and_never_written_and_the_store_keeps_its_scope(tmp_path: Path) -> None:
    for name in ("store/jobs/j", "store/jobs/other", "lab/reads"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x").write_text(name)
    gateway = Gateway(
        listening_socket("127.0.0.1", 0),
        Objects(tmp_path / "store", "box"),
        Scope("j", 1),
        {"lab": Objects(tmp_path / "lab", "box")},
    )
    thread = threading.Thread(target=gateway.serve_forever, args=(0.01,))
    thread.start()
    options = {"endpoint": f"http://127.0.0.1:{gateway.socket.getsockname()[1]}", "allow_http": "true", "region": "us-east-1"}
    options |= {"access_key_id": "a", "secret_access_key": "b", "virtual_hosted_style_request": "false"}
    try:
        lab, store = open_store("s3://lab", options), open_store("s3://store", options)
        assert [x.key for x in lab.list("reads/")] == ["reads/x"]
        assert lab.get("reads/x") == b"lab/reads"
        for refused in (lambda: lab.put("reads/y", b"1"), lambda: lab.delete(["reads/x"]), lambda: store.get("jobs/other/x")):
            with pytest.raises(StoreError, match=r"may not|AccessDenied|403"):
                refused()
        assert store.get("jobs/j/x") == b"store/jobs/j"
        assert (tmp_path / "lab/reads/x").exists()
        with pytest.raises(StoreError, match="the buckets here are lab, store"):
            open_store("s3://elsewhere", options).get("x")
    finally:
        gateway.shutdown()
        thread.join()
        gateway.server_close()


@pytest.mark.parametrize(
    ("buckets", "words"),
    [
        ({"store": "/tmp"}, "is not .store"),
        ({"No": "/tmp"}, "3 to 63 small letters"),
        ({"lab": "relative"}, "absolute path of a folder"),
    ],
)
def test_settings_that_make_no_sense_are_refused(buckets: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_settings({"buckets": buckets})


def test_settings_are_read(tmp_path: Path) -> None:
    assert read_settings({"buckets": {"lab": str(tmp_path)}}).buckets == {"lab": str(tmp_path)}


@pytest.mark.parametrize("bucket", ["", "data", "data/store", "data/store/jobs", "elsewhere/store", "link"])
def test_a_folder_with_what_is_the_controllers_is_no_bucket(tmp_path: Path, bucket: str) -> None:
    """Jobs read all of a bucket: the key of the family and other jobs' checkpoints would be among it."""
    for name in ("data/store/jobs", "elsewhere/store", "lab"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    host = ProviderHost("family", tmp_path / "data", (tmp_path / "elsewhere/store").as_uri(), SystemClock())
    with pytest.raises(ConfigError, match=r"buckets\.lab is .* is the controller's own"):
        LocalProvider(read_settings({"buckets": {"lab": str(tmp_path / bucket)}}), host)
    assert LocalProvider(read_settings({"buckets": {"lab": str(tmp_path / "lab")}}), host).name == "local"
