"""A counting licence server on a Unix socket, and its client, which jobs bring along. One line a question, one a reply.

`take HOLDER`, `return HOLDER`, `use HOLDER WORD…`: a program says that it works, and what it sees of its machine. A holder that
has a licence and takes it keeps it. The server notes who works while others have all of them.
"""

from __future__ import annotations

import socketserver
import threading
import time
from collections import defaultdict
from pathlib import Path

PORT = 7777
CLIENT = f"""\
import os, socket, sys, time
def ask(*words):
    while True:  # a connection that a save closes is opened again
        try:
            with socket.create_connection(("10.77.0.1", {PORT}), 5) as s:
                s.sendall((" ".join(words) + "\\n").encode())
                answer = s.makefile().readline().strip()
            if answer: return answer
        except OSError: pass
        time.sleep(0.1)
if __name__ == "__main__":
    why, jump = os.environ.get("SPOTSURFER_WHY", "-"), os.environ.get("SPOTSURFER_CLOCK_JUMP_SECONDS", "-")
    if sys.argv[1] == "return" and why == "save": sys.exit()
    answer = ask(sys.argv[1], os.environ["SPOTSURFER_JOB"], why, jump)
    print(answer)
    sys.exit(answer != "yes")
"""


class LicenceServer:
    """So many licences. Use it as a context; `path` is its socket."""

    def __init__(self, path: Path, total: int) -> None:
        self.path, self.total = path, total
        self.out: set[str] = set()
        self.most = 0
        self.asked: list[tuple[str, str, str, str]] = []  # word, holder, why, what became of it
        self.too_many: list[str] = []  # who worked although others had all of them
        self.seen: dict[str, set[str]] = defaultdict(set)  # holder -> what it saw of its machine
        self.at: list[tuple[float, int]] = []  # when how many were out
        self._lock = threading.Lock()
        server = self

        class Handler(socketserver.StreamRequestHandler):
            timeout = 5

            def handle(self) -> None:
                words = self.rfile.readline().decode().split()
                if len(words) > 1:
                    self.wfile.write((server.answer(*words) + "\n").encode())

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        path.chmod(0o666)

    def __enter__(self) -> LicenceServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, word: str, holder: str, why: str = "-", *more: str) -> str:
        """What the server says."""
        with self._lock:
            yes = True
            if word == "take":
                yes = holder in self.out or len(self.out) < self.total
                self.out |= {holder} if yes else set()
            elif word == "return":
                self.out.discard(holder)
            elif len(self.out - {holder}) == self.total:
                self.too_many.append(holder)
            if word == "use":
                self.seen[holder].add(" ".join((why, *more)))
            else:
                self.asked.append((word, holder, why, "yes" if yes else "no"))
                self.at.append((time.monotonic(), len(self.out)))
            self.most = max(self.most, len(self.out))
            return "yes" if yes else "no"

    def of(self, holder: str) -> list[tuple[str, str, str]]:
        """What a holder asked, refusals once."""
        asked = [(word, why, yes) for word, who, why, yes in self.asked if who == holder]
        return [x for i, x in enumerate(asked) if not (i and x == asked[i - 1])]
