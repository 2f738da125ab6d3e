"""A server that answers requests with a model on the GPU, and a client that asks it ten times a second, over TCP in the job."""

import http.server
import sys
import threading
import time
import urllib.request

import torch

size, steps = float(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
layers = max(1, int(size * 2**30 / (4 * 8192 * 8192)))
model = [torch.randn(8192, 8192, device="cuda") / 90 for _ in range(layers)]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with torch.no_grad():
            x = torch.randn(8, 8192, device="cuda", generator=torch.Generator(device="cuda").manual_seed(int(self.path[1:])))
            for w in model[:4]:
                x = torch.tanh(x @ w)
            told = repr(x.double().sum().item()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for i in range(steps + 1):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{i}", timeout=600) as answer:
        print("step", i, answer.read().decode(), flush=True)
    time.sleep(0.1)
print("final", repr(sum(w.double().sum().item() for w in model)), flush=True)
