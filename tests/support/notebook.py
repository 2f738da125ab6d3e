"""Speaks to a Jupyter server as a browser does: `ADDRESS TOKEN KERNEL|new CODE` prints the kernel's id and what was printed.

Run by the system's Python, which has Debian's websocket client.
"""

from __future__ import annotations

import json
import sys
import urllib.request
import uuid

import websocket  # type: ignore[import-not-found]

SECONDS = 120


def asked(address: str, token: str, path: str, body: object = None) -> object:
    """An answer of the server's REST API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{path}", data, {"Authorization": f"token {token}"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


def run(address: str, token: str, kernel: str, code: str) -> str:
    """What `code` prints in that kernel."""
    link = websocket.create_connection(
        f"ws://{address}/api/kernels/{kernel}/channels", SECONDS, header=[f"Authorization: token {token}"]
    )
    header = {"msg_id": uuid.uuid4().hex, "session": "s", "username": "u", "msg_type": "execute_request", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    link.send(json.dumps(message))
    said = ""
    try:
        while True:
            heard = json.loads(link.recv())
            if heard["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            if heard["msg_type"] == "stream":
                said += heard["content"]["text"]
            if heard["msg_type"] == "error":
                said += "\n".join(heard["content"]["traceback"])
            if heard["msg_type"] == "status" and heard["content"]["execution_state"] == "idle":
                return said
    finally:
        link.close()


if __name__ == "__main__":
    server, key, which, text = sys.argv[1:]
    if which == "new":
        which = asked(server, key, "/api/kernels", {"name": "python3"})["id"]  # type: ignore[index]
    print(which)
    print(run(server, key, which, text), end="")
