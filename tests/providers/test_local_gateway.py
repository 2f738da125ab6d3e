"""The object gateway as its clients use it: obstore (the agent), boto3, and plain requests."""

from __future__ import annotations

import errno
import http.client
import io
import os
import random
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import pytest
from botocore.client import Config
from botocore.exceptions import ClientError
from spotsurfer_providers.local.box.network import listening_socket
from spotsurfer_providers.local.object_gateway.folder_store import Objects
from spotsurfer_providers.local.object_gateway.s3_protocol import BLOCK_BYTES
from spotsurfer_providers.local.object_gateway.server import Gateway, Scope
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from spotsurfer_wire.store.port import StoreDenied, StoreFull

HOME = "jobs/j/"
FREE = f"{HOME}partial/"  # may be written again and removed


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(listening_socket("127.0.0.1", 0), Objects(tmp_path, "box-1"), Scope("j", 7))
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def endpoint(gateway: Gateway) -> str:
    return f"http://127.0.0.1:{gateway.socket.getsockname()[1]}"


@pytest.fixture
def store(endpoint: str) -> ObstoreStore:
    options = {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    return open_store("s3://store", {**options, "virtual_hosted_style_request": "false", "allow_http": "true"})


@pytest.fixture
def local(tmp_path: Path) -> ObstoreStore:
    return open_store(f"file://{tmp_path}")


@pytest.fixture
def s3(endpoint: str) -> Iterator[Any]:
    session = boto3.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
    client = session.client(
        "s3", endpoint_url=endpoint, config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    )
    yield client
    client.close()


def test_of_a_folder_it_reads_what_its_specification_names(store: ObstoreStore, local: ObstoreStore) -> None:
    mine, other = (object_keys.home_scope("ada", home) for home in ("/home/ada/wf", "/home/ada/x"))
    for scope in (mine, other):
        local.put(object_keys.home_file_key(scope, "a" * 64), b"sent")
    with pytest.raises(StoreDenied):
        store.get(object_keys.home_file_key(mine, "a" * 64))
    local.put(object_keys.spec_key("j"), json_codec.encode(Spec("j", ["x"], home="/home/ada/wf", home_scope=mine)))
    assert store.get(object_keys.home_file_key(mine, "a" * 64)) == b"sent"
    with pytest.raises(StoreDenied):
        store.get(object_keys.home_file_key(other, "a" * 64))
    with pytest.raises(StoreDenied):
        store.create(object_keys.home_file_key(mine, "b" * 64), b"made up")


def raw(endpoint: str, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=5)
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in ({"Content-Length": str(len(body))} | {k.replace("_", "-"): v for k, v in headers.items()}).items():
        connection.putheader(name, value)
    connection.endheaders(body)
    reply = connection.getresponse()
    reply.text = reply.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return reply


# ---------------------------------------------------------------- obstore


def test_create_is_won_once(store: ObstoreStore) -> None:
    key = HOME + "head/00000001.json"
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.create(key, bytes([n])), range(8)))
    assert sorted(won) == [False] * 7 + [True]
    assert store.get(key) == bytes([won.index(True)])


def test_put_get_list_delete(store: ObstoreStore) -> None:
    assert store.get(FREE + "x") is None
    store.put(FREE + "x", b"")
    assert store.get(FREE + "x") == b""
    before = store.list(FREE)
    store.put(FREE + "x", b"")
    after = store.list(FREE)
    assert [x.key for x in after] == [FREE + "x"]
    assert before[0].version != after[0].version
    store.delete([FREE + "x", FREE + "y"])
    assert store.list(FREE) == []


@pytest.mark.parametrize("name", ["a b", "ü", "a#b", "50%", "a+b", "~[x]", "a%20b", "q?x", "a&b<c>'\"", "日本/x.y", "-", "#x"])
def test_names_are_the_same_on_both_sides(store: ObstoreStore, local: ObstoreStore, name: str) -> None:
    store.put(FREE + name, b"1")
    assert local.get(FREE + name) == b"1"
    local.put(FREE + name + "2", b"2")
    assert store.get(FREE + name + "2") == b"2"
    assert [x.key for x in store.list(FREE)] == [x.key for x in local.list(FREE)]


def test_a_large_file_in_parts(store: ObstoreStore, local: ObstoreStore, tmp_path: Path) -> None:
    data = os.urandom(23 << 20)
    (tmp_path / "in").write_bytes(data)
    assert store.put_file(FREE + "out/big", tmp_path / "in") == len(data)
    assert local.get(FREE + "out/big") == data
    assert store.get_file(FREE + "out/big", tmp_path / "back") == len(data)
    assert (tmp_path / "back").read_bytes() == data
    assert not list((tmp_path / ".staged").glob("*/*"))


