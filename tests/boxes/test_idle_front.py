"""Jobs that do nothing are suspended and come back on a connection, with all that they had in memory."""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
from support.fleet import CONFIG, MARKS, Fleet, Json, fleet
from support.tree import ROOT

pytestmark = MARKS
TOKEN = "of-the-test"
IDLE_SECONDS = 12
# Counts in memory; keeps a connection open as long as its client does.
COUNTER = """\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, count = "HTTP/1.1", 0
    def do_GET(self):
        Handler.count += 1
        body = str(Handler.count).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
JUPYTER = ["/usr/bin/python3", "-m", "jupyter_server", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--allow-root"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("front"), 86400, config=CONFIG) as made:
        yield made


def address(world: Fleet, job: str) -> str:
    """Of its only port, when somebody listens there."""

    def found() -> str | None:
        at = str(world.show(job)["ports"][0]["address"])
        with socket.socket() as probe:
            host, _, port = at.partition(":")
            return at if at and probe.connect_ex((host, int(port))) == 0 else None

    return str(world.wait(found, "an address", 20))


def asked(at: str, seconds: float = 180) -> str:
    """What the job answers; a connection is held until it can."""
    link = http.client.HTTPConnection(at, timeout=seconds)
    try:
        link.request("GET", "/")
        return link.getresponse().read().decode()
    finally:
        link.close()


def asleep(world: Fleet, job: str) -> Json:
    """The job when it is suspended and has no machine any more."""

    def found() -> Json | None:
        shown = world.show(job)
        gone = all(a["state"] in ("released", "refused") for a in shown["attempts"])
        return shown if shown["phase"] == "suspended" and gone else None

    seen: Json = world.wait(found, "sleep", 180)
    return seen


def ended(world: Fleet, job: str) -> None:
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.wait_end(job)


def test_a_server_sleeps_wakes_and_is_found_at_one_address(world: Fleet) -> None:
    ports = [{"name": "web", "port": 8000}]
    job = world.submit(text=COUNTER, ports=ports, idle_seconds=IDLE_SECONDS, outputs=[])
    at = address(world, job)
    assert asked(at) == "1", "it was asked before it had a machine"
    slept = asleep(world, job)
    assert (slept["state"], slept["held_by"]) == ("held", "idle")
    assert slept["reason"].startswith("idle since")
    assert any("idle since" in done for why in world.client.get(f"/v1/jobs/{job}/why")["decisions"] for done in why["done"])
    spent = slept["usd_micros"]
    time.sleep(3)
    assert world.show(job)["usd_micros"] == spent, "nothing accrues while it sleeps"

    assert asked(at) == "2", "its memory came back with it"
    assert any(m["text"].endswith("asked by a connection to its front") for m in world.moments(job, "wish"))

    open_one = http.client.HTTPConnection(at, timeout=60)
    open_one.request("GET", "/")
    assert open_one.getresponse().read() == b"3"
    move_under(world, job, open_one)
    before = int(asked(at))
    assert world.show(job)["moves"] == 2

    world.kill_controller()
    with pytest.raises(OSError, match="refused"):
        asked(at)
    world.start()
    assert address(world, job) == at
    assert int(asked(at)) == before + 1
    ended(world, job)


def move_under(world: Fleet, job: str, link: http.client.HTTPConnection) -> None:
    """A move ends the connection, and nothing before does; a machine that a slow host loses is asked for again."""
    until = time.monotonic() + 180
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        while time.monotonic() < until:
            shown = world.show(job)
            if shown["moves"] == 1 and shown["move"] is None:
                world.client.post(f"/v1/jobs/{job}/move", {})
            link.request("GET", "/")
            link.getresponse().read()
            time.sleep(0.2)
    link.close()


def notebook(at: str, kernel: str, code: str) -> list[str]:
    """The kernel's id, then lines that the code printed."""
    command = ["/usr/bin/python3", str(ROOT / "tests/support/notebook.py"), at, TOKEN, kernel, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_idle_jupyter_server_comes_back_with_its_variables(world: Fleet) -> None:
    command = [*JUPYTER, f"--ServerApp.token={TOKEN}"]
    ports = [{"name": "notebook", "port": 8888}]
    job = world.submit(command=command, ports=ports, idle_seconds=IDLE_SECONDS, outputs=[], memory_bytes=1 << 30)
    at = address(world, job)
    kernel, said = notebook(at, "new", "import os; x = 6 * 7; secret = os.urandom(16); print(secret.hex())")
    slept = asleep(world, job)
    assert "nobody was connected" in slept["reason"]
    assert notebook(at, kernel, "print(x, secret.hex())") == [kernel, f"42 {said}"]
    assert len([a for a in world.show(job)["attempts"] if a["granted_at"]]) == 2
    ended(world, job)


def test_a_job_that_works_is_left_alone(world: Fleet) -> None:
    busy = "import time\nwhile True:\n    for _ in range(300000): pass\n    time.sleep(0.05)\n"
    job = world.submit(text=busy, idle_seconds=IDLE_SECONDS, outputs=[])
    world.wait_state(job, "running")
    time.sleep(2.5 * IDLE_SECONDS)
    shown = world.show(job)
    assert (shown["phase"], shown["held_by"], len(shown["attempts"])) == ("running", "", 1)
    ended(world, job)
