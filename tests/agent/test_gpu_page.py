"""The tables of docs/gpu.md are those of the measured rows; and what the kernel says of huge pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tree import ROOT

from bench.gpu import floor, page
from bench.gpu.memory import Pages, pages

ROWS: list[dict[str, Any]] = json.loads((ROOT / "bench/results/gpu.json").read_text())
HAND = {
    "variants": [{"variant": "plain", "out_seconds": 20.0, "gpu_bytes": 40e9, "huge_share": 0.1, "back_seconds": 6.0}],
    "out_seconds": 10.0, "gpu_bytes": 40e9, "huge_share": 0.95, "dump_seconds": 6.0,
}  # fmt: skip


def test_the_page_is_made_of_the_rows() -> None:
    text = (ROOT / "docs/gpu.md").read_text()
    assert page.filled(text, ROWS) == text, "run python -m bench.gpu.page"
    with pytest.raises(ValueError, match="no place for the table 'measured'"):
        page.filled("# no tables", ROWS)


def test_by_hand_and_ours_stand_beside_each_other() -> None:
    row = dict(ROWS[6], by_hand=HAND, live_ratio=1.1, durable_ratio=1.2)
    row["saves"] = [{**row["saves"][0], "huge_share": 0.07}]
    lines = page.beside([row, ROWS[0]]).splitlines()
    assert [x.split("|")[2].strip() for x in lines[2:]] == ["plain", "then", "ours"]
    assert "2.0 GB/s | 10 % | 6.0 s" in lines[2]
    assert "4.0 GB/s | 95 % | | 6.0 s | 1.10, 1.20 (target of the latter 0.8)" in lines[3]
    assert "| 7 % |" in lines[4]
    assert page.beside(ROWS[:2]) == "Not measured yet: `make bench-gpu` does."


def test_ours_is_the_largest_row_on_one_gpu() -> None:
    rows = [dict(ROWS[1], gpu_bytes=gb * 1e9, durable_seconds=gb, restore_seconds=gb / 2) for gb in (20, 40, 30)]
    rows.append(dict(rows[1], gpus=2, gpu_bytes=90e9))
    assert "40.0 GB | 40.0 s | 20.0 s" in page.published(rows).splitlines()[-1]


def test_a_second_save_is_told_beside_the_least_that_any_could_send() -> None:
    row = dict(ROWS[1], sent_share=0.21, floor_share=0.2)
    assert "| 21 %, least 20 % | yes |" in page.measured([row])
    first, second = (np.array(x, dtype=np.uint64) for x in ([1, 2, 3, 4], [9, 4, 3, 2, 1, 9, 1, 1]))
    assert floor.share(first, second) == 0.25
    assert floor.share(first, first[:0]) == 0.0


def test_free_memory_that_could_become_huge_pages(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemFree: 100 kB\nAnonPages: 50 kB\nAnonHugePages: 20 kB\nHugePages_Total: 0\n")
    (tmp_path / "buddyinfo").write_text(
        "Node 0, zone      DMA 1 1 1 1 1 1 1 1 1 0 0\nNode 0, zone   Normal 9 9 9 9 9 9 9 9 9 3 2\n"
    )
    found = pages(tmp_path / "meminfo", tmp_path / "buddyinfo")
    assert found == Pages(50 << 10, 20 << 10, 100 << 10, (3 << 21) + (2 << 22))
    came = Pages(150 << 10, 70 << 10, 0, 0).since(found)
    assert came.told(7 << 21) == {"huge_share": 0.5, "free_huge_share": 1.0, "came_bytes": 100 << 10}
