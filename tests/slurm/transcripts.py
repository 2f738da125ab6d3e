"""The client scripts, what they print with the commands of a path, and what of that is compared."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
TRUTH = HERE / "truth"
FIRST_NUMBER = 810_000  # of jobs, on both sides: such numbers stand for nothing else in what scripts print
NUMBER = re.compile(r"(?<![1-9])81\d{4}(?!\d)")
RAW = re.compile(r"(?<!\d)[1-9]\d*081\d{4}(?!\d)")  # of a task, ours
NODES = ("localhost", "node-1", "box-[0-9a-f]{12}", r"m6i\.xlarge")

PLAIN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \d{4}\b"), "DATE"),
    (re.compile(r"\bslurmstepd-[\w.-]+:"), "slurmstepd:"),  # one of several on a host says which
    (re.compile(r"\b(SLURMD_NODENAME|SLURM(?:_JOB)?_NODELIST)=\S+"), r"\1=NODE"),
    (re.compile(r"\bScheduler=\w+"), "Scheduler=ANY"),
    (re.compile(r"\bSid=(\S+):\d+"), r"Sid=\1:N"),
    (re.compile(r"\b00:00:0\d\b"), "00:00:00"),
    (re.compile(r"(?<![\d:|])0:0\d(?![\d:])"), "0:00"),
)


def names() -> list[str]:
    """Of the scripts, in order."""
    return sorted(path.stem for path in SCRIPTS.glob("[0-9]*.bash"))


def title(name: str) -> str:
    """The script's first line."""
    return (SCRIPTS / f"{name}.bash").read_text().splitlines()[0].removeprefix("# ")


def run(name: str, folder: Path, environment: Mapping[str, str], timeout_seconds: float) -> str:
    """What a script prints, made comparable. `environment` is laid over this process's own."""
    text = f'. "{SCRIPTS}/lib.bash"\n. "{SCRIPTS}/{name}.bash"\n'
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SPOTSURFER", "PYTHON"))}
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=kept | dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=timeout_seconds,
        check=False,
        errors="replace",
    )
    ids = (folder / ".ids").read_text().split() if (folder / ".ids").exists() else []
    return comparable(done.stdout, ids, folder)


def comparable(text: str, ids: list[str], folder: Path) -> str:
    """The text without what differs from run to run: ids in their order, times, the machine, the folder."""
    known = {job: f"<{n}>" for n, job in enumerate(dict.fromkeys(ids), 1)}
    text = text.replace(str(folder), "FOLDER")
    text = RAW.sub("RAW", text)
    text = NUMBER.sub(lambda found: known.get(found[0], "RAW"), text)
    for node in (*NODES, re.escape(os.uname().nodename)):
        text = re.sub(rf"(?<![\w.-]){node}(?![\w-])", "NODE", text)
    for pattern, word in PLAIN:
        text = pattern.sub(word, text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())
