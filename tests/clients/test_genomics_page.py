"""docs/genomics-in-ten-minutes.md, as it stands: its commands are run one after the other, and the results are identical."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.bench import CLIENTS
from spotsurfer_providers.local import manual_control
from support import fleet as fleets
from support.tree import ROOT

pytestmark = [*fleets.MARKS, pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE = ROOT / "docs" / "genomics-in-ten-minutes.md"


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Where things of the page lie here: the environment where boxes see it, all else in the test's folder."""
    CLIENTS.mkdir(parents=True, exist_ok=True)
    opt = tempfile.mkdtemp(prefix="page-", dir=CLIENTS)
    Path(opt).chmod(0o755)  # jobs run as another user
    srv = tmp_path / "srv"
    srv.mkdir()
    yield {"/opt/genomics": opt, "/srv/": f"{srv}/"}
    shutil.rmtree(opt)
    if (srv / "genomics-controller").is_dir():
        manual_control.clean(srv / "genomics-controller", end_living=True)


def test_the_page_does_what_it_says(places: dict[str, str], tmp_path: Path) -> None:
    script = "set -e -o pipefail -m\n" + "\n".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    for place, ours in places.items():
        script = script.replace(place, ours)
    environment = {**os.environ, "HOME": str(tmp_path), "SPOTSURFER_RUNTIME__PATH": str(ROOT / "build" / "runtime")}
    end = "\nkill %1; wait %1 || true\n"
    done = subprocess.run(
        ["bash", "-c", script + end],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    log = Path(places["/srv/"], "genomics", "snakemake.log")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log.read_text() if log.exists() else ''}"
    assert "identical" in done.stdout.splitlines()
    assert "bwa" in done.stdout, "the report names rules"
