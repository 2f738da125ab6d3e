"""The controller's server and the signals of its process."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from support.fake_service import FakeService

from spotsurfer.web.app import make_app
from spotsurfer.web.guard import Door, Proxy
from spotsurfer.web.server import Endpoint, serve, tcp_socket

PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
from fastapi import FastAPI
from spotsurfer.web.server import Endpoint, on_hangup, serve, unix_socket

stop = threading.Event()

def ready():
    os.kill(os.getpid(), signal.SIGHUP)
    threading.Timer(0.5, stop.set).start()

on_hangup(lambda: print("SIGHUP was heard", flush=True))
serve([Endpoint(FastAPI(), unix_socket(Path(sys.argv[1])))], stop, ready)
print("it was stopped")
"""


def test_a_terminal_that_is_closed_ends_no_controller(tmp_path: Path) -> None:
    """SIGHUP killed it without a line."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "SIGHUP was heard" in done.stdout + done.stderr
    assert "it was stopped" in done.stdout


@pytest.mark.real
def test_nobody_writes_where_they_come_from() -> None:
    """A header said it, and so anybody on this host could be the proxy of another one."""
    proxy = Proxy("X-Forwarded-User", [ipaddress.ip_network("10.1.0.0/16")])
    socket = tcp_socket("127.0.0.1:0")
    url = f"http://127.0.0.1:{socket.getsockname()[1]}/v1/me"
    stop, ready = threading.Event(), threading.Event()
    app = make_app(FakeService(), Door("a-token-of-some-length", None, proxy, frozenset({"root"})))
    thread = threading.Thread(target=serve, args=([Endpoint(app, socket)], stop, ready.set))
    thread.start()
    try:
        assert ready.wait(10)
        forged = {"X-Forwarded-For": "10.1.2.3", "X-Forwarded-User": "root"}
        assert httpx.get(url, headers=forged).status_code == 401
    finally:
        stop.set()
        thread.join(10)
