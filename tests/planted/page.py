"""What a run found, as a table for a terminal and as docs/planted-faults.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from planted.fault import Fault

HEAD = """\
# Planted faults

`make test-faults PAGE=docs/planted-faults.md` wrote this page. Each row is a small change of the code that breaks one safety
property ([the list](../tests/planted/faults.toml)). The command makes a copy of the project, plants one fault in it, and runs
the tests of its level until one fails: first those that are near, then all others. It fails if no test notices a fault.

*Level*: `quick` is `make test-quick`, `default` is `make test`, which has all quick tests, too. *Seconds*: from the start of
pytest to its end after the first test that failed.

"""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one fault. `test` is the first one that failed; "" = none did."""

    fault: Fault
    test: str
    seconds: float
    near: bool = True  # one of the tests that were expected to notice

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        told = {k: v for k, v in asdict(self.fault).items() if k in ("name", "breaks", "file", "level")}
        return {**told, "test": self.test or None, "seconds": round(self.seconds, 1), "near": self.near}


def summary(results: Sequence[Result]) -> str:
    """One sentence."""
    quick = sum(1 for r in results if r.test and r.fault.level == "quick")
    missed = [r.fault.name for r in results if not r.test]
    text = f"{len(results) - len(missed)} of {len(results)} planted faults were noticed, {quick} of them by quick tests"
    return text + (f"; nobody noticed: {', '.join(missed)}" if missed else "")


def table(results: Sequence[Result]) -> str:
    """Lines for a terminal."""
    rows = [("fault", "level", "seconds", "first test that failed")]
    rows += [(r.fault.name, r.fault.level, f"{r.seconds:.1f}", _test(r)) for r in results]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in rows)


def write(path: Path, results: Sequence[Result]) -> None:
    """The page."""
    lines = ["| fault | what it breaks | level | first test that failed | seconds |", "|---|---|---|---|---|"]
    for r in results:
        test = f"`{r.test.removeprefix('tests/')}`" if r.test else "**nobody noticed**"
        lines.append(
            f"| {r.fault.name} | {r.fault.breaks} | {r.fault.level} | {test} | {r.seconds:.1f} |".replace("||", "\\|\\|")
        )
    path.write_text(HEAD + "\n".join(lines) + f"\n\n{summary(results)}.\n")


def _test(r: Result) -> str:
    return (r.test or "NOBODY NOTICED") + ("" if r.near or not r.test else "  (not one of `near`)")
