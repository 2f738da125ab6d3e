"""`python -m support.ec2 --port 0 --state DIR [--boxes]`: serves until SIGTERM or the end of its standard input.

With `--boxes` machines are boxes; then it needs root. Printed, one line of JSON: `endpoint`, `machine_endpoint` (the same, as a
machine reaches it), `state`, `pid`, and the `socket` at which machines are answered.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from moto.moto_server.werkzeug_app import MotoRequestHandler
from support import cloud_boxes
from support.ec2 import boxes, strays
from support.ec2.cloud import Cloud, Hardware
from support.ec2.front import Front
from werkzeug.serving import make_server


class Handler(MotoRequestHandler):
    """Connections that are kept, and not a word about each call."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """The call log has it."""

    def address_string(self) -> str:
        """Who asks; a Unix socket has no address."""
        return "machine" if isinstance(self.client_address, str) else str(self.client_address[0])


class UnixHandler(Handler):
    """The same on a Unix socket: there is no delay to be switched off."""

    disable_nagle_algorithm = False


def main(hardware: Callable[[boxes.BoxSettings], Hardware] = boxes.Boxes) -> None:
    """Serve; what machines are where they are not only names."""
    parser = argparse.ArgumentParser(prog="python -m support.ec2", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--boxes", action="store_true")
    parser.add_argument("--link", type=int, help="bits per second of a machine's link")
    parser.add_argument("--role-seconds", type=int, default=3600, help="life of an instance profile's credentials")
    a = parser.parse_args()
    a.state.mkdir(parents=True, exist_ok=True)
    for state in strays.abandoned():
        cloud_boxes.clean(state)
    with strays.noted(a.state), tempfile.TemporaryDirectory(prefix="ec2-") as short:
        _serve(a, Path(short) / "socket", hardware)  # a path of its own: that of a test is too long for a socket


def _serve(a: argparse.Namespace, path: Path, hardware: Callable[[boxes.BoxSettings], Hardware]) -> None:
    settings = boxes.BoxSettings(a.state, path, a.link, a.role_seconds)
    cloud = Cloud(hardware(settings) if a.boxes else None)
    front = Front(cloud)
    server = make_server("127.0.0.1", a.port, front, threaded=True, request_handler=Handler)
    _in_background(server)
    if a.boxes:
        _in_background(make_server(f"unix://{path}", 0, front, threaded=True, request_handler=UnixHandler))
    endpoint = f"http://127.0.0.1:{server.server_port}"
    inside = cloud_boxes.ENDPOINT if a.boxes else endpoint
    cloud.info = {"endpoint": endpoint, "machine_endpoint": inside, "state": str(a.state), "pid": os.getpid()}
    cloud.info |= {"socket": str(path)}
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=_until_alone, args=(stop,), daemon=True).start()
    print(json.dumps(cloud.info), flush=True)
    stop.wait()
    cloud.hardware.close()


def _in_background(server: object) -> None:
    threading.Thread(target=server.serve_forever, daemon=True).start()  # type: ignore[attr-defined]


def _until_alone(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    main()
