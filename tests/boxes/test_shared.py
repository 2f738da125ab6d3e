"""Jobs that write to a file system that all machines share: a reclaim, a rehearsal, and two jobs that write one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import CONFIG, MARKS, PROGRAM, Fleet, fleet

from spotsurfer.cli import follow

pytestmark = MARKS
STEPS = 400
NAS = {"name": "nas", "type": "bind", "source": "/var/lib/spotsurfer/folders/nas", "target": "nas", "read_only": False}
# Each line once, in a file that grows; a number that is read, found right and rewritten in place.
SHARES = """\
import os
lines = open("nas/{name}.txt", "a", buffering=1)
place = os.open("nas/{name}.bin", os.O_RDWR | os.O_CREAT)
os.pwrite(place, bytes(8), 0)
"""
EACH = """\
    lines.write(str(i) + "\\n")
    assert int.from_bytes(os.pread(place, 8, 0), "little") == i, "it is not as this job left it"
    os.pwrite(place, (i + 1).to_bytes(8, "little"), 0)
"""


@pytest.fixture(scope="module")
def nas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nas")
    folder.chmod(0o777)  # the jobs are nobody's
    return folder


@pytest.fixture(scope="module")
def world(nas: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    config = CONFIG + f'folders = {{{{ nas = "{nas}" }}}}\n'
    with fleet(tmp_path_factory.mktemp("shared"), 600, config=config) as made:
        yield made


def submit(world: Fleet, name: str, steps: int = STEPS) -> str:
    text = SHARES.format(name=name) + PROGRAM.replace("    time.sleep(pause)\n", EACH + "    time.sleep(pause)\n")
    return world.submit(steps, text=text, name="shares", mounts=[NAS])


def test_a_reclaim_without_notice_undoes_what_was_written_since_and_a_rehearsal_touches_nothing(
    world: Fleet, nas: Path
) -> None:
    job = submit(world, "one")
    world.wait_line(job, 20)
    world.client.post(f"/v1/jobs/{job}/checkpoint", {})
    world.wait(lambda: world.head(job)[-1].checkpoint is not None, "a checkpoint")
    saved = len((nas / "one.txt").read_text().splitlines())
    world.wait(lambda: len((nas / "one.txt").read_text().splitlines()) > saved + 20, "lines beyond it")
    done = follow.follow(world.client, f"/v1/jobs/{job}/rehearsals")
    assert "cut to their length (nas/one.txt)" in done["brought_back"], done
    assert "given their content again (nas/one.bin)" in done["brought_back"], done
    manual_control.reclaim(world.data, world.box(job, 1), 0.0)
    world.wait_end(job)
    world.assert_identical(job)
    assert (nas / "one.txt").read_text().split() == [str(i) for i in range(STEPS)]
    assert int.from_bytes((nas / "one.bin").read_bytes(), "little") == STEPS
    assert len(world.moments(job, "brought back")) == 1


def test_two_jobs_that_write_one_file_are_refused(world: Fleet) -> None:
    text = PROGRAM.replace("import hashlib", 'both = open("nas/both.txt", "a")\nimport hashlib', 1)
    first = world.submit(2000, text=text, name="first", mounts=[NAS])
    world.wait_line(first, 5)
    second = world.submit(2000, text=text, name="second", mounts=[NAS])
    world.wait(lambda: world.show(second)["state"] == "held", "the second one to be held", 120)
    reason = world.show(second)["reason"]
    assert f"/var/lib/spotsurfer/folders/nas/both.txt, which {first} has open" in reason, reason
    assert world.show(first)["state"] == "active"
    for job in (second, first):
        world.client.post(f"/v1/jobs/{job}/cancel")
        world.wait_end(job)
