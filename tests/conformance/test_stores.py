"""Every kind of store keeps the contract of `spotsurfer_wire.store.port`: a folder, memory, S3, Cloud Storage and Azure's."""

from __future__ import annotations

import base64
import http.server
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store
from spotsurfer_wire.store.obstore import SECRET_OPTIONS, ObstoreStore, has_credentials, open_store
from spotsurfer_wire.store.port import RightsUnreachable, StoreDenied, StoreError, StoreUnreachable
from support.azurite.server import Azurite, azurite
from support.gce import server as gce
from support.gce import storage
from support.http_server import HttpServer, running

from spotsurfer.config.settings import Settings
from spotsurfer.doctor import checks
from spotsurfer.store.open_store import rights


@dataclass(frozen=True)
class Place:
    """Where a store is. `nowhere`: the same with a bucket that is not there."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)
    nowhere: str = ""


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return Place(f"file://{tmp_path}/store")


@pytest.fixture
def memory() -> Place:
    return Place("memory:///")


@pytest.fixture
def s3() -> Iterator[Place]:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "endpoint": f"http://{host}:{port}", "region": "us-east-1", "access_key_id": "a", "secret_access_key": "b",
        "allow_http": "true", "virtual_hosted_style_request": "false",
    }  # fmt: skip
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    bucket = f"bucket-{secrets.token_hex(8)}"  # all of moto's servers share what they hold
    boto3.client("s3", endpoint_url=options["endpoint"], region_name="us-east-1", **keys).create_bucket(Bucket=bucket)
    yield Place(f"s3://{bucket}/fleet", options, f"s3://{bucket}-not/fleet")
    server.stop()


@pytest.fixture
def google() -> Iterator[Place]:
    with gce.serve() as cloud:
        yield Place(f"gs://{storage.BUCKET}/fleet", cloud.options(), f"gs://{storage.BUCKET}-not/fleet")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """One for all tests: it takes a second to start."""
    with azurite(tmp_path_factory.mktemp("azurite")) as running:
        yield running


@pytest.fixture
def azure(server: Azurite) -> Place:
    container = server.new_container()
    return Place(f"az://{container}/fleet", server.options(), f"az://{container}-not/fleet")


AZURE = pytest.param("azure", marks=pytest.mark.real)


@pytest.fixture(params=["folder", "memory", "s3", "google", AZURE])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(request.param)


@pytest.fixture
def store(place: Place) -> ObstoreStore:
    return open_store(place.url, place.options)


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


def test_a_copy_is_whole_stays_and_replaces(store: ObstoreStore) -> None:
    store.put("from", b"one")
    store.put("to/there", b"before")
    store.copy("from", "to/there")
    store.delete(["from"])
    assert store.get("to/there") == b"one"
    with pytest.raises(StoreError):
        store.copy("no", "to/there")
    assert store.get("to/there") == b"one"


@pytest.mark.parametrize("size", [0, 1, 12 << 20])
def test_files_go_and_come_back_whole(size: int, store: ObstoreStore, tmp_path: Path) -> None:
    """The large one takes several parts each way."""
    data = secrets.token_bytes(size)
    (tmp_path / "sent").write_bytes(data)
    assert store.put_file("k", tmp_path / "sent") == size
    assert store.get_file("k", tmp_path / "came") == size
    assert (tmp_path / "came").read_bytes() == data
    assert store.get_file("no", tmp_path / "came") is None


def test_the_doctor_opens_it_as_a_controller_does_and_finds_it_good(place: Place, tmp_path: Path) -> None:
    settings = Settings(controller={"data_dir": tmp_path}, store={"url": place.url, "options": dict(place.options)})  # type: ignore[arg-type]
    open_store(place.url, place.options).put("there", b"")  # a folder that nobody has made is no store yet
    found = checks.store(settings)
    assert (found.level, found.text) == ("ok", f"{place.url} takes, keeps and deletes objects, and creates each one once")


def each_call(store: ObstoreStore) -> list[Callable[[], object]]:
    return [
        lambda: store.create("k", b"x"), lambda: store.put("k", b"x"), lambda: store.get("k"),
        lambda: store.get_range("k", 0, 1), lambda: store.list(""), lambda: store.folders("jobs/"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["s3", "google", AZURE])
def test_a_bucket_that_is_not_there_is_no_empty_store(kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(kind)
    for call in each_call(open_store(place.nowhere, place.options)):
        with pytest.raises(StoreError, match=r"NoSuchBucket|ContainerNotFound"):
            call()


@pytest.mark.real
def test_azure_refuses_another_key(server: Azurite, azure: Place, tmp_path: Path) -> None:
    open_store(azure.url, azure.options).put("k", b"x")
    other = server.options(account_key=base64.b64encode(b"another").decode())
    store = open_store(azure.url, other)
    calls = (
        *each_call(store), lambda: store.delete(["k"]), lambda: store.copy("k", "l"),
        lambda: store.get_file("k", tmp_path / "k"),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(StoreDenied) as refused:
            call()
        assert other["account_key"] not in str(refused.value)


# As Azure's storage answers: "Authorize with Azure Active Directory", "Authorize with Shared Key".
REFUSALS = {
    "an old token": (401, "<Code>InvalidAuthenticationInfo</Code>", "401 Unauthorized"),
    "a wrong clock": (
        403,
        "<Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request.</Message>"
        "<AuthenticationErrorDetail>Request date header too old: 'Fri, 04 Oct 2019 18:02:12 GMT'</AuthenticationErrorDetail>",
        "this machine's clock is wrong",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_of_azures_is_one_for_every_call(what: str) -> None:
    status, error, words = REFUSALS[what]

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.end_headers()
            self.wfile.write(f'<?xml version="1.0" encoding="utf-8"?><Error>{error}</Error>'.encode())

        do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with running(HttpServer(Refuses)) as refusing:
        options = {"account_name": "a", "token": "b", "endpoint": f"{refusing.url}/a", "allow_http": "true"}
        for call in each_call(open_store("az://container/fleet", options)):
            with pytest.raises(StoreDenied, match=words):
                call()


@pytest.mark.parametrize("name", sorted(SECRET_OPTIONS))
def test_options_with_credentials_are_told_by_the_names_that_obstore_knows(name: str) -> None:
    kinds = {"aws_": S3Store, "google_": GCSStore, "azure_storage_": AzureStore, "azure_": AzureStore}
    spellings = [(kind, prefix + name) for prefix, kind in kinds.items()] + [(kind, name) for kind in kinds.values()]
    known = [spelling for kind, spelling in spellings if knows(kind, spelling)]
    assert known
    assert all(has_credentials({spelling.upper(): "x"}) for spelling in known)
    assert not has_credentials({"endpoint": "x", "account_name": "x", "region": "x", "azure_tenant_id": "x"})


def knows(kind: Any, option: str) -> bool:
    try:
        kind("bucket", config={option: "x"})
    except UnknownConfigurationKeyError:
        return False
    except (BaseError, ValueError):
        pass  # it knows the name, and not this value
    return True


@pytest.mark.parametrize(
    "options",
    [
        {"access_key_id": "a", "secret_access_key": "b"}, {"AWS_SESSION_TOKEN": "a"}, {"google_service_account": "a"},
        {"account_name": "a", "account_key": "b"}, {"azure_storage_sas_key": "a"}, {"client_id": "a", "client_secret": "b"},
        {"azure_storage_access_key": "a"}, {"sas_token": "a"}, {"skip_signature": "true"},
    ],
    ids=str,
)  # fmt: skip
def test_whoever_gives_a_key_gets_no_other_credentials(options: dict[str, str], tmp_path: Path) -> None:
    settings = Settings(controller={"data_dir": tmp_path}, store={"url": "s3://bucket/fleet", "options": options})  # type: ignore[arg-type]
    assert rights(settings, settings.store_url, settings.store.options) is None


@pytest.mark.parametrize("url", ["s3://bucket/fleet", "gs://bucket/fleet"])
@pytest.mark.parametrize(
    ("trouble", "told"), [(RightsUnreachable("no route"), StoreUnreachable), (ValueError("none"), StoreDenied)]
)
def test_credentials_that_cant_be_asked_for_are_no_refusal(url: str, trouble: Exception, told: type[StoreError]) -> None:
    """A controller that is cut off would call its rights lost."""

    class Nobody:
        def __call__(self) -> object:
            raise trouble

        def refused(self) -> None: ...

    store = open_store(url, {"region": "us-east-1"} if url.startswith("s3") else {}, Nobody())
    for call in each_call(store):
        with pytest.raises(StoreError) as caught:
            call()
        assert type(caught.value) is told
