"""The agent dies while it fetches inputs: what is in the cache afterwards is whole, and the next one gets everything."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from spotsurfer_agent.prepare.inputs.cache import Cache
from support.sources import Mood, Web, serving
from support.tree import ROOT

POINTS_MAX = 200


def run(tmp_path: Path, doomed: int, *sources: str) -> int:
    words = [sys.executable, "-m", "support.killed_fetch", str(tmp_path), str(tmp_path / "cache"), str(doomed), *sources]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    return subprocess.run(words, check=False, env=environment, timeout=60).returncode


def whole(cache: Path) -> dict[str, int]:
    """What counts as there, each compared with its name."""
    found = {}
    for path in sorted((cache / "objects").glob("??/*")):
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == path.name, "a file that counts is not whole"
        found[path.name] = len(data)
    return found


def test_killed_before_any_change_of_the_disk(tmp_path: Path) -> None:
    with serving(Web()) as web:
        files = {"/small": os.urandom(1000), "/large": os.urandom((2 << 20) + 5), "/empty": b""}
        web.files = {path: Mood(data) for path, data in files.items()}
        sources = [web.url(path) for path in files]
        step, doomed = 3, 1  # each third change of the disk, beginning with another one each time round
        killed = 0
        while (code := run(tmp_path / str(doomed), doomed, *sources)) != 0:
            assert code == -9, f"it ended with {code}"
            killed += 1
            whole(tmp_path / str(doomed) / "cache")
            if doomed % 4 == 0:
                assert run(tmp_path / str(doomed), POINTS_MAX * 10, *sources) == 0
                view = tmp_path / str(doomed) / "job/inputs"
                assert {p.name: p.read_bytes() for p in view.iterdir()} == {k[1:]: v for k, v in files.items()}
            doomed += step
        assert killed > 8
        assert len(whole(tmp_path / str(doomed) / "cache")) == 3


def test_what_a_power_cut_left_is_looked_at_before_it_counts(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"whole").hexdigest()
    before = Cache(tmp_path, boot="one")
    for name, data in ((digest, b"whole"), ("b" * 64, b"who")):
        partial = before.begin(name, wait=True)
        assert partial is not None
        os.pwrite(partial.fd, data, 0)
        before.keep(partial, name)
        partial.release()
    assert before.held(digest)
    after = Cache(tmp_path, boot="two")
    assert after.held(digest)
    assert not after.held("b" * 64)
    assert not after.link("b" * 64, tmp_path / "x")
