"""What is done with which file of a shared file system: it comes back exactly, or that is refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.files import shared_plan
from spotsurfer_agent.files.shared_plan import Deed, Found, Writing, ways
from spotsurfer_wire.manifest import GROWS, KEPT, UNKEPT, Entry, Shared

ENTRY = Entry("out/a", "file", size=100, mtime_ns=7, inode=5)
AS_IT_WAS = Found(5, 100, 7, "h", "t")


def record(way: str) -> Shared:
    return Shared(ENTRY, way, *(("h", "t") if way == GROWS else ("", "")))


# What happened to the file -> what is done with one that grows, is kept, was not kept.
CASES: dict[str, tuple[Found | None, Deed, Deed, Deed]] = {
    "nothing": (AS_IT_WAS, Deed.LEAVE, Deed.LEAVE, Deed.LEAVE),
    "it grew": (Found(5, 130, 9, "h", "t"), Deed.CUT, Deed.FILL, Deed.REFUSE),
    "it grew and was rewritten": (Found(5, 130, 9, "h", "x"), Deed.REFUSE, Deed.FILL, Deed.REFUSE),
    "it was rewritten": (Found(5, 100, 9, "x", "t"), Deed.REFUSE, Deed.FILL, Deed.REFUSE),
    "it was touched": (Found(5, 100, 9, "h", "t"), Deed.LEAVE, Deed.FILL, Deed.REFUSE),
    "it is shorter": (Found(5, 99, 9), Deed.REFUSE, Deed.FILL, Deed.REFUSE),
    "it is gone": (None, Deed.REFUSE, Deed.MAKE, Deed.REFUSE),
    "another one has its name": (Found(6, 130, 9, "h", "t"), Deed.REFUSE, Deed.MAKE, Deed.REFUSE),
    "a folder has its name": (Found(6, 0, 9, regular=False), Deed.REFUSE, Deed.REFUSE, Deed.REFUSE),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_done(case: str) -> None:
    found, *deeds = CASES[case]
    for way, deed in zip((GROWS, KEPT, UNKEPT), deeds, strict=True):
        step = shared_plan.step(record(way), found)
        assert step.deed is deed, way
        if deed is Deed.REFUSE:
            assert "out/a" in shared_plan.refusal([step])


@pytest.mark.parametrize("case", CASES)
def test_a_copy_takes_nothing_from_the_job_that_wrote_it(case: str) -> None:
    for way in (GROWS, KEPT, UNKEPT):
        (step,) = shared_plan.of_copy([shared_plan.step(record(way), CASES[case][0])])
        assert step.deed in (Deed.LEAVE, Deed.REFUSE)


def test_a_refusal_names_both_values() -> None:
    why = shared_plan.refusal([shared_plan.step(record(GROWS), Found(5, 99, 9))] * 2)
    assert why == (
        "this image can't be continued: out/a on a shared file system had 100 bytes and has 99 (and 1 more such files)"
    )


SIZES = st.integers(0, 1 << 40)
FOUND = st.builds(
    Found, st.sampled_from([5, 6]), st.integers(90, 110), st.sampled_from([7, 8]), st.sampled_from(["h", "x", ""]),
    st.sampled_from(["t", "x", ""]), st.booleans(),
)  # fmt: skip


@given(st.sampled_from([GROWS, KEPT, UNKEPT]), st.none() | FOUND)
def test_every_deed_leads_to_the_checkpoint_or_is_refused(way: str, found: Found | None) -> None:
    """Done once, there is nothing left to do; a file of somebody else is never cut; no content is made up."""
    step = shared_plan.step(record(way), found)
    if step.deed is Deed.REFUSE:
        assert way != KEPT or (found is not None and not found.regular)
        return
    if step.deed in (Deed.FILL, Deed.MAKE):
        assert way == KEPT
        return
    assert found is not None
    assert (found.inode, found.regular) == (5, True)
    after = dataclasses.replace(found, size=100, mtime_ns=7) if step.deed is Deed.CUT else found
    assert after.size == 100
    assert after.mtime_ns == 7 or way == GROWS
    assert way != GROWS or (after.head, after.tail) == ("h", "t")
    assert shared_plan.step(record(way), after).deed is Deed.LEAVE


WRITINGS = st.lists(
    st.builds(Writing, st.text("ab", min_size=1), st.just(1), SIZES, st.booleans(), st.booleans()),
    max_size=12, unique_by=lambda w: w.path,
)  # fmt: skip


@given(WRITINGS, st.dictionaries(st.text("ab", min_size=1), st.booleans()), SIZES)
def test_what_is_kept_stays_within_its_limit(found: list[Writing], went_back: dict[str, bool], most: int) -> None:
    chosen = ways(found, went_back, most)
    assert chosen.keys() == {w.path for w in found}
    kept = [w for w in found if chosen[w.path] == KEPT]
    assert sum(w.size for w in kept) <= most
    for w in found:
        grows = w.at_end and not w.mapped and not went_back.get(w.path, False)
        assert (chosen[w.path] == GROWS) == grows
        if chosen[w.path] == UNKEPT:
            assert w.size + sum(k.size for k in kept) > most
            assert all(k.size <= w.size for k in kept), "small files come first"
