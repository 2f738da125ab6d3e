"""Objects of others: whatever bytes come, they are a value within bounds or a ProtocolError."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_wire.json_codec import DEPTH_MAX, ProtocolError, decode, encode, plain
from spotsurfer_wire.messages import AgentState, Report

REPORT = Report("job", 1, "i-1", "0", 3, AgentState.RUNNING, 7, cpu_seconds=10.0, error="Größe 🜁")
TEXT = encode(REPORT).decode()


def _with(**fields: str) -> bytes:
    """The report with JSON of one's own in some fields."""
    plain = {name: json.dumps(value) for name, value in json.loads(TEXT).items()}
    return ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in {**plain, **fields}.items()) + "}").encode()


def test_a_value_comes_back() -> None:
    assert decode(Report, encode(REPORT)) == REPORT


@pytest.mark.parametrize(
    "fields",
    [
        {"cpu_seconds": "NaN"},
        {"cpu_seconds": "Infinity"},
        {"cpu_seconds": "-Infinity"},
        {"cpu_seconds": "1e999"},
        {"sequence": "9" * 30},
        {"sequence": "-9223372036854775809"},
        {"sequence": "1" * 5000},
        {"cpu_seconds": "1" * 400},
        {"unknown": "[" * 100_000 + "]" * 100_000},
        {"unknown": "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)},
        {"unknown": "NaN"},
    ],
)
def test_what_is_out_of_bounds_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ProtocolError) as e:
        decode(Report, _with(**fields))
    assert len(str(e.value)) < 400


@pytest.mark.parametrize("data", [b"", b"\xff\xfe{}", "{}".encode("utf-16"), b'{"protocol": "\xed\xb3\xb6"}', b"[1", b"null"])
def test_what_is_no_text_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(Report, data)


def test_pairs_of_surrogates_are_one_character() -> None:
    assert decode(Report, _with(error='"\\ud83d\\ude00"')).error == "😀"


def test_names_that_are_no_utf_8_are_written_so_that_all_can_read_them() -> None:
    """A program that holds `Größe.dat` (Latin-1) open puts such a name into its agent's errors."""
    name = b"Gr\xf6\xdfe.dat".decode(errors="surrogateescape")
    said = replace(REPORT, error=f"can't save {name}")
    assert decode(Report, encode(said)).error == "can't save Gr\\udcf6\\udcdfe.dat"


@pytest.mark.parametrize(("text", "read"), [("Gr\\udcf6\\udcdfe.dat", "Gr\\udcf6\\udcdfe.dat"), ("\\uD83D!", "\\ud83d!")])
def test_agents_up_to_0_2_wrote_them_as_they_are(text: str, read: str) -> None:
    """Refused, they held each job that has such a file open, at the upgrade of its controller."""
    report = decode(Report, _with(error=f'"{text}"'))
    assert report.error == read


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(json.loads(TEXT))), JSON, max_size=6))
def test_any_report_is_decoded_to_finite_storable_values_or_refused(changes: dict[str, Any]) -> None:
    data = json.dumps({**json.loads(TEXT), **changes}).encode()
    try:
        report = decode(Report, data)
    except ProtocolError:
        return
    json.dumps(plain(report), ensure_ascii=False, allow_nan=False).encode()
    assert math.isfinite(report.cpu_seconds) and abs(report.sequence) < 2**63


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with suppress(ProtocolError):
        decode(Report, data)
