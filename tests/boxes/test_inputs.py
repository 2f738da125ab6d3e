"""Jobs whose inputs lie in a bucket, from the job's specification to machines that fetch them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet import CONFIG, MARKS, PROGRAM, Fleet, fleet

pytestmark = MARKS
# It keeps an input open over its moves, and reads the rest of it in the end.
READS = PROGRAM.replace("read, write", 'held = open("ref/x.txt")\nassert held.read(3) == "abc"\nread, write', 1)
READS = READS.replace("sys.exit(", 'assert held.read() == "def"\nsys.exit(', 1)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bucket")
    (folder / "ref").mkdir()
    (folder / "ref/x.txt").write_text("abcdef")
    (folder / "program.py").write_text(READS)
    return folder


@pytest.fixture(scope="module")
def world(bucket: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    config = CONFIG + f'buckets = {{{{ lab = "{bucket}" }}}}\n'
    with fleet(tmp_path_factory.mktemp("inputs"), config=config) as made:
        yield made


def submit(world: Fleet, *sources: str, steps: int = 200) -> str:
    job = str(world.client.post("/v1/ids", {"name": "fetching"})["job"])
    words = ["/usr/bin/python3", "program.py", str(steps), "0.05"]
    fetches = [{"source": s} for s in sources]
    body = {"name": "fetching", "command": words, "fetches": fetches, "outputs": ["*.txt"], "memory_bytes": 1 << 29}
    world.client.put(f"/v1/jobs/{job}", {"spec": body, "modes": {}})
    world.steps[job] = steps
    return job


def submit_file(world: Fleet, text: str, steps: int) -> str:
    """As a user does."""
    path = world.path / "job.toml"
    path.write_text(text)
    words = [sys.executable, "-m", "spotsurfer", "--config", str(world.config), "submit", str(path), "--json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    job = str(json.loads(done.stdout)["id"])
    world.steps[job] = steps
    return job


def held(world: Fleet, job: str) -> str:
    world.wait(lambda: world.show(job)["state"] == "held", f"{job} to be held")
    return str(world.show(job)["reason"])


def test_inputs_are_fetched_by_each_machine_and_the_job_moves(world: Fleet) -> None:
    text = 'command = "/usr/bin/python3 program.py 200 0.05"\noutputs = ["*.txt"]\n[resources]\nmemory = "512M"\n'
    inputs = 'inputs = ["s3://lab/program.py", { from = "s3://lab/ref/*.txt", to = "ref", region = "us-east-1" }]\n'
    job = submit_file(world, inputs + text, 200)
    world.wait_line(job, 20)
    world.client.post(f"/v1/jobs/{job}/move", {})
    world.wait_state(job, "running", 2)
    view = world.root(world.box(job, 2)) / "var/lib/spotsurfer/job/inputs"
    assert view.is_symlink()
    assert world.wait_end(job)["moves"] == 1
    world.assert_identical(job)
    pins = json.loads((world.data / "store/jobs" / job / "INPUTS.json").read_text())
    assert [p["path"] for p in pins["files"]] == ["program.py", "ref/x.txt"]


@pytest.mark.slow
def test_an_input_that_changed_holds_the_job_until_it_is_put_back(world: Fleet, bucket: Path) -> None:
    job = submit(world, "s3://lab/program.py", "s3://lab/ref/", steps=150)
    world.wait_line(job, 20)
    world.client.post(f"/v1/jobs/{job}/hold")
    held(world, job)
    (bucket / "ref/x.txt").write_text("abcxyz")
    granted = sum(1 for a in world.show(job)["attempts"] if a["granted_at"])
    world.client.post(f"/v1/jobs/{job}/resume")
    world.wait(lambda: "s3://lab/ref/x.txt is not what the job started with" in world.show(job)["reason"], "the reason", 90)
    assert "sha256" in held(world, job)
    tried = [a for a in world.show(job)["attempts"] if a["granted_at"]]
    assert len(tried) <= granted + 1
    (bucket / "ref/x.txt").write_text("abcdef")
    world.client.post(f"/v1/jobs/{job}/resume")
    world.wait_end(job)
    world.assert_identical(job)


@pytest.mark.slow
def test_an_input_that_is_not_there_holds_the_job_after_one_machine(world: Fleet) -> None:
    job = submit(world, "s3://lab/nothing.fa")
    assert "input s3://lab/nothing.fa is not there" in held(world, job)
    assert len(world.show(job)["attempts"]) == 1, "granted or not: it may know that before it could be"
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.wait_end(job)
