"""Units as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotsurfer.common.units import duration, parse_bytes, parse_seconds, parse_usd, size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("6h", 21600),
        ("2d", 172800),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (" 10 M ", 600),
        ("7", 7),
        (0.5, 0.5),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "10x", "10 minutes", "-1", -1, "1h30", True, None, [], float("nan"), float("inf"), "1e3", "9999w"]
)
def test_wrong_durations(text: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4G", 4 << 30),
        ("4GiB", 4 << 30),
        ("4gb", 4 << 30),
        ("500M", 500 << 20),
        ("1.5 T", 3 << 39),
        ("64K", 65536),
        ("100B", 100),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "4", 4, "G", "4X", "4 parsecs", "4iB", "-4G", "9999999T", True, None, "4G4G"])
def test_wrong_sizes(text: object) -> None:
    with pytest.raises(ValueError, match=r"expected|more than any machine"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "micros"), [("25", 25_000_000), ("0.50", 500_000), (3, 3_000_000), (0.1, 100_000), ("0.0000015", 2)]
)
def test_amounts(text: object, micros: int) -> None:
    assert parse_usd(text) == micros


@pytest.mark.parametrize("text", ["", "$5", "5 EUR", "-1", "NaN", "Infinity", True, None, [], "1e99"])
def test_wrong_amounts(text: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_usd(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.394, "0.39s"),
        (9.999, "10s"),
        (42.4, "42s"),
        (59.6, "1m00s"),
        (725, "12m05s"),
        (12000, "3h20m"),
        (532800, "6d04h"),
        (-5, "-5s"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (2 << 40, "2.0 TiB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size(count) == text


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (parse_seconds, parse_bytes, parse_usd):
        try:
            assert parse(text) >= 0
        except ValueError as e:
            assert str(e).startswith("is ")
