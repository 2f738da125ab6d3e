"""Images as people use them: programs of Debian in a real registry, each saved three times and moved twice; the same bytes.

A move goes to a box that never had the image, and back to one of the first one's kind.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from programs import plain
from programs.entry import Entry
from programs.surf import INTERVAL_SECONDS, Surf, plan
from support.fleet import MARKS
from support.registry import Recipe
from support.tools import fleet_with_images, image

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(900)]
DISK_BYTES = 8 << 30
SHELL = ("dash", "coreutils", "sed", "grep", "bash", "libc-bin")
# A server and its client in one job, over a Unix socket in /run: what they say to each other goes on where it stood.
SERVICE = """
import http.server, json, os, socketserver, sys, threading, time, urllib.request
class Counts(http.server.BaseHTTPRequestHandler):
    total = 0
    def do_POST(self):
        Counts.total += int(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"total": Counts.total, "pid": os.getpid()}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Counts)
open("/run/service.pid", "w").write(str(os.getpid()))
threading.Thread(target=server.serve_forever, daemon=True).start()
for i in range(int(sys.argv[1])):
    answer = json.load(urllib.request.urlopen("http://127.0.0.1:8080/", str(i).encode()))
    print(i, answer["total"], flush=True)
    time.sleep(0.02)
assert open("/run/service.pid").read() == str(os.getpid())
open("total.txt", "w").write(str(answer["total"]))
"""
SERVES = Entry(
    "service",
    "a Python service",
    "answers over HTTP and keeps a sum",
    ["python3", "/opt/service.py", "2000"],
    45.0,
    ["python3"],
    outputs=["total.txt"],
    job={"user": "root"},  # as servers of its image usually are: it writes to /run
)
# As the table of programs has them, and longer: each move waits for the image, too.
LONGER = {
    "megahit": ("prepare", {"1100000": "2400000", "176000": "384000"}),
    "r": ("command", {"3400": "8000"}),
    "ngspice": ("prepare", {"cp $SOURCES/oscillator.cir .": "sed s/650m/1500m/ $SOURCES/oscillator.cir > oscillator.cir"}),
}
FILES = {"service": {"/opt/service.py": SERVICE}}


@pytest.mark.parametrize("name", ["megahit", "r", "ngspice", "service"])
def test_a_program_in_its_image_surfs(name: str, tmp_path: Path) -> None:
    entry = SERVES if name == "service" else _longer(Entry.load(name))
    tag = f"{name}:1"
    recipe = Recipe([*entry.packages, *SHELL], FILES.get(name, {}))
    plain.prepare(entry, tmp_path / "work")
    with fleet_with_images(tmp_path / "world", {tag: recipe}, DISK_BYTES, INTERVAL_SECONDS) as world:
        alone = _alone(entry, tmp_path, tmp_path / "world/made" / name / "root")
        entry.job["image"] = image(tag)
        surf = Surf(entry, tmp_path / "work", world, print)
        try:
            made = surf.run(plan("images", name, alone.seconds))
        except Exception:
            print(surf.explain())
            raise
        finally:
            surf.close()
        pins = [json.loads(p.read_text()) for p in (world.data / "store/jobs").glob("*/IMAGE.json")]
    assert alone.differs(made) == ""
    assert [p["reference"] for p in pins] == [image(tag)]


def _longer(entry: Entry) -> Entry:
    key, changes = LONGER[entry.name]
    text = json.dumps(getattr(entry, key))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return replace(entry, **{key: json.loads(text)})


def _alone(entry: Entry, folder: Path, root: Path) -> plain.Made:
    """The undisturbed run; of what only the image has, in its tree."""
    if entry is not SERVES:
        return plain.undisturbed(entry, folder / "work")
    service = folder / "work/inputs" / "service.py"
    service.write_text((root / "opt/service.py").read_text().replace("/run/service.pid", str(folder / "service.pid")))
    here = Entry(entry.name, entry.title, entry.what, ["python3", "service.py", "2000"], 45.0, outputs=entry.outputs)
    made = plain.undisturbed(here, folder / "work")
    service.unlink()
    return made
