"""Inode numbers come back on btrfs and ext4; who needs them on a disk that can't give them again is told."""

from __future__ import annotations

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.real
SCENES = "support.identity_scenes"


@pytest.mark.parametrize("fs", ["btrfs", "ext4"])
def test_files_are_made_with_the_numbers_that_they_had(tmp_path, fs):
    with minibox(tmp_path / "box", tmp_path / "store", fs, module=SCENES) as box:
        box.run("numbers")


@pytest.mark.parametrize("fs", ["btrfs", "ext4"])
def test_a_connection_to_sqlite_stays_open_over_two_moves(tmp_path, fs):
    for act in ("begin", "move", "end"):
        with minibox(tmp_path / act, tmp_path / "store", fs, module=SCENES) as box:
            box.run("database", act)


@pytest.mark.parametrize("fs", ["btrfs", "ext4"])
def test_a_listing_goes_on_over_two_moves(tmp_path, fs):
    for act in ("begin", "move", "end"):
        with minibox(tmp_path / act, tmp_path / "store", fs, module=SCENES) as box:
            box.run("lists", act)


def test_on_xfs_a_save_waits_a_moment_for_a_listing_and_then_says_so(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", "xfs", module=SCENES) as box:
        box.run("waits")


def test_on_xfs_a_job_with_a_connection_to_sqlite_is_told_that_it_can_not_be_saved(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", "xfs", module=SCENES) as box:
        box.run("told")
