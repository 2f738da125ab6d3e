"""Canaries given to a job that moves and is lost: looked for everywhere, found in its memory alone."""

from __future__ import annotations

import base64
import hashlib
import secrets
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import MARKS, PROGRAM, Fleet, fleet

pytestmark = [*MARKS]
CHECK = """\
for i in range(steps):
    for found, wanted in ((os.environb[b"API_TOKEN"], sys.argv[4]), (open("/run/secrets/db.key", "rb").read(), sys.argv[5])):
        if hashlib.sha256(found).hexdigest() != wanted: sys.exit(9)
"""
ASKED = {"API_TOKEN": {"from": "env:API_TOKEN", "as": "environment"}, "db.key": {"from": "file:db.key", "as": "file"}}


def _holding(places: Iterable[Path | str], values: Iterable[bytes]) -> list[str]:
    """Files that hold one of the values, or its text in base64 at any offset."""
    words = [w for v in values for w in (v, *(base64.b64encode(v[i:])[4:-8] for i in range(3)))]
    patterns = [x for w in words for x in ("-e", w.decode())]
    command = ["grep", "-raolF", "--devices=skip", *patterns, "--", *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return sorted(done.stdout.splitlines())


def _submit(world: Fleet, steps: int, values: dict[str, bytes]) -> str:
    program = PROGRAM.replace("for i in range(steps):\n", CHECK).encode()
    assert b"sys.exit(9)" in program
    job = str(world.client.post("/v1/ids", {"name": "canary"})["job"])
    world.client.upload(f"/v1/jobs/{job}/inputs/program.py", iter([program]), len(program))
    digests = [hashlib.sha256(values[n]).hexdigest() for n in ("API_TOKEN", "db.key")]
    spec = {
        "name": "canary",
        "command": ["/usr/bin/python3", "program.py", str(steps), "0.05", "0", *digests],
        "inputs": ["program.py"],
        "outputs": ["*.txt"],
        "memory_bytes": 1 << 29,
        "secrets": ASKED,
    }
    sent = {name: base64.b64encode(value).decode() for name, value in values.items()}
    world.client.put(f"/v1/jobs/{job}", {"spec": spec, "modes": {"program.py": 0o644}, "secrets": sent})
    world.steps[job] = steps
    return job


def _look_everywhere(world: Fleet, job: str, canaries: list[bytes]) -> None:
    """The store, the state, all logs; the disk and memory files of the machine; what processes show of themselves."""
    box = world.box(job, world.wait_state(job, "running")["number"])
    root = world.root(box)
    places = [world.path, root / "var/lib/spotsurfer", root / "run", root / "tmp", root / "root", root / "dev/shm"]
    assert _holding(places, canaries) == []
    shown = "".join(str(world.client.get(f"/v1/jobs/{job}{what}")) for what in ("", "/timeline", "/why"))
    shown += world.output(job) + b"".join(p.read_bytes() for p in _commands()).decode(errors="replace")
    assert not [c for c in canaries if c.decode() in shown]
    memory = _holding([f"/proc/{world.job_pid(box)}/environ"], canaries[:1])
    assert memory, "the search finds what is there"


def _commands() -> list[Path]:
    return [p for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]


@pytest.mark.slow
def test_they_are_found_nowhere_but_in_the_jobs_memory(tmp_path: Path) -> None:
    values = {name: f"canary-{secrets.token_hex(24)}".encode() for name in ASKED}
    canaries = list(values.values())
    with fleet(tmp_path) as world:
        job = _submit(world, 300, values)
        world.wait_line(job, 20)
        _look_everywhere(world, job, canaries)
        world.client.post(f"/v1/jobs/{job}/move", {})
        world.wait(lambda: world.show(job)["moves"] == 1 and world.attempt(job, "running", 2), "the move", 60)
        _look_everywhere(world, job, canaries)
        world.wait(lambda: any(m["attempt"] == 2 for m in world.moments(job, "saved")), "a checkpoint there")
        manual_control.reclaim(world.data, world.box(job, 2), 0)
        ended = world.wait_end(job)
        assert (ended["exit_code"], ended["moves"]) == (0, 2), world.explain()
        world.assert_identical(job)
        assert _holding([tmp_path], canaries) == []
    cores = [p for p in tmp_path.rglob("*core*") if p.is_file() and "core" in p.name.split(".")]
    assert cores == []
    assert _holding(["/var/log"], canaries) == []


@pytest.mark.slow
@pytest.mark.parametrize("waived", [False, True])
def test_the_user_is_told(tmp_path: Path, waived: bool) -> None:
    with fleet(tmp_path) as world:
        file = tmp_path / "job.toml"
        wish = "secrets_in_plain_images = true\n" if waived else ""
        file.write_text(f'command = ["true"]\n{wish}[secrets]\nTOKEN = "file:spotsurfer.toml"\n')
        words = ["--config", str(world.config), "submit", str(file)]
        done = subprocess.run([sys.executable, "-m", "spotsurfer", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert ("are NOT encrypted" if waived else "so they are encrypted") in done.stderr
        job = done.stdout.split()[1].rstrip(".")
        world.steps[job] = 0
        assert world.wait_end(job)["exit_code"] == 0
        told = next(m["text"] for m in world.moments(job, "submitted"))
        assert "TOKEN" in told and ("need not be" if waived else "are encrypted") in told
