"""Which checkpoints stay: older ones go only when a newer one is proven."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotsurfer.core.checkpoints.retention import Known, RetentionRules, judge


def kept(known: list[Known], head: str | None = None, **rules: object) -> dict[str, str]:
    verdicts = judge(known, RetentionRules(**rules), head)  # type: ignore[arg-type]
    return {v.id: v.why for v in verdicts if v.keep}


def some(count: int, proven: int | None = None) -> list[Known]:
    return [Known(str(i), proven=i == proven) for i in range(count)]


def test_nothing_goes_while_nothing_is_proven() -> None:
    assert list(kept(some(9), newest=2)) == [str(i) for i in range(9)]


def test_what_is_older_than_the_newest_proven_one_goes() -> None:
    assert kept(some(6, proven=3), newest=1) == {
        "3": "the newest proven one",
        "4": "no newer one is proven",
        "5": "one of the newest",
    }


def test_the_newest_stay_even_where_proven_ones_are_newer() -> None:
    assert list(kept(some(6, proven=5), newest=3)) == ["3", "4", "5"]


def test_a_protected_and_a_needed_one_stay() -> None:
    known = [Known("0", protected=True), Known("1", needed="a save builds on it"), *some(5, proven=4)[2:]]
    assert kept(known, newest=1) == {"0": "protected by its user", "1": "a save builds on it", "4": "one of the newest"}


def test_a_line_that_was_left_behind_counts_for_nothing_and_goes_with_the_first_proof_after_it() -> None:
    known = [Known("0"), Known("1", counted=False, proven=True), Known("2")]
    assert list(kept(known, newest=1)) == ["0", "1", "2"]
    assert list(kept([*known, Known("3", proven=True)], newest=1)) == ["3"]


def test_what_was_never_committed_goes_unless_its_save_is_under_way() -> None:
    known = [Known("0"), Known("1", committed=False), Known("2", committed=False, needed="its save is under way")]
    assert list(kept(known)) == ["0", "2"]


def test_of_an_ended_job_only_what_is_protected_stays() -> None:
    assert list(kept([Known("0", protected=True), Known("1", proven=True)], "1", ended=True)) == ["0"]


KNOWN = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), max_size=12)


@given(KNOWN, st.integers(1, 4), st.data())
def test_what_the_job_goes_on_from_and_the_newest_proof_always_stay(
    flags: list[tuple[bool, bool, bool, bool]], newest: int, data: st.DataObject
) -> None:
    known = [Known(str(i), committed=a, counted=b, proven=c, protected=d) for i, (a, b, c, d) in enumerate(flags)]
    good = [k for k in known if k.committed and k.counted]
    head = data.draw(st.sampled_from(good)).id if good else None
    stay = set(kept(known, head, newest=newest))
    assert head is None or head in stay
    proven = [k.id for k in good if k.proven]
    assert set(proven[-1:]) <= stay
    assert {k.id for k in known if k.protected} <= stay
    if not proven:
        assert {k.id for k in known if k.committed} <= stay
