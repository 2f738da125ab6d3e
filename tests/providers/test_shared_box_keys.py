"""Jobs that share a box: the gateway tells them apart by their keys, and the link alone opens nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local.box.network import listening_socket
from spotsurfer_providers.local.object_gateway.folder_store import Objects
from spotsurfer_providers.local.object_gateway.server import Gateway, Keys
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from spotsurfer_wire.store.port import StoreError

KEYS = Keys(b"of this host", "token")
OPENS = Callable[[str], ObstoreStore]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[OPENS]:
    for key in ("jobs/a/x", "jobs/b/x", "machines/token/000001", "machines/another/000001", "runtime/r"):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_text(key)
    gateway = Gateway(listening_socket("127.0.0.1", 0), Objects(tmp_path, "box"), KEYS)
    thread = threading.Thread(target=gateway.serve_forever, args=(0.01,))
    thread.start()
    options = {"endpoint": f"http://127.0.0.1:{gateway.socket.getsockname()[1]}", "allow_http": "true", "region": "us-east-1"}
    options |= {"secret_access_key": "b", "virtual_hosted_style_request": "false"}
    yield lambda key: open_store("s3://store", {**options, "access_key_id": key})
    gateway.shutdown()
    thread.join()
    gateway.server_close()


def test_each_reaches_its_own_job_and_nobody_elses(opens: OPENS) -> None:
    for mine, other in (("a", "b"), ("b", "a")):
        store = opens(KEYS.make(mine, 1))
        assert store.get(f"jobs/{mine}/x") == f"jobs/{mine}/x".encode()
        store.put(f"live/{mine}.000001", b"report")
        for refused in (f"jobs/{other}/x", "machines/token/000001", f"live/{mine}.000002"):
            with pytest.raises(StoreError, match=r"may not|AccessDenied|403"):
                store.get(refused)


def test_the_machine_reads_its_orders_and_nothing_of_a_job(opens: OPENS) -> None:
    store = opens(KEYS.make())
    assert store.get("machines/token/000001") == b"machines/token/000001"
    assert store.get("machines/token/000002") is None
    for refused in ("jobs/a/x", "machines/another/000001"):
        with pytest.raises(StoreError, match=r"may not|AccessDenied|403"):
            store.get(refused)
    with pytest.raises(StoreError, match=r"may not|AccessDenied|403"):
        store.create("machines/token/000003", b"")


@pytest.mark.parametrize(
    "key",
    [
        "a.1",
        "a.1.",
        "a.1." + "0" * 64,
        Keys(b"of another host", "token").make("a", 1),
        Keys(b"of this host", "other").make("a", 1),
    ],
)
def test_a_key_that_the_controller_did_not_make_opens_nothing(opens: OPENS, key: str) -> None:
    with pytest.raises(StoreError, match=r"none of this box|InvalidAccessKeyId|403"):
        opens(key).get("jobs/a/x")
