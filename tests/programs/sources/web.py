"""web.py ROUNDS: an HTTP server that takes one client at a time, so that others wait in its accept queue."""

import hashlib
import http.client
import http.server
import sys
import threading

rounds = int(sys.argv[1])


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        h = self.rfile.read(int(self.headers["Content-Length"]))
        for _ in range(60_000):
            h = hashlib.sha256(h).digest()
        self.send_response(200)
        self.send_header("Content-Length", str(len(h)))
        self.end_headers()
        self.wfile.write(h)

    def log_message(self, format: str, *args: object) -> None:
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
server.request_queue_size = 16
threading.Thread(target=server.serve_forever, daemon=True).start()
results: list[dict[int, str]] = [{} for _ in range(3)]
repeated = [0]


def ask(number: int) -> None:
    for r in range(rounds):
        body = hashlib.sha256(f"{number} {r}".encode()).digest()
        while True:  # a server may go away at any time, so a client asks again
            try:
                line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
                line.request("POST", "/", body)
                results[number][r] = line.getresponse().read().hex()
                line.close()
                break
            except (OSError, http.client.HTTPException) as e:
                repeated[0] += 1
                print(f"asked again: {e!r}", file=sys.stderr, flush=True)


clients = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
for c in clients:
    c.start()
for c in clients:
    c.join()
server.shutdown()
for r in range(0, rounds, 10):
    print(r, *(f[r][:16] for f in results))
print(hashlib.sha256(repr(results).encode()).hexdigest())
