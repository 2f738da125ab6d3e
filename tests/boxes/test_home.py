"""Jobs that work in a folder of the submit host, on boxes: under the same path, over moves and reclaims, and home again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import MARKS, PROGRAM, Fleet, expected, fleet

from spotsurfer.home import at_home, bring, deliver, expect
from spotsurfer.home.book import Book
from spotsurfer.model.job import JobSpec
from spotsurfer.web.submitting import spec_body

pytestmark = MARKS
# The chain of hashes, which works in its folder by absolute paths alone.
WORKS = PROGRAM.replace("steps, pause", 'assert os.getcwd() == os.environ["WF"], os.getcwd()\nos.chdir("/")\nsteps, pause', 1)
WORKS = WORKS.replace('open("', 'open(os.environ["WF"] + "/out/')


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "wf"
    (folder / "out").mkdir(parents=True)
    (folder / "program.py").write_text(WORKS)
    (folder / "old.txt").write_text("old")
    (folder / "kept.txt").write_text("kept")
    (folder / "link").symlink_to("kept.txt")
    os.utime(folder / "kept.txt", (1_000_000, 1_000_000))
    return folder


@pytest.fixture
def closed(home: Path) -> Iterator[Path]:
    """The same in a user's home folder, which others may not enter: the job is another one."""
    users = Path(tempfile.mkdtemp(prefix="spotsurfer-", dir="/home"))
    shutil.copytree(home, users / "wf", symlinks=True)
    assert users.stat().st_mode & 0o077 == 0
    yield users / "wf"
    shutil.rmtree(users)


def submit(world: Fleet, home: Path, steps: int, book: Book) -> str:
    words = ("/usr/bin/python3", f"{home}/program.py", str(steps), "0.05")
    own = JobSpec("wf", words, home=str(home), stdout=f"{home}/log.txt", environment={"WF": str(home)}, memory_bytes=1 << 29)
    spec = bring(world.client, own, book=book)
    job = str(world.client.post("/v1/ids", {"name": "wf"})["job"])
    made = world.client.put(f"/v1/jobs/{job}", {"spec": spec_body(spec), "modes": {}})
    expect(world.client, [(spec, made)], book=book, start=False)
    return job


def test_it_works_in_the_same_path_over_a_move_and_a_reclaim_and_comes_home(world: Fleet, home: Path) -> None:
    book = Book()
    job = submit(world, home, 300, book)
    world.wait_line(job, 20)
    assert deliver(world.client, book=book).printed
    assert (home / "log.txt").read_text().splitlines()[:20] == expected(20)
    world.client.post(f"/v1/jobs/{job}/move", {})
    world.wait_state(job, "running", 2)
    world.wait_line(job, 100)
    manual_control.reclaim(world.data, world.box(job, 2), 20)
    (home / "kept.txt").read_text()
    assert world.wait_end(job)["moves"] == 2
    world.wait(lambda: deliver(world.client, book=book) and at_home(job, book), "what comes home")
    assert (home / "log.txt").read_text().splitlines() == expected(300)
    assert (home / "out/result.txt").read_text() == expected(300)[-1].split()[1] + "\n"
    assert len((home / "out/child.txt").read_text().splitlines()) == 300
    assert (home / "kept.txt").stat().st_mtime == 1_000_000
    assert book.jobs([job])[0].told == []


def test_a_cancelled_job_brings_home_what_it_made_and_the_courier_does_it(world: Fleet, closed: Path) -> None:
    home = closed
    words = [
        sys.executable,
        "-m",
        "spotsurfer",
        "--config",
        str(world.config),
        "submit",
        "--home",
        ".",
        "--json",
        "--mem",
        "512M",
    ]
    script = f"cd {home} && test $(id -u) -ne 0 && echo half > made.txt; rm old.txt; echo begun; exec sleep 600"
    done = subprocess.run([*words, "--", "sh", "-c", script], cwd=home, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    job = str(json.loads(done.stdout)["id"])
    world.wait(lambda: "begun" in world.output(job), "its first line")
    (home / "kept.txt").write_text("changed here")
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.wait((home / "made.txt").exists, "what the courier brings")
    world.wait(lambda: at_home(job), "the end of the delivery")
    assert (home / "made.txt").read_text() == "half\n"
    assert not (home / "old.txt").exists()
    assert (home / "kept.txt").read_text() == "changed here"
