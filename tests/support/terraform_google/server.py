"""A provider for Terraform that knows the schema of Google's and nothing else: enough for `validate` and for tests with mocks.

It speaks the plug-in protocol 5 (tfplugin5.proto) as far as those commands ask, and is found by TF_REATTACH_PROVIDERS, as
providers under development are ("Debugging Providers"). Messages are few, so they are written by hand.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

SCHEMA = Path(__file__).with_name("schema.json")
LIST_BLOCK = 2  # Schema.NestedBlock.NestingMode
VARINT, BYTES = 0, 2  # wire types
PROVIDER = {"attributes": {"project": "string optional", "region": "string optional", "zone": "string optional"}}

# ---- Messages


def _varint(number: int) -> bytes:
    head, rest = number & 0x7F, number >> 7
    return bytes([head | 0x80]) + _varint(rest) if rest else bytes([head])


def field(number: int, value: str | bytes | int) -> bytes:
    """One field of a message; zero, false and empty texts are left out, as protobuf does."""
    if isinstance(value, int):
        return _varint(number << 3 | VARINT) + _varint(value) if value else b""
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def cty(name: str) -> Any:
    """A type as Terraform's JSON has it: list(string) is ["list", "string"]."""
    inner = re.fullmatch(r"(\w+)\((.+)\)", name)
    return [inner[1], cty(inner[2])] if inner else name


def block(table: Mapping[str, Any]) -> bytes:
    """Schema.Block. An optional argument may be filled in by the provider."""
    message = b""
    for name, words in sorted(table["attributes"].items()):
        kind, _, use = words.rpartition(" ")
        flags = {"required": (1, 0, 0), "optional": (0, 1, 1), "computed": (0, 0, 1)}[use]
        attribute = field(1, name) + field(2, json.dumps(cty(kind)))
        message += field(2, attribute + b"".join(field(4 + n, flag) for n, flag in enumerate(flags)))
    for name, inner in sorted(table.get("blocks", {}).items()):
        counts = field(4, inner["min"]) + field(5, inner["max"])
        message += field(3, field(1, name) + field(2, block(inner)) + field(3, LIST_BLOCK) + counts)
    return message


def schemas(table: Mapping[str, Any]) -> bytes:
    """GetProviderSchema.Response."""
    message = field(1, field(2, block(PROVIDER)))
    for number, kind in ((2, "resource"), (3, "data")):
        for name, described in table[kind].items():
            message += field(number, field(1, name) + field(2, field(2, block(described))))
    return message


# ---- Server


def _same(request: bytes) -> bytes:
    """PrepareProviderConfig: the answer has the configuration where the request has it."""
    return request


def _nothing(_request: bytes) -> bytes:
    """No diagnostics: what the schema allows is fine."""
    return b""


@contextmanager
def serve() -> Iterator[str]:
    """Runs one, in a thread. Yields what TF_REATTACH_PROVIDERS has to be."""
    told = schemas(json.loads(SCHEMA.read_text()))
    calls: dict[str, Callable[[bytes], bytes]] = {
        "GetSchema": lambda _: told,
        "PrepareProviderConfig": _same,
        "ValidateResourceTypeConfig": _nothing,
        "ValidateDataSourceConfig": _nothing,
        "Stop": _nothing,
    }
    handlers = {name: _handler(call) for name, call in calls.items()}
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tfplugin5.Provider", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        address = {"Network": "tcp", "String": f"127.0.0.1:{port}"}
        attached = {"Protocol": "grpc", "ProtocolVersion": 5, "Pid": os.getpid(), "Test": True, "Addr": address}
        yield json.dumps({"hashicorp/google": attached})
    finally:
        server.stop(None).wait()


def _handler(call: Callable[[bytes], bytes]) -> Any:
    return grpc.unary_unary_rpc_method_handler(lambda request, _context: call(request))
