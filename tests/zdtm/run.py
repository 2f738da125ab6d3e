"""`make test-zdtm`: CRIU's own suite through the engine; writes docs/zdtm.md."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from spotsurfer_agent.host.tools import Tools
from support.runtime import unpacked_runtime
from support.tree import ROOT
from zdtm import boxes, suite
from zdtm.page import Run, page
from zdtm.program import Program
from zdtm.verdict import Seen, Verdict, reason, verdict

FOLDER = suite.CURRENT.parent
SEEN = FOLDER / "seen"
BATCH = 6


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


# ------------------------------------------------------------ who is not even tried


class Fitness:
    """What this host can do of what programs ask for."""

    def __init__(self, tools: Tools, folder: Path) -> None:
        self._tools, self._folder = tools, folder
        self._known: dict[str, bool] = {}

    def unfit(self, program: Program) -> str:
        """Why it is not tried, empty where it is."""
        if "noauto" in program.flags:
            return "the suite leaves it out by itself (noauto)"
        if program.arch and os.uname().machine not in program.arch:
            return "for another kind of processor"
        if lacking := [x for x in program.feature if not self._has(x)]:
            return f"this kernel lacks {', '.join(lacking)}, as `criu check` says"
        here = self._folder / program.group
        if not (here / program.name).exists():
            return "it could not be compiled here"
        check = here / f"{program.name}.checkskip"
        if check.exists() and not self._runs(["unshare", "--mount", "--propagation", "private", str(check)], here):
            return "the suite's own check says that this host lacks what it needs"
        return ""

    def _has(self, feature: str) -> bool:
        if feature not in self._known:
            self._known[feature] = self._runs([*self._tools.criu, "check", "--feature", feature], self._folder)
        return self._known[feature]

    def _runs(self, argv: Sequence[str], folder: Path) -> bool:
        done = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)
        return done.returncode == 0


# ------------------------------------------------------------ the run


class Runner:
    """Batches of programs through pairs of boxes, as many at a time as there are workers."""

    def __init__(self, workers: int, minutes: float) -> None:
        self._workers, self._lock, self._end = workers, threading.Lock(), time.monotonic() + 60 * minutes
        self.seen: dict[str, Seen] = {}
        self._all = 0

    def keep(self, seen: Seen) -> None:
        """For the page, and for a run that goes on."""
        self.seen[seen.name] = seen
        (SEEN / f"{seen.name}.json").write_text(json.dumps(asdict(seen)))

    def take(self, seen: Seen) -> None:
        """One that is done."""
        with self._lock:
            self.keep(seen)
            why = f": {reason(seen)[:200]}" if verdict(seen) is not Verdict.PASSED else ""
            say(f"{len(self.seen):4} of {self._all} {seen.name} {verdict(seen)}{why}")

    def play(self, programs: Sequence[Program], size: int = BATCH) -> None:
        """All of them."""
        self._all = max(self._all, len(self.seen) + len(programs))
        work: queue.SimpleQueue[Sequence[Program]] = queue.SimpleQueue()
        for at in range(0, len(programs), size):
            work.put(programs[at : at + size])
        threads = [threading.Thread(target=self._worker, args=(work, n), daemon=True) for n in range(self._workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # so that Ctrl-C is heard
                thread.join(0.5)

    def _worker(self, work: queue.SimpleQueue[Sequence[Program]], number: int) -> None:
        pair = boxes.Pair(FOLDER / "boxes" / f"pair-{number}", say)
        try:
            while time.monotonic() < self._end:
                try:
                    batch = work.get_nowait()
                except queue.Empty:
                    break
                for seen in pair.play([(p, Seen(p.key)) for p in batch]):
                    self.take(seen)
        finally:
            pair.close()

    def once_more(self, programs: Sequence[Program]) -> None:
        """What failed, with nothing beside it and each way by itself: that counts. Then plain CRIU with what fails still."""
        tried = [p for p in programs if p.key in self.seen]
        failed = [p for p in tried if verdict(self.seen[p.key]) is Verdict.FAILED and not self.seen[p.key].alone]
        if not failed:
            return
        say(f"== once more, alone: {len(failed)}")
        pair = boxes.Pair(FOLDER / "boxes" / "again", say)
        try:
            for program in failed:
                if time.monotonic() > self._end:
                    return
                self.take(pair.play([(program, Seen(program.key, apart=True))])[0])
            still = [(p, self.seen[p.key]) for p in failed if verdict(self.seen[p.key]) is Verdict.FAILED]
            for program, seen in still:
                found = pair.scene("alone", [(program, replace(seen))])[0]
                say(f"     {program.name}: CRIU alone: {found.alone}")
                self.take(replace(seen, alone=found.alone))
        finally:
            pair.close()


def main() -> int:
    """1 when a program fails that plain CRIU moves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names or patterns, separated by spaces; the page stays as it is")
    parser.add_argument("-j", "--workers", type=int, default=2, help="pairs of boxes at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin with no more programs after so long")
    parser.add_argument("--go-on", action="store_true", help="keep what an interrupted run has found")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "zdtm.md")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if os.geteuid() != 0:
        parser.error("boxes need root")
    runtime = unpacked_runtime()
    version = suite.version(runtime)
    try:
        built = suite.build(version, FOLDER, say)
    except suite.NoSuite as e:
        parser.error(str(e))
    suite.CURRENT.unlink(missing_ok=True)
    suite.CURRENT.symlink_to(built.relative_to(FOLDER))
    boxes.clean(FOLDER / "boxes")
    SEEN.mkdir(exist_ok=True)
    known = sorted(suite.programs(built), key=lambda p: hashlib.sha256(p.key.encode()).digest())
    patterns = options.only.split()
    wanted = [p for p in known if not patterns or any(fnmatch.fnmatch(p.key, x) for x in patterns)]
    if not wanted:
        parser.error("no such program")
    return run(wanted, Fitness(Tools.find(runtime / "prefix"), built), options, version)


def run(wanted: Sequence[Program], fitness: Fitness, options: argparse.Namespace, version: str) -> int:
    """The programs, and the page."""
    runner = Runner(options.workers, options.minutes)
    if options.go_on:
        runner.seen = {p.key: Seen(**json.loads(x.read_text())) for p in wanted if (x := SEEN / f"{p.key}.json").exists()}
    elif not options.only:
        shutil.rmtree(SEEN)
        SEEN.mkdir()
    out = [Seen(p.key, unfit=why) for p in wanted if p.key not in runner.seen and (why := fitness.unfit(p))]
    for x in out:
        runner.keep(x)
    say(f"{len(wanted)} programs, {len(out)} of them can't be tried here")
    runner.play([p for p in wanted if p.key not in runner.seen])
    runner.once_more(wanted)
    seen = [runner.seen[p.key] for p in wanted if p.key in runner.seen]
    for one in Verdict:
        say(f"{one}: {sum(verdict(x) is one for x in seen)}")
    if not options.only:
        options.page.write_text(
            page(Run(version, os.uname().release, seen, [p.key for p in wanted if p.key not in runner.seen]))
        )
        say(f"written to {options.page}")
    ours = [x.name for x in seen if verdict(x) is Verdict.FAILED and x.alone == "passes"]
    if ours:
        say(f"plain CRIU moves these: {' '.join(ours)}")
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
