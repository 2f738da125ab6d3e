"""One machine of the GPU demonstration: `python -m bench.gpu.agentbox CONFIG STANDIN`, the real agent with a metadata service.

The service tells of an interruption once /run/share/notice is there. Steps of the job are noted in /run/share/steps, with the
host's monotonic clock.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from spotsurfer_agent.control import process
from spotsurfer_agent.control.notices import make_dialect
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.shim import output
from spotsurfer_wire import json_codec
from spotsurfer_wire.messages import AgentConfig
from support import cuda_scenes, cuda_standin

SHARE, BASE = Path("/run/share"), Path("/var/lib/spotsurfer")
PORT, LOOK_SECONDS = 9990, 0.005
STEP = re.compile(rb"(?:step|turn) (\d+)")


class Metadata(BaseHTTPRequestHandler):
    """As on EC2, as far as agents ask."""

    def do_PUT(self) -> None:
        """A session."""
        self._answer("token")

    def do_GET(self) -> None:
        """The machine's name; the notice, where there is one."""
        notice = SHARE / "notice"
        if self.path.endswith("/instance-id"):
            self._answer("i-demo")
        elif self.path.endswith("/spot/instance-action") and notice.exists():
            self._answer(notice.read_text())
        else:
            self._answer("", 404)

    def _answer(self, text: str, code: int = 200) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def note_steps() -> None:
    """Each step that the job prints, with when it was seen."""
    at, rest = -1, b""
    with (SHARE / "steps").open("a", buffering=1) as notes:
        while True:
            begins = [int(p.name.rpartition("-")[2]) for p in (BASE / "job/log").glob("out-*")]
            at = min(begins) if at < 0 and begins else at
            piece = output.read_segments(BASE / "job/log", "out", at, 1 << 20) if at >= 0 else b""
            at, rest = at + len(piece), rest + piece
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if found := STEP.match(line):
                    notes.write(f"{time.monotonic():.3f} {int(found[1])}\n")
            time.sleep(LOOK_SECONDS)


def main() -> int:
    """The agent's life on this machine."""
    config = json_codec.decode(AgentConfig, Path(sys.argv[1]).read_bytes())
    if sys.argv[2] == "standin":
        cuda_scenes.machine(seed=str(config.attempt))
        find = Tools.find
        argv = (sys.executable, str(cuda_standin.__file__))
        Tools.find = staticmethod(lambda *a, **k: dataclasses.replace(find(*a, **k), cuda=argv))  # type: ignore[method-assign]
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Metadata)
    for work in (server.serve_forever, note_steps):
        threading.Thread(target=work, daemon=True).start()
    config = dataclasses.replace(config, metadata_url=f"http://127.0.0.1:{PORT}")
    process.run(BASE, config, make_dialect("aws", config.metadata_url))
    return 0


if __name__ == "__main__":
    sys.exit(main())
