"""The metadata service as agents and SDKs ask it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from spotsurfer_providers.local.box.metadata_aws import Metadata
from spotsurfer_providers.local.box.network import listening_socket

BASE = "/latest/meta-data/"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def metadata() -> Metadata:
    fixed = {"instance-id": "box-1", "placement/region": "local", "placement/availability-zone": "local-a"}
    return Metadata(fixed, {"a:b": "c", "Name": "x y"}, "#!/bin/sh\n", {"instanceId": "box-1"})


@pytest.fixture
def port(metadata: Metadata) -> Iterator[int]:
    listening = listening_socket("127.0.0.1", 0)
    server = metadata.server(listening)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield listening.getsockname()[1]
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, method: str, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def token(port: int) -> str:
    return ask(port, "PUT", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds="60")[1]


def get(port: int, path: str) -> tuple[int, str]:
    return ask(port, "GET", path, X_aws_ec2_metadata_token=token(port))


@pytest.mark.parametrize("ttl", ["0", "21601", "x", "", "-1", "1.5"])
def test_a_wrong_ttl(port: int, ttl: str) -> None:
    assert ask(port, "PUT", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds=ttl)[0] == 400


def test_no_token_no_answer(port: int) -> None:
    assert ask(port, "GET", BASE)[0] == 401
    assert ask(port, "GET", BASE, X_aws_ec2_metadata_token="mine")[0] == 401
    assert ask(port, "PUT", "/latest/api/token")[0] == 400


def test_not_through_proxies(port: int) -> None:
    ttl = {"X_aws_ec2_metadata_token_ttl_seconds": "60", "X_Forwarded_For": "1.2.3.4"}
    assert ask(port, "PUT", "/latest/api/token", **ttl)[0] == 403
    assert ask(port, "GET", BASE, X_aws_ec2_metadata_token=token(port), X_Forwarded_For="1.2.3.4")[0] == 403


def test_a_token_ends(port: int, metadata: Metadata) -> None:
    mine = token(port)
    metadata.tokens[mine] = 0.0
    assert ask(port, "GET", BASE, X_aws_ec2_metadata_token=mine)[0] == 401


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (BASE, "instance-id\nplacement/"),
        (BASE + "instance-id", "box-1"),
        (BASE + "instance-id/", "box-1"),
        (BASE + "placement/", "availability-zone\nregion"),
        (BASE + "placement/availability-zone/", "local-a"),
        (BASE + "tags/instance", "a:b\nName"),
        (BASE + "tags/instance/a:b", "c"),
        (BASE + "tags/instance/a%3Ab", "c"),
        ("/latest/user-data", "#!/bin/sh\n"),
    ],
)
def test_what_is_always_there(port: int, path: str, text: str) -> None:
    assert get(port, path) == (200, text)


@pytest.mark.parametrize("path", [BASE + "nothing", BASE + "tags/instance/z", "/", "/latest", "/latest/dynamic/x"])
def test_what_is_not_there(port: int, path: str) -> None:
    assert get(port, path)[0] == 404


def test_identity_document(port: int) -> None:
    assert json.loads(get(port, "/latest/dynamic/instance-identity/document")[1]) == {"instanceId": "box-1"}


def test_notices_appear(port: int, metadata: Metadata) -> None:
    paths = [BASE + x for x in ("spot/instance-action", "spot/termination-time", "events/recommendations/rebalance")]
    assert [get(port, p)[0] for p in paths] == [404, 404, 404]
    metadata.action_at = metadata.rebalance_at = AT
    action, time_text, rebalance = (get(port, p)[1] for p in paths)
    assert json.loads(action) == {"action": "terminate", "time": "2026-01-02T03:04:05Z"}
    assert time_text == "2026-01-02T03:04:05Z"
    assert json.loads(rebalance) == {"noticeTime": "2026-01-02T03:04:05Z"}


def test_one_connection_serves_many_questions(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    mine = token(port)
    for _ in range(3):
        connection.request("GET", BASE + "instance-id", headers={"X-aws-ec2-metadata-token": mine})
        assert connection.getresponse().read() == b"box-1"
    connection.close()
