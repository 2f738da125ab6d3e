"""Addresses with wildcards: what they mean, and where it arrives."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spotsurfer_wire import input_addresses
from spotsurfer_wire.messages import Fetch

KEYS = ["a.fq", "reads/a.fq", "reads/b.fq.gz", "reads/deep/c.fq", "reads/x[1].fq", "readsome/d.fq", "reads/", "reads/.fq"]
MEANS = [
    ("s3://b/reads/*.fq", ["reads/a.fq", "reads/x[1].fq", "reads/.fq"]),
    ("s3://b/reads/**", ["reads/a.fq", "reads/b.fq.gz", "reads/deep/c.fq", "reads/x[1].fq", "reads/.fq"]),
    ("s3://b/**/*.fq", ["a.fq", "reads/a.fq", "reads/deep/c.fq", "reads/x[1].fq", "readsome/d.fq", "reads/.fq"]),
    ("s3://b/reads/", ["reads/a.fq", "reads/b.fq.gz", "reads/deep/c.fq", "reads/x[1].fq", "reads/.fq"]),
    ("s3://b/reads*/?.fq", ["reads/a.fq", "readsome/d.fq"]),
    ("s3://b/reads/[!b].fq", ["reads/a.fq"]),
    ("s3://b/", [k for k in KEYS if not k.endswith("/")]),
]


@pytest.mark.parametrize(("source", "keys"), MEANS)
def test_what_it_means(source: str, keys: list[str]) -> None:
    at = input_addresses.address(source)
    assert at.is_many
    assert [k for k in KEYS if input_addresses.matches(at, k)] == keys
    assert all(k.startswith(at.prefix) for k in keys), "a listing that begins there finds all of it"


ARRIVES = [
    ("s3://b/x/a.fq", "", "x/a.fq", "a.fq"),
    ("s3://b/x/a.fq", "in/", "x/a.fq", "in/a.fq"),
    ("s3://b/x/a.fq", "in/b.fq", "x/a.fq", "in/b.fq"),
    ("s3://b/x/reads/", "", "x/reads/deep/a.fq", "reads/deep/a.fq"),
    ("s3://b/x/reads/", "in", "x/reads/deep/a.fq", "in/deep/a.fq"),
    ("s3://b/x/*.fq", "", "x/a.fq", "a.fq"),
    ("s3://b/x/**/*.fq", "in/", "x/y/a.fq", "in/y/a.fq"),
    ("s3://b/", "", "x/a.fq", "x/a.fq"),
    ("https://h/x/a%20b.fq?key=1/2", "", "", "a b.fq"),
]


@pytest.mark.parametrize(("source", "to", "key", "path"), ARRIVES)
def test_where_it_arrives(source: str, to: str, key: str, path: str) -> None:
    assert input_addresses.arrives(Fetch(source, to), key) == path


LETTERS = st.text("ab*?[]!-.", min_size=1, max_size=8)


@given(LETTERS, st.text("ab-.[]!", min_size=1, max_size=8))
def test_within_a_folder_it_is_what_shells_do(pattern: str, name: str) -> None:
    if "**" in pattern or "[" in pattern:  # fnmatch knows no **, and reads unclosed or odd sets in its own way
        return
    at = input_addresses.address("s3://b/x/" + pattern)
    if at.is_many:
        assert input_addresses.matches(at, "x/" + name) is fnmatch.fnmatchcase(name, pattern)


def test_a_set_that_is_none_matches_nothing() -> None:
    assert not input_addresses.matches(input_addresses.address("s3://b/[b-a]"), "a")


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("[a-c]", "abc", "d-"),
        ("[-a]", "-a", "b"),
        ("[a-]", "-a", "b"),
        ("[a&&b]", "a&b", "c"),
        ("[!a-c]", "d-", "abc"),
        ("[x||~~]", "x|~", "y"),
    ],
)
def test_what_a_set_holds(pattern: str, names: str, others: str) -> None:
    at = input_addresses.address("s3://b/" + pattern)
    assert [input_addresses.matches(at, name) for name in names + others] == [True] * len(names) + [False] * len(others)


@example("[?--]", "?")
@given(LETTERS, LETTERS)
def test_no_pattern_breaks_it(pattern: str, name: str) -> None:
    input_addresses.matches(input_addresses.address("s3://b/" + pattern), name)
