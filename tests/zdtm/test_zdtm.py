"""What the run makes of `.desc` files, of make's words and of what it saw. The programs themselves run by hand."""

from __future__ import annotations

import pytest
from zdtm import page, suite
from zdtm.program import Program, fields
from zdtm.verdict import PASS, Seen, Verdict, reason, verdict

WHOLE = {"user": "nobody", "live": ["", ""], "unharmed": PASS, "final": "", "from_live": PASS, "from_final": PASS, "lazy": True}
NO = "the job can't be saved: process 3 (x) has mapped huge pages"


def test_a_desc_is_read_with_its_comments_and_odd_spaces() -> None:
    text = "# why\n{'flavor': 'h ns', 'flags': 'suid  reqrst ', 'feature' : 'timens',\n 'ropts': '--a b', 'timeout': '60'}\n"
    found = Program("x", "static", ("./x",), **fields(text))
    assert (found.flags, found.feature, found.ropts, found.timeout) == (("suid", "reqrst"), ("timens",), ("--a", "b"), 60)
    assert found.is_root
    assert Program.of(found.text()) == found


def test_a_desc_that_is_computed_from_the_hosts_devices_leaves_its_program_out() -> None:
    assert fields('os.getenv("DEV") and {} or {}')["flags"] == ("noauto",)


def test_programs_and_their_arguments_are_those_that_make_would_call() -> None:
    lines = [
        "make: Entering directory 'static'",
        "./pty00 --pidfile=pty00.pid --outfile=pty00.out",
        "gcc -c late.c -o late.o",
        "./unlink_fstat01+ --pidfile=unlink_fstat01+.pid --outfile=unlink_fstat01+.out --filename=unlink_fstat01+.test",
        "./conntracks --statefile=conntracks.state --outfile=conntracks.out start",
    ]
    first, second = suite.commands("static", lines)
    assert first == Program("pty00", "static", ("./pty00", "--pidfile=pty00.pid", "--outfile=pty00.out"))
    assert (second.name, second.command[-1]) == ("unlink_fstat01+", "--filename=unlink_fstat01+.test")


@pytest.mark.parametrize(
    ("changes", "expected", "why"),
    [
        ({}, Verdict.PASSED, ""),
        ({"from_final": "FAIL: x"}, Verdict.FAILED, "restored from the final save: FAIL: x"),
        ({"from_live": "FAIL: y"}, Verdict.FAILED, "restored from the second live save: FAIL: y"),
        ({"unharmed": "FAIL: z", "undisturbed": PASS}, Verdict.FAILED, "after saves: FAIL: z"),
        ({"unharmed": "FAIL: z", "undisturbed": "FAIL: z"}, Verdict.NOT_COUNTED, "FAIL: z"),
        ({"unfit": "for another kind of processor"}, Verdict.NOT_COUNTED, "for another kind of processor"),
        ({"live": [NO, NO], "final": NO, "from_live": None, "from_final": None}, Verdict.REFUSED, NO),
        ({"live": ["", NO], "from_live": None}, Verdict.FAILED, NO),  # once it can, once it can't
        (
            {"live": [NO, NO], "final": NO, "unharmed": "FAIL: a", "undisturbed": PASS},
            Verdict.FAILED,
            "after saves: FAIL: a",
        ),
        ({"live": [NO, NO], "final": NO, "broken": "Hangs: 150 s"}, Verdict.FAILED, "Hangs: 150 s"),
        ({"from_final": None}, Verdict.FAILED, "it was not tried to the end"),
        ({"live": [], "unharmed": None, "final": None}, Verdict.FAILED, "it was not tried to the end"),
    ],
)
def test_verdict(changes: dict[str, object], expected: Verdict, why: str) -> None:
    seen = Seen("x", **{**WHOLE, **changes})  # type: ignore[arg-type]
    if not seen.saves:
        seen.from_live = seen.from_final = None
    assert (verdict(seen), reason(seen)) == (expected, why)


def test_the_page_counts_and_names_all() -> None:
    seen = [
        Seen("pipe00", **WHOLE),
        Seen("maps00", **{**WHOLE, "lazy": False}),
        Seen("huge", **{**WHOLE, "live": [NO, NO], "final": NO, "from_live": None, "from_final": None}),
        Seen("odd", **{**WHOLE, "from_final": "FAIL: a|b"}, alone="fails too: Error"),
        Seen("mount", undisturbed="ERR: mount (errno = 1)"),
        Seen("bind", undisturbed="ERR: mount (errno = 1)"),
    ]
    text = page.page(page.Run("4.2.1-1", "6.18", seen, ["late"]))
    assert "before 1 other programs were tried" in text and text.endswith("## Not tried yet\n\n`late`.\n")
    assert "| 6 | 4 | 2 | 1 | 1 | 2 |" in text
    assert "as with 1 of those that passed" in text
    assert "| `odd` | restored from the final save: FAIL: a\\|b | fails too: Error |" in text
    assert f"| {NO} | `huge` |" in text
    assert "| ERR: mount (errno = 1) | `bind`, `mount` |" in text
    assert "`maps00`, `pipe00`." in text
