"""Read by each Python that starts with this folder in PYTHONPATH: the store of the controller, and that of the boxes, fail as a
file beside it says: "writes" (all are refused), "reads" (all are refused), "some" (one call in ten answers 503).
"""

import random
import sys
from pathlib import Path

MODE = Path("@folder@/mode")
READS = ("get", "get_range", "get_file", "list")
WRITES = ("create", "create_later", "put", "put_file", "delete", "copy")


def fails(*, write: bool) -> bool:
    mode = MODE.read_text() if MODE.exists() else ""
    return mode == ("writes" if write else "reads") or (mode == "some" and random.random() < 0.1)


def in_controller() -> None:
    from spotsurfer_wire.store import obstore, port

    def failing(name: str) -> None:
        real = getattr(obstore.ObstoreStore, name)

        def call(self: object, *given: object, **named: object) -> object:
            if fails(write=name in WRITES):
                raise port.StoreUnreachable(f"503 Slow Down: {name} {given[0]}")
            return real(self, *given, **named)

        setattr(obstore.ObstoreStore, name, call)

    for name in (*READS, *WRITES):
        failing(name)


def in_boxes() -> None:
    from spotsurfer_providers.local.object_gateway import server
    from spotsurfer_providers.local.object_gateway.s3_protocol import S3Error

    real = server.GatewayHandler._parse

    def parse(self: server.GatewayHandler) -> None:
        real(self)
        if fails(write=self.command not in ("GET", "HEAD")):
            raise S3Error(503, "SlowDown", "please reduce your request rate")

    server.GatewayHandler._parse = parse  # type: ignore[method-assign]


if "spotsurfer_providers.local.box.supervisor" in sys.orig_argv:
    in_boxes()
elif "serve" in sys.orig_argv:
    in_controller()
