"""Four real programs, saved three times and moved twice at random moments: the same bytes. All: `make test-programs`."""

from __future__ import annotations

import secrets

import pytest
from programs import plain
from programs.entry import Entry
from programs.surf import surfed
from support.fleet import MARKS

pytestmark = MARKS


@pytest.mark.parametrize("name", ["shell", "bwa", "threads", "multiprocessing"])
def test_identical(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("p")  # a socket's path is short
    entry, seed = Entry.load(name), secrets.token_hex(4)
    print(f"seed {seed}")  # shown with a failure: `python -m programs.run --seed` repeats its moments
    assert not entry.missing(), "make setup installs what the tests need"
    plain.prepare(entry, tmp_path / name)
    alone = plain.undisturbed(entry, tmp_path / name)
    _, moved = surfed(entry, tmp_path / name, entry.disks[0], min(alone.seconds, entry.seconds), seed, print)
    assert alone.differs(moved) == ""
