"""Debian's real Slurm, asked anew: what the client scripts printed with it is still what they print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from slurm import real_slurm, transcripts

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    assert not (missing := real_slurm.missing()), f"{missing} are missing: apt-get install {' '.join(real_slurm.PACKAGES)}"
    with TemporaryDirectory(prefix="rs-") as folder, real_slurm.real_slurm(Path(folder)) as slurm:
        yield slurm.environment


@pytest.mark.parametrize("name", transcripts.names())
def test_the_real_slurm_still_says_so(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    assert transcripts.run(name, tmp_path, environment, 280) == (transcripts.TRUTH / f"{name}.txt").read_text()