def test_folders_that_vanish_are_made_again(store: ObstoreStore, tmp_path: Path) -> None:
    store.put(FREE + "a/b/x", b"1")
    store.delete([FREE + "a/b/x"])
    (tmp_path / FREE / "a/b").rmdir()
    (tmp_path / FREE / "a").rmdir()
    assert store.create(FREE + "a/b/x", b"2")
    assert store.get(FREE + "a/b/x") == b"2"


def test_what_stands_in_the_way_is_a_refusal_and_no_stumble(store: ObstoreStore, tmp_path: Path) -> None:
    (tmp_path / "jobs/j").mkdir(parents=True)
    (tmp_path / "jobs/j/chunks").write_text("a file where a folder should be")
    for key in (f"{HOME}chunks/x", f"{HOME}chunks/ab/x"):
        with pytest.raises(StoreDenied):
            store.create(key, b"x")


def test_a_thousand_keys_and_more(store: ObstoreStore, tmp_path: Path) -> None:
    (tmp_path / FREE / "log").mkdir(parents=True)
    for n in range(2300):
        (tmp_path / FREE / f"log/{n:05d}").touch()
    assert [x.key[-5:] for x in store.list(FREE + "log/")] == [f"{n:05d}" for n in range(2300)]
    assert len(store.list(FREE + "log/", after=FREE + "log/02200")) == 99


def test_denied_is_denied_and_full_is_full(store: ObstoreStore, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt in (lambda: store.list("live/"), lambda: store.get("jobs/k/x"), lambda: store.put("jobs/k/x", b"")):
        with pytest.raises(StoreDenied):
            attempt()

    def full() -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gateway.objects, "stage", full)
    with pytest.raises(StoreFull):
        store.put(FREE + "x", b"1" * 100_000)


# ---------------------------------------------------------------- the scope


ALLOWED = {
    "GET": ["runtime/x", HOME + "SPEC.json", HOME + "SECRETS", HOME + "in/a", HOME + "desired/000007.json", "live/j.000007"],
    "PUT": [
        HOME + "out/000007/x",
        HOME + "log/000007/out-0",
        HOME + "order.json",
        FREE + "000001-000007/LIST",
        "live/j.000007",
    ],
    "DELETE": [HOME + "intents/000007-000001", HOME + "log/000007/out-0", FREE + "000001-000006/LIST"],
    "create": [
        HOME + x
        for x in ("IMAGE.json", "INPUTS.json", "head/00000002.json", "chunks/ab/x", "packs/ab/x", "checkpoints/x/MANIFEST")
    ],
}
KEPT = [  # once it is there
    HOME + x
    for x in (
        "SPEC.json",
        "SECRETS",
        "IMAGE.json",
        "INPUTS.json",
        "in/a",
        "desired/000007.json",
        "head/00000001.json",
        "checkpoints/000007-000001/MANIFEST",
        "checkpoints/000007-000001/PROVEN",
        "condemned.json",
        "chunks/ab/x",
        "packs/ab/x",
        "out/000006/x",
        "log/000006/out-0",
        "intents/000006-000001",
    )
]
OTHERS = [
    "jobs/k/x",
    "jobs/jj/x",
    "live/j.000008",
    "live/k.000007",
    "spotsurfer.json",
    "controller/00000001.json",
    "access/j.000007",
]
REFUSED = {
    "GET": [*OTHERS, "jobs/j"],
    "PUT": [*OTHERS, *KEPT, "runtime/x", "live/j.7", "x", HOME + "intents/000007-000001"],
    "begin": [*OTHERS, *KEPT],
    "DELETE": [*OTHERS, *KEPT, "runtime/x", "live/j.000007", HOME + "out/000007/x", HOME + "log/000006/out-0"],
    "create": [*OTHERS, HOME + "desired/000008.json", HOME + "condemned.json", HOME + "checkpoints/x/PROVEN"],
}


def ask(endpoint: str, method: str, key: str) -> int:
    if method == "create":
        return raw(endpoint, "PUT", f"/store/{key}", b"x", If_None_Match="*").status
    if method == "begin":  # of an upload in parts
        return raw(endpoint, "POST", f"/store/{key}?uploads").status
    return raw(endpoint, method, f"/store/{key}", b"x" if method == "PUT" else b"").status


@pytest.mark.parametrize(("method", "key"), [(m, k) for m, keys in ALLOWED.items() for k in keys])
def test_allowed(endpoint: str, method: str, key: str) -> None:
    assert ask(endpoint, method, key) in (200, 204, 404)


@pytest.mark.parametrize(("method", "key"), [(m, k) for m, keys in REFUSED.items() for k in keys])
def test_refused(endpoint: str, method: str, key: str, tmp_path: Path) -> None:
    assert ask(endpoint, method, key) == 403
    assert not (tmp_path / key).exists()


