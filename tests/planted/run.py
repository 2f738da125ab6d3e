"""`make test-faults`: plants one fault after the other in a copy of the project, and runs the tests that should notice it.

The list is faults.toml. (`tests/faults` is about something else: trouble that comes from outside, such as a full disk.)
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from planted import page, tree
from planted.fault import LIST, Fault, Unfit, check, load
from planted.page import Result

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "Examples: make test-faults; make test-faults ONLY='fencing off'; make test-faults PAGE=docs/planted-faults.md"
OURSELVES = "tests/planted"  # in a copy its tests would notice that the list does not fit any more


class Broken(Exception):
    """The tests could not be run, or fail without any fault, so nothing can be said."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of pytest. `failed`: the first test that failed, or ""."""

    failed: str
    seconds: float


class Range:
    """Where faults of one level are planted: a folder for the copies, the first of which stays as it is."""

    def __init__(self, checkout: Path, folder: Path, level: str) -> None:
        self._level, self._folder, self._master = level, folder, folder / "unchanged"
        self._whole = level != "quick"  # only real tests make boxes, and start the agent from its runtime
        folder.mkdir(parents=True)
        tree.copy_checkout(checkout, self._master, whole=self._whole)
        tree.prove(self._master)

    def passes(self, near: Sequence[str]) -> None:
        """Raises Broken unless these tests pass where no fault is planted: so a failure shows the fault."""
        ran = _pytest(self._master, self._level, list(near))
        if ran.failed:
            raise Broken(f"{ran.failed} fails without any fault: repair it first, or run make setup")

    def notice(self, fault: Fault) -> Result:
        """Plant it in a fresh copy, and run tests until one fails."""
        copy = self._folder / "".join(c if c.isalnum() else "-" for c in fault.name)
        tree.copy_copy(self._master, copy, whole=self._whole)
        fault.plant(copy)
        in_runtime = self._whole and fault.file.startswith(tree.IN_RUNTIME)
        if in_runtime:
            tree.build_runtime(copy)
        tree.prove(copy, fault.file if in_runtime else "")
        ran = _pytest(copy, self._level, list(fault.near))
        near, seconds = bool(ran.failed), ran.seconds
        if not near:
            ran = _pytest(copy, self._level, [f"--ignore={OURSELVES}", *(f"--deselect={n}" for n in fault.near)])
            seconds += ran.seconds
        shutil.rmtree(copy)
        return Result(fault, ran.failed, seconds, near)


def _pytest(root: Path, level: str, arguments: list[str]) -> Ran:
    """Run tests of a level until one fails. Raises Broken where they can't be run."""
    report = root / "build" / "planted.xml"
    report.unlink(missing_ok=True)
    options = ["--level", level, "-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    began = time.monotonic()
    done = subprocess.run(
        [tree.python(root), "-m", "pytest", *options, *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise Broken(f"level {level} leaves out {' '.join(arguments)}: mark it `always`, or change the list")
    failed = first_failure(report.read_text()) if report.exists() else ""
    if done.returncode and not failed:
        raise Broken(f"pytest ended with {done.returncode} in {root}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return Ran(failed, seconds)


def first_failure(report: str) -> str:
    """The id of the first test that failed by pytest's report; "" where none did. A file that can't be imported is none."""
    for case in ET.fromstring(report).iter("testcase"):
        for trouble in (*case.iter("failure"), *case.iter("error")):
            if trouble.get("message") != "collection failure":
                return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
    return ""


def run(faults: Sequence[Fault], checkout: Path, folder: Path, jobs: int) -> list[Result]:
    """A result for each fault. Raises Unfit, Broken, Foreign."""
    check(list(faults), checkout)
    shutil.rmtree(folder, ignore_errors=True)
    found: dict[str, Result] = {}

    def notice(place: Range, fault: Fault) -> None:
        result = found[fault.name] = place.notice(fault)
        _say(f"{len(found)}/{len(faults)} {fault.name}: {result.test or 'NOBODY NOTICED'} ({result.seconds:.1f} s)")

    for level in sorted({f.level for f in faults}, reverse=True):
        place = Range(checkout, folder / level, level)
        some = [f for f in faults if f.level == level]
        near = sorted({n for f in some for n in f.near})
        _say(f"level {level}: {len(some)} faults; first the {len(near)} near tests and files without any fault")
        began = time.monotonic()
        place.passes(near)
        _say(f"they pass ({time.monotonic() - began:.0f} s)")
        with ThreadPoolExecutor(jobs if level == "quick" else 1) as pool:  # what is no quick test has the machine for itself
            list(pool.map(functools.partial(notice, place), some))
    return [found[f.name] for f in faults]


def _say(line: str) -> None:
    print(f"  planted: {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m planted.run", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this fault; may be given again")
    parser.add_argument("--list", action="store_true", help="show the list and run nothing")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    parser.add_argument("--page", type=Path, help="write the table to this Markdown file, too")
    parser.add_argument("--jobs", "-j", type=int, default=2, help="copies of quick tests side by side (default: %(default)s)")
    parser.add_argument("--faults", type=Path, default=LIST, help="another list (default: %(default)s)")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="another project (default: this one)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """1 where nobody noticed a fault, 2 where nothing can be said."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        faults = load(options.faults)
        if unknown := sorted(set(options.only) - {f.name for f in faults}):
            parser.error(f"no such fault: {', '.join(unknown)}; --list shows all")
        if options.only and options.page:
            parser.error("--page shows the whole list: leave --only out")
        faults = [f for f in faults if f.name in (options.only or {f.name})]
        if options.list:
            rows = [{"name": f.name, "level": f.level, "file": f.file, "breaks": f.breaks} for f in faults]
            print(json.dumps(rows, indent=1) if options.json else "\n".join(f"{r['name']}: {r['breaks']}" for r in rows))
            return 0
        results = run(faults, options.checkout.resolve(), options.checkout.resolve() / "build" / "planted", options.jobs)
    except (Unfit, Broken, tree.Foreign) as e:
        print(f"planted faults: {e}", file=sys.stderr)
        return 2
    if options.page is not None:
        page.write(options.page, results)
    print(json.dumps([r.as_dict() for r in results], indent=1) if options.json else page.table(results))
    print(page.summary(results), file=sys.stderr)
    return 0 if all(r.test for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
