"""Live: jobs with a licence that a counting server gives out. Hooks return it before a suspension and take it again in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import CONFIG, MARKS, PROGRAM, Fleet, fleet
from support.licence_server import CLIENT, PORT, LicenceServer

pytestmark = [*MARKS, pytest.mark.timeout(400)]
# The program of `fleet` says before each step that it works, and what it sees of its machine.
BEGIN = """\
import fcntl, socket, struct, subprocess
sys.path.insert(0, ".")
import lic
def identity():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:  # as licence managers ask
        raw = fcntl.ioctl(s.fileno(), 0x8927, struct.pack("256s", b"eth0"))
    run = lambda *words: subprocess.run(words, capture_output=True, text=True).stdout.strip()
    return [raw[18:24].hex(":"), run("hostid"), open("/etc/machine-id").read().strip(), run("hostname"), run("uname", "-n")]
last = []
def seen(step):
    if step % 10 == 0: last[:] = identity()
    return last
me = os.environ["SPOTSURFER_JOB"]
assert lic.ask("take", me, "begin") == "yes", "spotsurfer gave out too many"
"""
LICENSED = PROGRAM.replace("table = ", BEGIN + "table = ", 1)
LICENSED = LICENSED.replace("    to.write(", "    lic.ask('use', me, *seen(i))\n    to.write(", 1)
LICENSED = LICENSED.replace("to.close();", "lic.ask('return', me, 'end'); to.close();", 1)
HOOKS = {
    "before_freeze": ["python3", "lic.py", "return"],
    "before_thaw": ["python3", "lic.py", "take"],
    "environment": {"PYTHONDONTWRITEBYTECODE": "1"},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LicenceServer]:
    with LicenceServer(tmp_path / "licences.sock", 1) as made:
        yield made


@pytest.fixture
def world(tmp_path: Path, server: LicenceServer) -> Iterator[Fleet]:
    config = CONFIG.replace(
        "[provider.local]", f'[licences]\nvcs = 1\n[provider.local]\nsockets = {{{{ {PORT} = "{server.path}" }}}}'
    )
    with fleet(tmp_path / "fleet", 600, config) as made:
        yield made


def submit(world: Fleet, name: str, steps: int) -> str:
    job = str(world.client.post("/v1/ids", {"name": name})["job"])
    for file, text in (("program.py", LICENSED), ("lic.py", CLIENT)):
        data = text.encode()
        world.client.upload(f"/v1/jobs/{job}/inputs/{file}", iter([data]), len(data))
    spec = {
        "name": name,
        "command": ["/usr/bin/python3", "program.py", str(steps), "0.05"],
        "inputs": ["program.py", "lic.py"],
        "outputs": ["*.txt"],
        "memory_bytes": 1 << 29,
        "licences": {"vcs": 1},
        **HOOKS,
    }
    world.client.put(f"/v1/jobs/{job}", {"spec": spec, "modes": {"program.py": 0o644, "lic.py": 0o644}})
    world.steps[job] = steps
    return job


def test_a_licence_is_returned_and_taken_again(world: Fleet, server: LicenceServer) -> None:
    first, second = submit(world, "first", 600), submit(world, "second", 240)
    world.wait_line(first, 20, 120)
    assert world.show(second)["note"] == f"it waits for 1 of 1 licences vcs: held by {first}"
    assert world.show(second)["attempts"] == []

    world.client.post(f"/v1/jobs/{first}/hold")
    world.wait(lambda: world.show(first)["state"] == "held", "the suspension", 90)
    assert server.of(first) == [("take", "begin", "yes"), ("return", "suspend", "yes")]
    world.client.post(f"/v1/jobs/{first}/resume")
    world.wait_line(second, 10, 90)
    assert f"held by {second}" in world.show(first)["note"]

    # Somebody at a desk is quicker: spotsurfer's count is free, the server's is not.
    world.wait(lambda: ("return", second, "end", "yes") in server.asked, f"the end of {second}", 90)
    assert server.answer("take", "desk") == "yes"
    world.wait(lambda: "before_thaw" in world.show(first)["note"], "a job that stands still", 90)
    assert "it stands still: before_thaw: `python3 lic.py take` ended with exit code 1: no" in world.show(first)["note"]
    assert world.show(first)["attempts"][-1]["state"] == "restoring"
    lines = len(world.output(first).splitlines())
    world.client.post(f"/v1/jobs/{first}/hold")
    world.wait(lambda: world.show(first)["state"] == "held", "a suspension before it went on", 90)
    world.client.post(f"/v1/jobs/{first}/resume")
    world.wait(lambda: "before_thaw" in world.show(first)["note"], "a job that stands still again", 90)
    assert len(world.output(first).splitlines()) == lines
    server.answer("return", "desk")

    world.wait_line(first, lines + 20, 90)
    held = [p for p in world.client.get("/v1/licences")["licences"] if p["kind"] == "vcs"]
    assert json.dumps(held[0]["held"]) == json.dumps([{"job": first, "count": 1}])
    number = world.show(first)["attempts"][-1]["number"]
    manual_control.reclaim(world.data, world.box(first, number), 30)
    world.wait(lambda: ("take", "restore", "yes") in server.of(first)[-1:], "the licence on the next machine", 90)
    for job in (first, second):
        assert world.wait_end(job)["state"] == "succeeded", world.explain()
        world.assert_identical(job)
        world.assert_one_owner(job)
    assert ("return", "notice", "yes") in server.of(first)
    assert server.most == 1
    assert server.too_many == [], "no step while another one had the licence"
    (identity,) = server.seen[first]
    assert identity.split()[0] == "02:73:70:6f:74:02"
    assert identity.split()[3:] == [first, first]
    assert identity.split()[2] != Path("/etc/machine-id").read_text().strip()
