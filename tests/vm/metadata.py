"""In a guest's network namespace: the metadata service of a cloud, and the endpoint of its services on an address of its own.

QEMU hands what a guest sends to other networks to sockets of this namespace, so a server on an address of its loopback is
reached under that address, without a bridge or a tap.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from spotsurfer_providers.local.box.metadata_aws import Metadata, MetadataHandler
from spotsurfer_providers.local.box.metadata_server import MetadataServer
from spotsurfer_providers.local.box.network import CLOUD_ADDRESS, GATEWAY_PORT
from spotsurfer_providers.local.box.supervisor import Forward

ADDRESS = "169.254.169.254"
LOOK_SECONDS = 0.2
DATED = re.compile(r"^/\d{4}-\d\d-\d\d/")


class Handler(MetadataHandler):
    """What cloud-init asks beside what the agent does: versions by date, and a list of documents."""

    def do_GET(self) -> None:
        """Anything but a token."""
        self.path = DATED.sub("/latest/", self.path)
        if self.path in ("/", ""):
            self._reply(200, "1.0\n2009-04-04\n2021-03-23\nlatest")
        elif self.path.rstrip("/") == "/latest/dynamic/instance-identity":
            self._reply(200, "document")
        else:
            super().do_GET()


def read(file: Path) -> dict[str, Any]:
    """The fields of `Metadata` from JSON; times are in ISO form."""
    return {k: datetime.fromisoformat(v) if k.endswith("_at") else v for k, v in json.loads(file.read_text()).items()}


def serve(file: Path) -> None:
    """Answer with what the file says; it may change."""
    told = Metadata(**read(file))
    server = MetadataServer(socket.create_server((ADDRESS, 80)), told, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    seen = file.stat().st_mtime_ns
    while True:
        time.sleep(LOOK_SECONDS)
        with suppress(FileNotFoundError):
            if file.stat().st_mtime_ns != seen:
                seen = file.stat().st_mtime_ns
                for name, value in read(file).items():
                    setattr(told, name, value)


def main() -> None:
    """Serve until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what the metadata service says")
    parser.add_argument("socket", help="of the test EC2's endpoint")
    options = parser.parse_args()
    endpoint = Forward(socket.create_server((CLOUD_ADDRESS, GATEWAY_PORT)), options.socket)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    serve(options.file)


if __name__ == "__main__":
    main()
