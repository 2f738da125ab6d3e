"""What the client scripts print differently with our commands, and why; docs/slurm.md lists the same."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from spotsurfer.slurm.dependencies import PROBLEM


@dataclass(frozen=True, slots=True)
class Difference:
    """Lines of a script's output: with the real Slurm, and with ours; either may be none."""

    script: str
    slurm: tuple[str, ...]
    ours: tuple[str, ...]
    why: str

    def line(self) -> str:
        """For docs/slurm.md."""
        return f"- {self.script}: Slurm prints {_shown(self.slurm)}, ours {_shown(self.ours)}. {self.why}"


def _shown(lines: tuple[str, ...]) -> str:
    return " / ".join(f"`` {line.strip()} ``" if "`" in line else f"`{line.strip()}`" for line in lines) or "nothing"


CONFIGURATION = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
NO_FOLDER = "slurmstepd: error: couldn't chdir to `/no/such/folder': No such file or directory: going to /tmp instead"
DIFFERENCES = (
    Difference(
        "08-array-cancel",
        ("1 CANCELLED by 0",),
        ("6 CANCELLED by 0",),
        "Each task of an array has a row of its own; Slurm forgets tasks that were cancelled one by one before they began.",
    ),
    Difference(
        "08-array-cancel",
        ("scancel: error: _parse_single_range: Invalid range: `9-x'",),
        (),
        "This line names a function of Slurm's program; the line after it and the exit code are the same.",
    ),
    Difference(
        "11-kill-invalid",
        ("wrap|CANCELLED",),
        ("DependencyNeverSatisfied",),
        "Whether such jobs are cancelled is the operator's choice for all: `[limits] cancel_never_satisfied`.",
    ),
    Difference(
        "12-failures",
        ("<6>|wrap|FAILED|127:0", "<6>.batch|batch|FAILED|127:0", "FAILED|127:0|0:0"),
        ("<6>|wrap|FAILED|255:0", "<6>.batch|batch|FAILED|255:0", "FAILED|255:0|0:0"),
        "This Slurm's `sacct` takes 128 off exit codes above 127; ours shows what the script said.",
    ),
    Difference(
        "15-killed",
        ("FAILED|2:0",),
        ("FAILED|0:2",),
        "The controller's exit code of a killed script is 128 + signal, as a shell's: `exit 130` looks like SIGINT.",
    ),
    Difference(
        "19-test-only",
        ("sbatch: Job RAW to start at TIME using 1 processors on nodes NODE in partition main",),
        ("sbatch: Job 0 to start at TIME using 1 processors on nodes NODE in partition main",),
        "A question uses up no number.",
    ),
    Difference("20-memory", ("1M",), ("16M",), "A machine's agent needs a job to have 16 MiB at least."),
    *(
        Difference(
            "22-bad-options",
            ("Submitted batch job RAW", "[0]"),
            (CONFIGURATION, "[1]"),
            why,
        )
        for why in (
            "A job has one machine: Slurm lets a job of two nodes wait for ever on a partition of one; ours is refused.",
            "The same with more processors than any machine on offer has.",
        )
    ),
    Difference("24-bad-queries", ("[0]",), ("[1]",), "A wrong `--Format` is an error, as a wrong `--format` is."),
    Difference(
        "27-scontrol",
        ("   AccrueTime=Unknown",),
        ("   AccrueTime=TIME",),
        "The controller does not record when a job that was held began to gain priority.",
    ),
    Difference("32-folders", (NO_FOLDER,), (), "Slurm says it twice: for the job and for its script."),
    Difference(
        "34-after",
        ("Submitted batch job RAW", "[0]"),
        (PROBLEM, "[1]"),
        "Slurm forgets jobs, so one that it does not know counts as ended; ours refuses a job that nobody has.",
    ),
)


def unexplained(script: str, slurm: str, ours: str) -> list[str]:
    """Differences of a script's output that are not listed, and listed ones that are none any more."""
    a, b = slurm.splitlines(), ours.splitlines()
    open_ = [d for d in DIFFERENCES if d.script == script]
    found = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        known = next((d for d in open_ if d.slurm == tuple(a[i:j]) and d.ours == tuple(b[k:m])), None)
        if known is None:
            found.append(f"Slurm: {a[i:j]}, ours: {b[k:m]}")
        else:
            open_.remove(known)
    return found + [f"is no difference any more: {d}" for d in open_]
