"""Every kind of store keeps the contract of `spotsurfer_wire.store.port`: a folder, memory, S3 and Cloud Storage."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from support.gce import server, storage

Makes = Callable[[Path, ExitStack], ObstoreStore]


def folder(path: Path, _: ExitStack) -> ObstoreStore:
    return open_store(f"file://{path}/store")


def memory(_: Path, __: ExitStack) -> ObstoreStore:
    return open_store("memory:///")


def s3(_: Path, stack: ExitStack) -> ObstoreStore:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    stack.callback(server.stop)
    host, port = server.get_host_and_port()
    options = {
        "endpoint": f"http://{host}:{port}", "region": "us-east-1", "access_key_id": "a", "secret_access_key": "b",
        "allow_http": "true", "virtual_hosted_style_request": "false",
    }  # fmt: skip
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    bucket = f"bucket-{secrets.token_hex(8)}"  # all of moto's servers share what they hold
    boto3.client("s3", endpoint_url=options["endpoint"], region_name="us-east-1", **keys).create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}/fleet", options)


def google(_: Path, stack: ExitStack) -> ObstoreStore:
    return open_store(f"gs://{storage.BUCKET}/fleet", stack.enter_context(server.serve()).options())


@pytest.fixture(params=[folder, memory, s3, google], ids=lambda make: make.__name__)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObstoreStore]:
    make: Makes = request.param
    with ExitStack() as stack:
        yield make(tmp_path, stack)


def test_an_absent_object_is_created_once(store: ObstoreStore) -> None:
    assert store.create("a/b", b"first")
    assert not store.create("a/b", b"second")
    assert store.get("a/b") == b"first"


def test_of_many_who_create_one_wins(store: ObstoreStore) -> None:
    for round_ in range(5):
        with ThreadPoolExecutor(12) as pool:
            won = list(pool.map(lambda n: store.create(f"race/{round_}", str(n).encode()), range(12)))  # noqa: B023 -- ends here
        assert won.count(True) == 1
        assert store.get(f"race/{round_}") == str(won.index(True)).encode()


def test_an_object_is_overwritten_and_its_version_changes(store: ObstoreStore) -> None:
    store.put("k", b"one")
    (before,) = store.list("")
    store.put("k", b"three")
    (after,) = store.list("")
    assert store.get("k") == b"three"
    assert (after.key, after.size) == ("k", 5)
    assert after.version != before.version


def test_what_is_absent_is_none_and_may_be_deleted(store: ObstoreStore) -> None:
    assert store.get("no") is None
    assert store.get_range("no", 0, 1) is None
    store.put("k", b"x")
    store.delete(["k", "no"])
    assert store.get("k") is None
    store.delete(["k"])


def test_parts_of_an_object_end_with_it(store: ObstoreStore) -> None:
    store.put("k", b"0123456789")
    assert store.get_range("k", 2, 3) == b"234"
    assert store.get_range("k", 8, 10) == b"89"


def test_listings_are_in_order_go_on_after_a_key_and_know_folders(store: ObstoreStore) -> None:
    keys = [f"jobs/{job}/x{n:04}" for job in ("a", "a.b", "ab") for n in range(40)]
    for key in reversed(keys):
        store.put(key, b"1")
    assert [e.key for e in store.list("jobs/")] == sorted(keys)
    assert [e.key for e in store.list("jobs/a/")] == sorted(k for k in keys if k.startswith("jobs/a/"))
    assert [e.key for e in store.list("jobs/a/", after="jobs/a/x0037")] == ["jobs/a/x0038", "jobs/a/x0039"]
    assert store.folders("jobs/") == ("a", "a.b", "ab")


def test_large_and_empty_objects_come_back_whole(store: ObstoreStore) -> None:
    data = bytes(range(256)) * 20_000
    store.create_later("large", data)
    store.create_later("empty", b"")
    store.sync()
    assert store.get("large") == data
    assert store.get("empty") == b""
    assert store.get_range("large", 5_000_000, 3) == data[5_000_000:5_000_003]


def test_names_with_signs(store: ObstoreStore) -> None:
    for key in ("a b/c", "ü/ß", "100%/x", "a+b", "[x]~'q'"):
        store.put(key, key.encode())
        assert store.get(key) == key.encode()
    assert {e.key for e in store.list("")} == {"a b/c", "ü/ß", "100%/x", "a+b", "[x]~'q'"}
