"""Nextflow's side of its Slurm executor: the files of a task, the commands that it calls, and how it reads their answers.

All of it is taken from nextflow-io/nextflow: `command-run.txt`, `BashWrapperBuilder`, `SlurmExecutor`, `GridTaskHandler`.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TEMPLATE = Path(__file__).parent / "nextflow" / "command-run.txt"
SUBMIT_REGEX = re.compile(r"Submitted batch job (\d+)")
STATUS = {
    "PD": "PENDING", "R": "RUNNING", "CA": "ERROR", "CF": "PENDING", "CG": "RUNNING", "CD": "DONE", "F": "ERROR", "TO": "ERROR",
    "NF": "ERROR", "S": "HOLD", "ST": "HOLD", "PR": "ERROR", "BF": "ERROR",
}  # fmt: skip
INVALID_NAME_CHARS = " /:@*?\n\t\r="


@dataclass
class Task:
    """A task in its work folder. `staged`: name in there -> the file that a link leads to."""

    name: str
    folder: Path
    script: str
    staged: Mapping[str, Path] = field(default_factory=dict)
    cpus: int = 1
    memory_mb: int = 500
    minutes: int = 0  # 0 = it has no limit
    directives: Sequence[str] = ()

    def write(self) -> None:
        """`.command.sh` and `.command.run`."""
        self.folder.mkdir(parents=True)
        (self.folder / ".command.sh").write_text(f"#!/bin/bash -ue\n{self.script}\n")
        (self.folder / ".command.run").write_text(self._wrapper())

    def _header(self) -> str:
        name = "nf-" + "".join("_" if c in INVALID_NAME_CHARS else c for c in self.name)
        lines = [f"-J {name}", f"-o {self.folder}/.command.log", "--no-requeue", "--signal B:USR2@30"]
        lines += [f"-c {self.cpus}"] if self.cpus > 1 else []
        lines += [f"-t {self.minutes // 60:02}:{self.minutes % 60:02}:00"] if self.minutes else []
        lines += [f"--mem {self.memory_mb}M", *self.directives]
        return "".join(f"#SBATCH {line}\n" for line in lines)

    def _wrapper(self) -> str:
        stage = [f"rm -f {name}" for name in self.staged] + [f"ln -sfn {file} {name}" for name, file in self.staged.items()]
        values = {
            "header_script": self._header(),
            "task_metadata": f"### ---\n### name: '{self.name}'\n### ...",
            "kill_cmd": '[[ "$pid" ]] && nxf_kill $pid',
            "exit_file": f"> {self.folder}/.exitcode",
            "touch_file": f"touch {self.folder}/.command.begin",
            "scratch_cmd": "NXF_SCRATCH=''",
            "launch_cmd": f"/bin/bash -ue {self.folder}/.command.sh",
            "stage_inputs": "# stage input files\n    " + "\n    ".join(stage) if stage else "",
            "stage_cmd": "nxf_stage",
            "unstage_cmd": "nxf_unstage",
            "stdout_file": ".command.out",
            "stderr_file": ".command.err",
            "task_env": "# task environment",
        }
        lines = [line for line in TEMPLATE.read_text().splitlines() if not line.lstrip().startswith("##")]
        return "\n".join(re.sub(r"\{\{(\w+)\}\}", lambda found: values.get(found[1], ""), line) for line in lines) + "\n"


@dataclass
class Nextflow:
    """Calls the commands as Nextflow does."""

    environment: Mapping[str, str]
    queue: str = ""

    def _run(self, words: Sequence[str], folder: Path | None = None) -> str:
        environment = {**os.environ, **self.environment}
        done = subprocess.run(words, cwd=folder, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout)
        return done.stdout

    def submit(self, task: Task) -> str:
        """`sbatch .command.run` in the task's folder; the id that Nextflow reads from the answer."""
        task.write()
        found = SUBMIT_REGEX.search(self._run(["sbatch", ".command.run"], task.folder))
        assert found is not None
        return found[1]

    def statuses(self) -> dict[str, str]:
        """`squeue` as Nextflow reads it: lines of two columns; others count as invalid."""
        words = ["squeue", "--noheader", "-o", "%i %t", "-t", "all", *(["-p", self.queue] if self.queue else []), "-u", "root"]
        rows = [line.split() for line in self._run(words).splitlines()]
        assert all(len(row) == 2 for row in rows), rows
        return {job: STATUS[state] for job, state in rows}

    def kill(self, *jobs: str) -> None:
        """`scancel`."""
        self._run(["scancel", *jobs])

    def wait(self, tasks: Mapping[str, Task], look: Callable[[], None] = lambda: None, seconds: float = 60.0) -> dict[str, int]:
        """Exit codes, by job: read from `.exitcode` once it is there; a job that is not active and has none has failed (-1)."""
        found: dict[str, int] = {}
        until = time.monotonic() + seconds
        while len(found) < len(tasks):
            assert time.monotonic() < until, (found, self.statuses())
            look()
            active = {job for job, state in self.statuses().items() if state in ("RUNNING", "HOLD", "PENDING")}
            for job, task in tasks.items():
                code = task.folder / ".exitcode"
                if job not in found and code.exists():
                    found[job] = int(code.read_text())
                elif job not in found and job not in active:
                    found[job] = -1
            time.sleep(0.1)
        return found
