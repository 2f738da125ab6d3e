"""`make test-programs`: installs what is missing, runs some programs at a time, writes docs/compatibility.md."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from programs import page, plain
from programs.entry import Entry, names
from programs.page import Row
from programs.plain import Unfit
from programs.surf import Failed, surfed

from spotsurfer.model.errors import SpotsurferError

ROOT = Path(__file__).parents[2]
APT = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq"]


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def install(entries: list[Entry]) -> None:
    """Install packages that are missing, as far as the mirror has them; each program's row says what could not be had."""
    missing = sorted({p for e in entries for p in e.missing()})
    if not missing:
        return
    if os.geteuid() != 0:
        say(f"not root, so these Debian packages stay missing: {' '.join(missing)}")
        return
    say(f"== install Debian packages: {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*APT, "update"], env=environment, stdout=subprocess.DEVNULL, check=False)
    for package in missing:  # one by one: the mirror may lack one of them
        command = [*APT, "install", "-y", "--no-install-recommends", package]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"   {package}: {(done.stderr.strip().splitlines() or ['apt-get failed'])[-1]}")


def examine(entry: Entry, seed: str, folder: Path) -> Row:
    """One program: undisturbed, then surfed, then compared."""
    if lacking := entry.missing():
        return Row(entry, f"not run: no Debian package {', '.join(lacking)} to be had", True)
    here = folder / entry.name

    def tell(text: str) -> None:
        say(f"   {entry.name}: {text}")

    say(f"== {entry.name}")
    try:
        plain.prepare(entry, here)
        alone = plain.undisturbed(entry, here)
        tell(f"undisturbed: {alone.seconds:.1f} s, {alone.cpu_seconds:.1f} s of processor time")
        sentence = ""
        for disk in entry.disks:
            seconds = min(alone.seconds, entry.seconds)
            sentence, moved = surfed(entry, here, disk, seconds, seed, tell)
            if differs := "" if entry.only_checked else alone.differs(moved):
                return Row(entry, f"DIFFERS: {differs}{_on(entry, [disk])}", False)
    except (Unfit, Failed, SpotsurferError) as e:
        return Row(entry, f"FAILED: {e}", False)
    return Row(entry, (f"refused: {sentence}" if entry.refused else "identical") + _on(entry, entry.disks), True)


def _on(entry: Entry, disks: list[str]) -> str:
    """Which disks are meant, where there is more than one kind."""
    return f" on {' and '.join(disks)}" if len(entry.disks) > 1 else ""


def main() -> int:
    """1 when a row is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="names of entries; default: all")
    parser.add_argument("--new", action="store_true", help="those that have no line on the page yet")
    parser.add_argument(
        "--seed", default=secrets.token_hex(4), help="draws the moments; printed, so that a run can be repeated"
    )
    parser.add_argument("-j", "--jobs", type=int, default=1, help="programs at a time (default %(default)s)")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "compatibility.md")
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "programs", help="inputs, both runs, logs of failures")
    options = parser.parse_args()
    if unknown := sorted(set(options.programs) - set(names())):
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(names())}")
    known = [Entry.load(n) for n in names()]
    wanted = [e for e in known if e.name in options.programs] if options.programs else known
    if options.new:
        there = page.lines(options.page.read_text())
        wanted = [e for e in wanted if e.title not in there]
    say(f"seed {options.seed}")
    install(wanted)
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:  # each measures the processor time of its children
        examined = [pool.submit(examine, e, options.seed, options.dir.resolve()) for e in wanted]
        for row in (future.result() for future in as_completed(examined)):
            rows.append(row)
            say(f"   {row.entry.name}: {row.result} ({len(rows)} of {len(wanted)})")
            page.write(options.page, [row], known)
    bad = [r.entry.name for r in rows if not r.good]
    say(f"{len(rows) - len(bad)} of {len(rows)} as promised" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