@pytest.mark.parametrize("key", KEPT)
def test_what_was_written_stays(endpoint: str, s3: Any, local: ObstoreStore, key: str) -> None:
    """Whoever has the box's way to the store: not by a put, nor in parts, nor among others, nor with a condition."""
    local.put(key, b"as it was")
    assert ask(endpoint, "PUT", key) == 403
    assert ask(endpoint, "create", key) in (403, 412)
    assert ask(endpoint, "DELETE", key) == 403
    assert raw(endpoint, "PUT", f"/store/{key}", b"x", If_Match="*").status == 501
    assert raw(endpoint, "PUT", f"/store/{key}", b"", x_amz_copy_source=f"/store/{HOME}order.json").status == 501
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.create_multipart_upload(Bucket="store", Key=key)
    assert s3.delete_objects(Bucket="store", Delete={"Objects": [{"Key": key}]})["Errors"][0]["Code"] == "AccessDenied"
    assert local.get(key) == b"as it was"


@pytest.mark.parametrize("prefix", ["", "jobs/", "jobs/j", "jobs/k/", "live/", "jobs/jj/"])
def test_refused_listings(endpoint: str, prefix: str) -> None:
    assert raw(endpoint, "GET", f"/store?list-type=2&prefix={prefix}").status == 403


@pytest.mark.parametrize(
    "key",
    [
        "../k/x",
        "%2e%2e/k/x",
        "/x",
        "./x",
        "x%00",
        "x/",
        "a" * 300,
        "a/" * 600 + "a",
        "x%230",
        ".staged-x",
        "a%0Ab",
        "%2F..%2F..%2Fk",
    ],
)
def test_path_tricks(endpoint: str, key: str) -> None:
    key = FREE + key
    assert raw(endpoint, "PUT", f"/store/{key}", b"x").status == 400
    assert raw(endpoint, "GET", f"/store/{key}").status == 400


def test_not_utf8_and_other_buckets(endpoint: str) -> None:
    assert raw(endpoint, "GET", "/store/jobs/j/%ff").status == 400
    assert raw(endpoint, "GET", "/other/jobs/j/x").status == 404
    assert raw(endpoint, "GET", "/store/jobs/j/partial/x?acl").status == 501
    assert raw(endpoint, "PUT", "/store/jobs/j/partial/x", b"1", If_Match='"x"').status == 501


# ---------------------------------------------------------------- boto3


def test_boto3_objects(s3: Any) -> None:
    etag = s3.put_object(Bucket="store", Key=FREE + "ü x", Body=b"0123456789")["ETag"]
    got = s3.get_object(Bucket="store", Key=FREE + "ü x", Range="bytes=2-4")
    assert (got["Body"].read(), got["ContentRange"], got["ETag"]) == (b"234", "bytes 2-4/10", etag)
    assert s3.get_object(Bucket="store", Key=FREE + "ü x", Range="bytes=-3")["Body"].read() == b"789"
    assert s3.head_object(Bucket="store", Key=FREE + "ü x")["ContentLength"] == 10
    assert s3.put_object(Bucket="store", Key=FREE + "ü x", Body=b"0123456789")["ETag"] != etag
    for call, arguments, code in (
        (s3.put_object, {"Body": b"", "IfNoneMatch": "*"}, "PreconditionFailed"),
        (s3.get_object, {"Range": "bytes=10-"}, "InvalidRange"),
        (s3.get_object, {"IfMatch": etag}, "PreconditionFailed"),
    ):
        with pytest.raises(ClientError) as e:
            call(Bucket="store", Key=FREE + "ü x", **arguments)
        assert e.value.response["Error"]["Code"] == code
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket="store", Key=FREE + "none")


def test_boto3_lists_folds_and_deletes(s3: Any) -> None:
    names = ["a", "b/1", "b/2", "b-1", "c/d/e", "z&<"]
    for name in names:
        s3.put_object(Bucket="store", Key=FREE + name, Body=b"x")
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket="store", Prefix=FREE, Delimiter="/", PaginationConfig={"PageSize": 2}
    )
    found = [
        (x.get("Key") or x["Prefix"])[len(FREE) :] for p in pages for x in p.get("Contents", []) + p.get("CommonPrefixes", [])
    ]
    assert sorted(found) == ["a", "b-1", "b/", "c/", "z&<"]
    result = s3.delete_objects(
        Bucket="store", Delete={"Objects": [{"Key": FREE + n} for n in [*names, "none"]] + [{"Key": "runtime/x"}]}
    )
    assert len(result["Deleted"]) == 7
    assert [(e["Key"], e["Code"]) for e in result["Errors"]] == [("runtime/x", "AccessDenied")]
    assert "Contents" not in s3.list_objects_v2(Bucket="store", Prefix=FREE)


