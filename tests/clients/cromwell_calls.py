"""Cromwell with a configured backend: the folder and script of a call, the commands that it calls, how it reads the answers.

Taken from broadinstitute/cromwell: `StandardAsyncExecutionActor.commandScriptContents`, docs/backends/HPC.md and SLURM.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.tree import ROOT

CONFIGURATION = ROOT / "integrations" / "cromwell" / "spotsurfer.conf"
SCRIPT = """\
#!/bin/bash

cd {cwd}/execution
tmpDir=$(mkdir -p "{cwd}/tmp.1" && echo "{cwd}/tmp.1")

export _JAVA_OPTIONS=-Djava.io.tmpdir="$tmpDir"
export TMPDIR="$tmpDir"


outabc="${{tmpDir}}/out.$$" errabc="${{tmpDir}}/err.$$"
mkfifo "$outabc" "$errabc"
trap 'rm "$outabc" "$errabc"' EXIT
touch '{cwd}/execution/stdout' '{cwd}/execution/stderr'
tee '{cwd}/execution/stdout' < "$outabc" &
tee '{cwd}/execution/stderr' < "$errabc" >&2 &
(
cd {cwd}/execution

{command}
)  > "$outabc" 2> "$errabc"
echo $? > {cwd}/execution/rc.tmp
(
# add a .file in every empty directory to facilitate directory delocalization on the cloud
cd {cwd}/execution
find . -type d -exec sh -c '[ -z "$(ls -A '"'"'{{}}'"'"')" ] && touch '"'"'{{}}'"'"'/.file' \\;
)
mv {cwd}/execution/rc.tmp {cwd}/execution/rc
"""


def setting(name: str) -> str:
    """A text of the configuration."""
    found = re.search(rf'^\s*{name} = ("""(.*?)"""|"((?:[^"\\]|\\.)*)")', CONFIGURATION.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return found[2] if found[2] is not None else found[3].replace("\\\\", "\\")


@dataclass
class Call:
    """A call in its folder; `inputs` are localized as the configuration says: linked hard, or copied."""

    cwd: Path
    command: str
    inputs: Mapping[str, Path] = field(default_factory=dict)
    attributes: Mapping[str, int | str] = field(default_factory=dict)

    def write(self) -> None:
        """Its folder."""
        (self.cwd / "execution").mkdir(parents=True)
        for name, source in self.inputs.items():
            target = self.cwd / "inputs" / "1" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.hardlink_to(source)
            except OSError:
                shutil.copy2(source, target)
        (self.cwd / "execution" / "script").write_text(SCRIPT.format(cwd=self.cwd, command=self.command))

    def filled(self, text: str, **more: str) -> str:
        """A command of the configuration with its expressions replaced, of the three kinds that it has."""
        values: dict[str, object] = {"cpu": 1, "memory_mb": 2000, "gpu": 0, "queue": "main", **self.attributes}
        values |= {"job_name": "cromwell_1_call", "cwd": self.cwd, "script": self.cwd / "execution" / "script", **more}
        values |= {"out": self.cwd / "execution" / "stdout", "err": self.cwd / "execution" / "stderr"}

        def one(found: re.Match[str]) -> str:
            expression = found[1]
            if prefixed := re.fullmatch(r'"([^"]*)" \+ (\w+)', expression):
                return f"{prefixed[1]}{values[prefixed[2]]}" if prefixed[2] in values else ""
            if chosen := re.fullmatch(r'if (\w+) > 0 then "([^"]*)" \+ (\w+) else ""', expression):
                return f"{chosen[2]}{values[chosen[3]]}" if int(str(values[chosen[1]])) > 0 else ""
            return str(values[expression])

        return re.sub(r"\$\{([^}]*)\}", one, text)


@dataclass
class Cromwell:
    """Calls the commands as Cromwell does."""

    environment: Mapping[str, str]

    def _run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", "-c", script], env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )

    def submit(self, call: Call) -> str:
        """The id by `job-id-regex`."""
        call.write()
        done = self._run(call.filled(setting("submit")))
        assert done.returncode == 0, done.stderr
        found = re.fullmatch(setting("job-id-regex"), done.stdout.strip())
        assert found is not None, done.stdout
        return found[1]

    def alive(self, call: Call, job: str) -> bool:
        """By `check-alive`."""
        return self._run(call.filled(setting("check-alive"), job_id=job)).returncode == 0

    def kill(self, call: Call, job: str) -> None:
        """By `kill`, after the `rc` that Cromwell writes itself."""
        (call.cwd / "execution" / "rc").write_text("143\n")
        assert self._run(call.filled(setting("kill"), job_id=job)).returncode == 0

    def wait(self, call: Call, job: str, seconds: float = 60.0) -> int:
        """The number in `rc`; -1 for a call that is not alive and left none."""
        until = time.monotonic() + seconds
        while not (call.cwd / "execution" / "rc").exists():
            assert time.monotonic() < until
            if not self.alive(call, job) and not (call.cwd / "execution" / "rc").exists():
                return -1
            time.sleep(0.1)
        return int((call.cwd / "execution" / "rc").read_text())
