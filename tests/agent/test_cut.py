"""Where memory is cut into chunks: by its content alone, at page boundaries."""

from __future__ import annotations

import itertools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from spotsurfer_agent.chunks.chunker import MASK, PAGES_MAX, PAGES_MIN, Cutter
from spotsurfer_agent.chunks.fingerprints import Printer, pairs
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import PAGE


def pages(count, seed):
    return random.Random(seed).randbytes(count * PAGE)


def chunks_of(data, step=1 << 30):
    cutter, out, begun = Cutter(), [], 0
    prints = pairs(Printer(Keys.derive(b"", "job").prints).of_pages(memoryview(data)))
    for at in range(0, len(prints), step):
        for end in cutter.cuts(prints[at : at + step]):
            out.append(data[begun * PAGE : (at + end) * PAGE])
            begun = at + end
    return [*out, data[begun * PAGE :]]


def test_cuts_are_of_the_size_that_was_promised_and_of_the_content_alone():
    data = pages(8000, 1)
    cut = chunks_of(data)
    sizes = [len(c) // PAGE for c in cut]
    assert b"".join(cut) == data
    assert min(sizes[:-1]) >= PAGES_MIN
    assert max(sizes) <= PAGES_MAX
    assert 256 <= sum(sizes[:-1]) / len(sizes[:-1]) <= 512, "1 to 2 MiB"
    assert chunks_of(data, step=7) == chunks_of(data, step=1000) == cut
    moved = chunks_of(pages(100, 2) + data)
    assert len(set(moved) & set(cut)) >= len(cut) - 5, "what moved is found again"
    changed = chunks_of(data[: 4000 * PAGE] + pages(1, 3) + data[4001 * PAGE :])
    assert len(set(changed) & set(cut)) >= len(cut) - 3


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3000), max_size=6), st.integers(0, 5000), st.integers(1, 700))
def test_any_marks_give_chunks_within_bounds(marks, count, step):
    prints = np.full((count, 2), int(MASK), dtype=np.uint64)
    for mark in marks:
        prints[mark : mark + 1, 0] = 0
    cutter, ends = Cutter(), [0]
    for at in range(0, count, step):
        ends += [at + end for end in cutter.cuts(prints[at : at + step])]
    sizes = [b - a for a, b in itertools.pairwise(ends)]
    assert all(PAGES_MIN <= s <= PAGES_MAX for s in sizes)
    assert count - ends[-1] < PAGES_MAX
    assert all(s == PAGES_MAX or end - 1 in marks for s, end in zip(sizes, ends[1:], strict=False))
