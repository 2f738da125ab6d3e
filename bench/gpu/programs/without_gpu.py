"""What the demonstration's jobs are on a host without a GPU: `without_gpu.py GB STEPS` trains, `without_gpu.py GB PORT` serves.

A port has four digits, and a training here has fewer than a thousand steps.
"""

import hashlib
import http.server
import os
import sys
import threading
import time

memory = bytearray(os.urandom(1 << 20) * max(1, int(float(sys.argv[1]) * 2**10)))
last = int(sys.argv[2])


def answer(number):
    return hashlib.sha256(memory[:64] + b"%d" % number).hexdigest()  # a server that was begun anew would have other memory


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        number = int(self.path[1:])
        told = answer(number).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)
        if number < 0:
            threading.Timer(0.1, os._exit, (0,)).start()

    def log_message(self, *_):
        pass


if last > 1000:
    http.server.ThreadingHTTPServer(("0.0.0.0", last), Handler).serve_forever()
state = ""
for i in range(last + 1):
    state = hashlib.sha256(f"{state} {i}".encode()).hexdigest()
    print("step", i, state, flush=True)
    print("step", i, time.time(), file=sys.stderr, flush=True)  # noqa: TID251 -- a job has no other clock
    time.sleep(0.05)
