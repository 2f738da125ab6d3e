"""Every block of TOML in a guide is a job file, or a configuration, whose keys and values are taken."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from support.page_runs import Block, blocks
from support.tree import ROOT

from spotsurfer.config.settings import load_settings
from spotsurfer.jobspec.keys import KEYS, TABLES

PAGES = [ROOT / "docs/reference/job-file.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
BLOCKS = [b for page in PAGES for b in blocks(page) if b.language == "toml"]


def test_there_are_some() -> None:
    assert len(BLOCKS) > 10


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.place)
def test_toml_of_a_page_is_taken(block: Block, tmp_path: Path) -> None:
    table = tomllib.loads(block.text)
    if set(table) <= {key.partition(".")[0] for key in KEYS}:
        flat = {k: v for k, v in table.items() if k not in TABLES}
        flat |= {f"{name}.{k}": v for name in TABLES for k, v in table.get(name, {}).items()}
        for key, value in flat.items():
            KEYS[key].parse(value)
    else:
        (tmp_path / "spotsurfer.toml").write_text(block.text)
        load_settings(tmp_path / "spotsurfer.toml")