def test_boto3_uploads_in_parts_and_aborts(s3: Any, tmp_path: Path) -> None:
    data = os.urandom(9 << 20)
    s3.upload_fileobj(io.BytesIO(data), "store", FREE + "big")
    back = io.BytesIO()
    s3.download_fileobj("store", FREE + "big", back)
    assert back.getvalue() == data
    name = s3.create_multipart_upload(Bucket="store", Key=FREE + "x")["UploadId"]
    part = s3.upload_part(Bucket="store", Key=FREE + "x", UploadId=name, PartNumber=1, Body=b"1")["ETag"]
    for wrong in ([], [{"PartNumber": 2, "ETag": part}], [{"PartNumber": 1, "ETag": '"ab"'}]):
        with pytest.raises(ClientError):
            s3.complete_multipart_upload(Bucket="store", Key=FREE + "x", UploadId=name, MultipartUpload={"Parts": wrong})
    s3.abort_multipart_upload(Bucket="store", Key=FREE + "x", UploadId=name)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        s3.upload_part(Bucket="store", Key=FREE + "x", UploadId=name, PartNumber=1, Body=b"1")
    assert not list((tmp_path / ".staged").glob("*/*"))


def test_a_presigned_address(s3: Any) -> None:
    s3.put_object(Bucket="store", Key=FREE + "x", Body=b"data")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "store", "Key": FREE + "x"})
    with urllib.request.urlopen(url, timeout=5) as reply:
        assert reply.read() == b"data"


# ---------------------------------------------------------------- bodies


def test_aws_chunks_within_http_chunks(endpoint: str, tmp_path: Path) -> None:
    inner = b"4;chunk-signature=ab\r\nabcd\r\n2\r\nef\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n"
    outer = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
    headers = {"Transfer_Encoding": "chunked", "x_amz_content_sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=5)
    connection.putrequest("PUT", "/store/jobs/j/partial/x")
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(outer)
    assert connection.getresponse().status == 200
    connection.close()
    assert (tmp_path / FREE / "x").read_bytes() == b"abcdef"


def test_a_torn_body_leaves_nothing(endpoint: str, tmp_path: Path) -> None:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=5)
    connection.putrequest("PUT", "/store/jobs/j/partial/x")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"only this")
    assert connection.sock is not None
    connection.sock.shutdown(1)
    assert connection.getresponse().status == 400
    connection.close()
    assert not (tmp_path / FREE / "x").exists()
    assert not list((tmp_path / ".staged").glob("*/*"))


def test_a_plain_body_comes_in_pieces_and_another_request_behind_it(endpoint: str, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(2 * BLOCK_BYTES + 12_345)
    head = "PUT /store/jobs/j/partial/{} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
    host, port = endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.format("large", len(data)).encode() + data[:5])
        rest = data[5:] + head.format("z", 3).encode() + b"end"
        for at in range(0, len(rest), 400_000):
            time.sleep(0.01)
            connection.sendall(rest[at : at + 400_000])
        answers = b""
        while answers.count(b"ETag") < 2:
            answers += connection.recv(4096)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert (tmp_path / FREE / "large").read_bytes() == data
    assert (tmp_path / FREE / "z").read_bytes() == b"end"


def test_a_disk_that_gets_full_midway_is_told_and_the_connection_goes_on(
    endpoint: str, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = gateway.objects.stage

    def staged() -> Any:
        path, file = plain()
        full = OSError(errno.ENOSPC, "No space left on device")
        return path, mock.Mock(wraps=file, write=mock.Mock(side_effect=[BLOCK_BYTES, full]))

    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    monkeypatch.setattr(gateway.objects, "stage", staged)
    connection.request("PUT", "/store/jobs/j/partial/x", bytes(3 * BLOCK_BYTES + 1))
    reply = connection.getresponse()
    assert (reply.status, reply.read() != b"") == (507, True)
    monkeypatch.setattr(gateway.objects, "stage", plain)
    connection.request("PUT", "/store/jobs/j/partial/x", b"now")
    assert connection.getresponse().status == 200
    connection.close()
    assert (tmp_path / FREE / "x").read_bytes() == b"now"
    assert not list((tmp_path / ".staged").glob("*/*"))


@pytest.mark.parametrize("body", [b"zz\r\nab\r\n0\r\n\r\n", b"5\r\nab", b""])
def test_wrong_frames(endpoint: str, body: bytes) -> None:
    reply = raw(endpoint, "PUT", "/store/jobs/j/partial/x", body, Content_Encoding="aws-chunked")
    assert reply.status == 400
