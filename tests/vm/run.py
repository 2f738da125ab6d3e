"""`make test-vm`: boots guests, runs trials in them or with them, writes docs/vms.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.tree import ROOT
from vm import checkout, image, page
from vm.guest import Guest, running
from vm.page import Row, Run
from vm.trial import GROUPS, Group, Trial

Ask = Callable[[Trial], tuple[int, str]]  # exit code, and what it printed


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


@contextmanager
def place(group: Group, folder: Path) -> Iterator[Ask]:
    """Where the trials of a group run."""
    if not group.within:
        yield here
        return
    disk, made = folder / "checkout.raw", image.debian(group.suite, group.root)
    checkout.disk(disk, made)
    with running(Guest(group.name, made, folder, [disk], memory_mebibytes=group.memory_mebibytes)) as guest:
        code, said = guest.ask(f"mkdir -p {checkout.PLACE} && mount /dev/vdb {checkout.PLACE}", 300)
        if code:
            raise RuntimeError(said)
        yield lambda trial: guest.ask(trial.text(checkout.PLACE), trial.seconds)
    disk.unlink()


def here(trial: Trial) -> tuple[int, str]:
    """Run it on this host."""
    words = ["timeout", "-k", "60", f"{trial.seconds:.0f}", "sh", "-c", trial.text(ROOT)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout.decode(errors="replace")


def examine(group: Group, wanted: list[str], folder: Path, to: Path) -> list[Row]:
    """All trials of a group; each is on the page as soon as it has ended."""
    say(f"== {group.name}: an image of Debian {group.suite} on {group.root}")
    about = f"{image.debian(group.suite, group.root).about}, {group.memory_mebibytes >> 10} GiB, two processors."
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    began = time.monotonic()
    with place(group, folder) as ask:
        say(f"   ready after {time.monotonic() - began:.0f} s")
        for trial in (t for t in group.trials if any(text in t.what for text in wanted)):
            began = time.monotonic()
            code, said = ask(trial)
            rows.append(Row(trial, code == 0, time.monotonic() - began))
            say(f"   {trial.what}: {'good' if code == 0 else f'FAILED, {code}'}, {rows[-1].seconds:.0f} s")
            (folder / f"{group.trials.index(trial)}.log").write_text(said)
            if code:
                say(said[-4000:])
            page.write(to, Run(group, about, rows), GROUPS.values())
    return rows


def main() -> int:
    """1 when a trial failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--only", action="append", metavar="TEXT", help="trials whose title has this text; repeatable")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "vms.md")
    parser.add_argument("--dir", type=Path, default=image.FOLDER / "run", help="consoles, and what each trial printed")
    options = parser.parse_args()
    if unknown := sorted(set(options.groups) - set(GROUPS)):
        parser.error(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    rows = [
        r for n in options.groups or GROUPS for r in examine(GROUPS[n], options.only or [""], options.dir / n, options.page)
    ]
    bad = [r.trial.what for r in rows if not r.good]
    say(f"{len(rows) - len(bad)} of {len(rows)} as they should be" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
