"""README.md and docs/guides, as they stand: a shell types each block of a page, with a controller of its own.

`tests/architecture/test_documented_commands.py` counts what is run here, and lists what is not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support import levels
from support.page_runs import blocks, reader
from support.registry import Recipe, push, registry_at
from support.tools import AT, SETTINGS
from support.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1500)]
PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))) if any(b.runs for b in blocks(p))]
STARTS = "spotsurfer serve"
SERVE = f"{STARTS} >serve.log 2>&1 &\nuntil spotsurfer list 2>/dev/null; do sleep 1; done\n"
BWA = Recipe(["bwa", "dash", "coreutils"])


@contextmanager
def around(page: Path, home: Path) -> Iterator[None]:
    """For the page on containers: its registry, and a configuration by which boxes reach it."""
    if page.stem != "containers":
        yield
        return
    push(BWA, home / "registry", "tools/bwa:0.7", home / "made")
    with tempfile.TemporaryDirectory(prefix="registry-") as short, registry_at(home / "registry", Path(short, "socket")) as at:
        (home / "spotsurfer.toml").write_text("[provider.local]\n" + SETTINGS.format(socket=at))
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    levels.only_for_real_tests("boxes")
    home, data = tmp_path / "home", tmp_path / "data"
    (home / "units").mkdir(parents=True)
    if page.parent == ROOT:  # whose reader is in a checkout
        (home / ".venv").symlink_to(ROOT / ".venv")
    try:
        with reader(tmp_path, home, SPOTSURFER_CONTROLLER__DATA_DIR=str(data)) as person, around(page, home):
            person.places = {"/etc/systemd/system": f"{home}/units", "/srv/lab": f"{home}/lab", "registry.example": AT}
            if STARTS not in next(b.text for b in blocks(page) if b.runs and "spotsurfer " in b.text):
                person.type(SERVE)
            person.follow(page)
    finally:
        manual_control.clean(data, end_living=True)
