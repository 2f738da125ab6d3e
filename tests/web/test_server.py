"""The controller's server and the signals of its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
