"""Scenes on a minibox of a job that talks to its submit host over a tether. Run by `python -m support.tether_scenes`."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spotsurfer_agent.host import network
from spotsurfer_wire.messages import Spec
from support.engine_kit import JOB, CriuEngine, W, engine, newest, output, request, until

PORT, MEETING = 8786, 7786
SCRIPT = 'eval "$(/usr/bin/python3 join)" && exec /usr/bin/python3 -u client.py $SPOTSURFER_TETHER_PORT'
# Each turn is a question and its answer; a turn that was lost or done twice shows in the host's list.
CLIENT = f"""
import os, socket, sys, time
lines = socket.create_connection(("127.0.0.1", {PORT})).makefile("rw")
turn = 0
while not os.path.exists("enough"):
    try:
        print(turn, file=lines, flush=True)
        answer = lines.readline()
    except ConnectionError as e:
        print(type(e).__name__)
        sys.exit(3)
    print(answer, end="")
    turn += 1
    time.sleep(0.02)
"""


class Service:
    """A program of the submit host: it answers what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ends: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", PORT))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            lines = self._listening.accept()[0].makefile("rw")
            try:
                for line in lines:
                    self.heard.append(line.strip())
                    print(line, end="", file=lines, flush=True)
                self.ends.append("end")
            except ConnectionError as e:
                self.ends.append(type(e).__name__)


@contextmanager
def talking() -> Iterator[tuple[CriuEngine, Service]]:
    """A job that has had some turns with the service."""
    e, service = engine(), Service()
    work = Path(e.scratch(), "work")
    words = ["slurm", "tether", "--port", str(PORT), "--listen", f"0.0.0.0:{MEETING}"]
    words += ["--address", f"{network.OUTSIDE}:{MEETING}", "--to", str(work / "join")]
    host = subprocess.Popen([sys.executable, "-m", "spotsurfer", *words], stdout=subprocess.PIPE)
    try:
        assert host.stdout is not None and host.stdout.readline()
        (work / "client.py").write_text(CLIENT)
        e.start(Spec(JOB, ["/bin/bash", "-c", SCRIPT]))
        turns(e, 20)
        yield e, service
        e.kill()
    finally:
        host.kill()
        host.wait()


def turns(e: CriuEngine, count: int) -> None:
    """So many more."""
    before = len(output(e).splitlines())
    until(lambda: len(output(e).splitlines()) >= before + count, 30.0)


def moves() -> None:
    """A live save, then a move: one connection all the time, each turn once on both sides."""
    with talking() as (e, service):
        e.save(request(1, final=False))
        turns(e, 20)
        e.save(request(2, final=True))
        e.kill()
        e.restore(newest(e.store), Spec(JOB, []))
        turns(e, 20)
        Path(e.scratch(), "work/enough").touch()
        until(lambda: e.status().state is W.EXITED, 30.0)
        assert e.status().exit_code == 0
        since, heard = output(e).decode().split(), service.heard
        assert heard == [str(i) for i in range(len(heard))]
        assert since == heard[-len(since) :], "what it printed after the move goes on where it was"
        until(lambda: service.ends, 10.0)
        assert service.ends == ["end"]


def goes_back() -> None:
    """The service knows of turns that the job has forgotten: both see a broken connection, and none hears anything wrong."""
    with talking() as (e, service):
        e.save(request(1, final=False))
        turns(e, 20)
        e.kill()
        e.restore(newest(e.store), Spec(JOB, []))
        until(lambda: e.status().state is W.EXITED, 30.0)
        assert e.status().exit_code == 3, output(e)
        assert output(e).decode().split()[-1] == "ConnectionResetError"
        until(lambda: service.ends, 10.0)
        assert service.ends == ["ConnectionResetError"]
        assert service.heard == [str(i) for i in range(len(service.heard))]


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False)
    globals()[sys.argv[1]]()
