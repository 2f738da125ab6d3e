"""`python -m support.ec2 --port 0 --state DIR [--boxes]`: serves until SIGTERM or the end of its standard input."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from moto.moto_server.werkzeug_app import MotoRequestHandler
from support.ec2.cloud import Cloud
from support.ec2.front import Front
from werkzeug.serving import make_server


class Handler(MotoRequestHandler):
    """Connections that are kept, and not a word about each call."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """The call log has it."""


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(prog="python -m support.ec2")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path, required=True)
    a = parser.parse_args()
    a.state.mkdir(parents=True, exist_ok=True)
    cloud = Cloud()
    server = make_server("127.0.0.1", a.port, Front(cloud), threaded=True, request_handler=Handler)
    cloud.info = {"endpoint": f"http://127.0.0.1:{server.server_port}", "state": str(a.state)}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    print(json.dumps(cloud.info), flush=True)
    stop.wait()
    cloud.hardware.close()


if __name__ == "__main__":
    main()
