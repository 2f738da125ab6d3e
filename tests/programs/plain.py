"""The input of a program, and its undisturbed run on this host: what the surfed run has to equal."""

from __future__ import annotations

import hashlib
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from programs.entry import SOURCES, Entry

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "USER": "root"}
LIMIT_SECONDS = 300


class Unfit(Exception):
    """The entry itself does not work here: its preparation or its undisturbed run failed."""


@dataclass(frozen=True)
class Made:
    """What a run made. Digests by path, the standard output among them."""

    seconds: float
    cpu_seconds: float
    exit_code: int
    digests: Mapping[str, str]

    def differs(self, other: Made) -> str:
        """In what another run differs; empty when both are the same."""
        if self.exit_code != other.exit_code:
            return f"exit code {other.exit_code} instead of {self.exit_code}"
        wrong = [p for p in sorted({*self.digests, *other.digests}) if self.digests.get(p) != other.digests.get(p)]
        return f"{', '.join(wrong)} differ" if wrong else ""


def prepare(entry: Entry, folder: Path) -> Path:
    """Make the inputs in `folder`/inputs. Raises Unfit."""
    inputs = folder / "inputs"
    shutil.rmtree(folder, ignore_errors=True)
    inputs.mkdir(parents=True)
    environment = {**ENVIRONMENT, "HOME": str(folder), "SOURCES": str(SOURCES), "TMPDIR": str(folder)}
    log = folder / "prepare.log"
    with log.open("wb") as out:
        script = ["/bin/bash", "-euo", "pipefail", "-c", entry.prepare or ":"]
        done = subprocess.run(
            script, cwd=inputs, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    if done.returncode:
        raise Unfit(f"its input could not be made: see {log}")
    return inputs


def undisturbed(entry: Entry, folder: Path, limit_seconds: float = LIMIT_SECONDS) -> Made:
    """Run it on this host in a copy of its inputs. Raises Unfit."""
    work, home = folder / "undisturbed", folder / "home"
    shutil.copytree(folder / "inputs", work)
    home.mkdir()
    environment = {**ENVIRONMENT, "HOME": str(home), "SPOTSURFER_JOB": "undisturbed"}
    begin, used = time.monotonic(), _children()
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            # Namespaces of its own, as the job has: what it mounts or leaves running ends with it.
            ["/usr/bin/unshare", "--mount", "--pid", "--ipc", "--net", "--fork", "--kill-child", "--mount-proc",
             "/bin/sh", "-c", 'ip link set lo up; exec tini-static -g -- "$@"', "sh", *entry.command],
            cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit_seconds)
        except subprocess.TimeoutExpired as e:
            raise Unfit(f"its undisturbed run takes longer than {limit_seconds:.0f} s") from e
        finally:
            process.kill()
            process.wait()
    seconds, cpu_seconds = time.monotonic() - begin, _children() - used
    if code:
        raise Unfit(f"its undisturbed run ended with status {code}: see {folder / 'err'}")
    digests = {p.relative_to(work).as_posix(): digest(p) for g in entry.outputs for p in work.glob(g) if p.is_file()}
    if not digests and entry.outputs:
        raise Unfit("its undisturbed run made no output")
    return Made(seconds, cpu_seconds, code, {**digests, "standard output": digest(folder / "out")})


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
