"""docs/compatibility.md: one line a program. A run of some programs replaces only their lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from programs.entry import Entry
from programs.surf import MOVES, SAVES

HEAD = f"""\
# What can be moved

Programs from packages, unmodified, and small ones of our own (`tests/programs/sources`) for what programs do with threads,
timers, files, terminals and connections; none knows of spotsurfer. Each was run twice: once undisturbed, once as a job
that was saved {SAVES} times and moved {MOVES} times between two machines (boxes on one host, the local provider) at random
moments. *identical* means: exit code, standard output and every result file are the same, byte by byte.

`make test-programs` makes this page; `PROGRAMS="megahit ngspice" make test-programs` runs some and replaces their lines. How
each one is called, and why with these options: `tests/programs/entries/`.

"""
COLUMNS = "| program | version | what it does | what was done | result |\n|---|---|---|---|---|\n"
LIMITS = """
## What a program may notice

A system call that waits with a timeout (`poll`, `nanosleep`, a futex with a limit) may return `EINTR` once after a save, as it
may after a signal. Programs that wait on are not disturbed; one that takes it for the end is: `script` of util-linux 2.38 kills
what it records. A connection out of the job breaks at a move: the program sees a network error. So does a TCP connection that
waits to be accepted; its client connects anew. Whoever waits on a Unix socket comes along if he has not written to it yet.

A job runs as `nobody` (65534) unless its user names another one, and as root only with `user = "root"`. Either way no setuid
program gains rights (`sudo`, `su` and `ping` with a setuid bit fail), nothing can be mounted or traced from another user, and
the kernel's settings can't be written. `/dev` and `/run` are the job's own: of devices it has the usual ones, its own terminals
and the machine's accelerators, and no program of the machine listens in `/run`. It has no IPv6 but its loopback.

**Clocks of the processor begin anew on each machine.** The kernel counts the CPU time of a process, and there is no way to
set that count, so it is small again after a move: `getrusage`, `times`, `clock`, the clocks `CLOCK_PROCESS_CPUTIME_ID` and
`CLOCK_THREAD_CPUTIME_ID`, Python's `time.process_time()`, the shell's `time`. A program that subtracts two of these numbers
over a move reports too little, or less than nothing: `bwa mem` printed `-18.846 CPU sec` for a batch of reads. What it
computes is not touched. But a limit in CPU seconds (`ulimit -t`) lets a job have them again on each machine.

`CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` (Python's `time.monotonic()` and `time.perf_counter()`) go on and never back: measure
with these what has to be right across moves. The time of day is the machine's. The CPU time of the whole job, on all of its
machines, is measured from outside: `spotsurfer list` and `show` tell it.

There is no option that hides this. The number is in the kernel, so a program would have to be kept from asking for it: by a
library in each of its processes, which static programs, Go and whoever makes system calls by himself pass by, or by
stopping each such call, which costs every program that measures itself. Neither is the same program any more.

## What can't be saved

Such a job is told so in one sentence, and runs on unprotected to its end; its output is the same as undisturbed. Also refused,
each with its sentence: explicit huge pages, userfaultfd, perf counters, eBPF, sockets of other families (packet, SCTP, …), Unix
sockets to programs outside, deleted files of more than 512 MiB, files on network file systems that the job did not ask for.

| what it holds | version | what it does | what was done | result |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One line. `good` = it is as the entry promises."""

    entry: Entry
    result: str
    good: bool

    @property
    def line(self) -> str:
        """As Markdown."""
        e = self.entry
        done = "a save asked for" if e.refused else f"{SAVES} saves, {MOVES} moves"
        cells = (e.title, e.version or "-", e.what, done, self.result)
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def write(path: Path, rows: list[Row], known: list[Entry]) -> None:
    """Put these rows in; lines of other known programs stay, lines of programs that are no more go."""
    old = _lines(path)
    new = {r.entry.title: r.line for r in rows}
    text = {e.title: new.get(e.title) or old.get(e.title) for e in known}

    def part(refused: bool) -> str:
        found = [line for e in known if e.refused is refused and (line := text[e.title]) is not None]
        return "\n".join(sorted(found, key=str.lower)) + "\n"

    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + COLUMNS + part(False) + LIMITS + part(True))


def _lines(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    lines = [x for x in path.read_text().splitlines() if x.startswith("| ")]
    return {x[2:].split(" | ")[0].replace("\\|", "|"): x for x in lines}
