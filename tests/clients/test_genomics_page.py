"""docs/genomics-in-ten-minutes.md, as it stands: its commands are run one after the other, and the results are identical."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.bench import CLIENTS
from spotsurfer_providers.local import manual_control
from support import fleet as fleets
from support.page_runs import reader
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
    shutil.rmtree(opt, ignore_errors=True)
    if (srv / "genomics-controller").is_dir():
        manual_control.clean(srv / "genomics-controller", end_living=True)


def test_the_page_does_what_it_says(places: dict[str, str], tmp_path: Path) -> None:
    with reader(tmp_path) as person:
        person.places = places
        said = person.follow(PAGE)
    assert "identical" in said.splitlines()
    assert "bwa" in said, "the report names rules"
    assert int(re.findall(r"^moves +(\d+)$", said, re.M)[0]) >= 1, said
