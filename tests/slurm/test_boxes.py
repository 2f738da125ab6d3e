"""The same client scripts with a real controller, real agents in boxes, and CRIU: what they print, field by field."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import transcripts
from slurm.differences import unexplained
from support.fleet import CONFIG, MARKS, Fleet, fleet

from spotsurfer.slurm.install import install

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(1000)]
# As many processors and licences as the real Slurm had. Machines are kept, as Slurm's are.
CLUSTER = (
    CONFIG.replace("m6i.large", "m6i.xlarge")
    .replace("instances_max = 12\nidle_seconds = 0", "instances_max = 3\nidle_seconds = 600\nkill_wait_seconds = 3")
    .replace("[provider.local]", "[licences]\nvcs = 2\n[provider.local]")
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("cluster"), 600, CLUSTER) as made:
        with sqlite3.connect(made.data / "state.db") as database:
            database.execute("INSERT INTO meta (key, value) VALUES ('number', ?)", (str(transcripts.FIRST_NUMBER),))
        yield made


@pytest.mark.parametrize("name", transcripts.names())
def test_a_script_prints_what_it_prints_with_the_real_slurm(name: str, world: Fleet, tmp_path: Path) -> None:
    programs, folder = tmp_path / "bin", tmp_path / "wf"
    folder.mkdir()
    install(programs, {"main": "spot-first"})
    environment = {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "SPOTSURFER_URL": world.client.place,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    printed = transcripts.run(name, folder, environment, 900)
    truth = (transcripts.TRUTH / f"{name}.txt").read_text()
    assert unexplained(name, truth, printed) == [], printed
