"""An inference server for others: GET /N answers question N, GET /-1 ends it. Most of its GPU memory is the model."""

import http.server
import os
import sys
import threading

import torch

size, port = float(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
own = os.urandom(8).hex()  # a server that was begun anew would have another one
model = [torch.randn(8192, 8192, device="cuda") / 90 for _ in range(max(1, int(size * 2**30 / (4 * 8192 * 8192))))]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        number = int(self.path[1:])
        told = b"the end"
        if number >= 0:
            with torch.no_grad():
                x = torch.randn(8, 8192, device="cuda", generator=torch.Generator(device="cuda").manual_seed(number))
                for w in model:
                    x = torch.tanh(x @ w)
                told = f"{own} {x.double().sum().item()!r}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)
        self.wfile.flush()
        if number < 0:
            threading.Timer(0.1, os._exit, (0,)).start()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("0.0.0.0", port), Handler).serve_forever()
