"""`sbatch`: submits a script as a job."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spotsurfer.model import errors as e
from spotsurfer.model.job import NAME, PRIORITY_MAX, JobSpec, MarketChoice
from spotsurfer.slurm.batch_options import CONFIGURATION, SBATCH, Batch, check_script, read_batch
from spotsurfer.slurm.dependencies import PROBLEM, read_dependency
from spotsurfer.slurm.files import Names, file_name, usual
from spotsurfer.slurm.listing import DETAILS, fetch
from spotsurfer.slurm.options import Refused
from spotsurfer.slurm.rows import Row
from spotsurfer.slurm.site import Site, user_name
from spotsurfer.slurm.start_script import (
    COMMAND,
    MEMORY_USUAL,
    NUMBER,
    SCRIPT_MAX_BYTES,
    START,
    Start,
    exported,
    slurm_variables,
)
from spotsurfer.slurm.values import show_time
from spotsurfer.web.client import Json
from spotsurfer.web.submitting import spec_body

FAILED = "sbatch: error: Batch job submission failed: "
LOOK_SECONDS = 1.0
ROOT = "SPOTSURFER_HOME"  # variable: a tree; a job sees its own folder of it, and what its script names
SETTLE = "SPOTSURFER_SETTLE_SECONDS"  # variable: programs of this user write into the folder for so long after a submission
MEMORY_MIN = 16 << 20  # of any job of the controller
WRAPPED = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{}\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """A submission: its options, its script, the script's path ("" = --wrap or stdin) and arguments.

    `terminal`: what no option sends to a file comes to a terminal, stdout and stderr each by itself.
    """

    batch: Batch
    script: str
    path: str = ""
    arguments: Sequence[str] = ()
    terminal: bool = False


def sbatch(words: Sequence[str], site: Site) -> Iterator[str]:
    """The lines that `sbatch` prints. Raises Refused; with --wait it has the job's own exit code."""
    if {"-V", "--version"} & set(words):
        yield site.version
        return
    asked = read(words, site)
    settles = _settle_seconds(site.environment.get(SETTLE, ""))
    spec = specification(asked, site)
    if asked.batch.test_only:
        _test(spec, site)
        return
    spec = site.home.bring(site.client, spec)
    settle = 0.0 if asked.batch.hold or spec.after or not spec.home_tree else settles
    made = _submit(site, spec, hold=asked.batch.hold or settle > 0)
    site.home.expect(site.client, spec, made, settle)
    if asked.batch.parsable:
        yield str(made["number"])
    elif not asked.batch.quiet:
        yield f"Submitted batch job {made['number']}"
    if asked.batch.wait:
        sys.stdout.flush()
        if code := _wait(site, made):
            raise Refused("", code)


def read(words: Sequence[str], site: Site) -> Asked:
    """What a command line asks for, with its script."""
    batch, rest = read_batch(SBATCH, words, None, site.environment, site.now)
    if batch.wrap is not None:
        if rest:
            raise Refused("sbatch: error: Script arguments not permitted with --wrap option")
        return Asked(batch, WRAPPED.format(batch.wrap))
    text = _script(rest[0] if rest else "")
    batch, rest = read_batch(SBATCH, words, text, site.environment, site.now)
    return Asked(batch, text, str(Path(site.folder) / rest[0]) if rest else "", rest[1:])


def _settle_seconds(text: str) -> float:
    if not re.fullmatch(r"\d{0,4}(\.\d{1,6})?", text):
        raise Refused(f"sbatch: error: {SETTLE} is {text!r}, expected seconds, like 1")
    return float(text or 0)


def _script(name: str) -> str:
    try:
        return check_script(Path(name).read_bytes() if name else sys.stdin.buffer.read())
    except IsADirectoryError:
        raise Refused("sbatch: error: Batch script is empty!") from None
    except OSError:
        raise Refused(f"sbatch: error: Unable to open file {name}") from None


# ---- From options to the controller's specification


def specification(asked: Asked, site: Site) -> JobSpec:
    """The job that is asked for. Raises Refused."""
    batch = asked.batch
    if not site.folder:
        raise Refused("sbatch: error: getcwd failed: No such file or directory", 255)
    if len(asked.script.encode(errors="surrogateescape")) > SCRIPT_MAX_BYTES:
        raise Refused(f"{FAILED}the script is larger than {SCRIPT_MAX_BYTES >> 10} KiB: keep it in a file that it calls")
    folder = str(Path(site.folder) / batch.folder)
    name = batch.name or (Path(asked.path).name if asked.path else "wrap" if batch.wrap is not None else "sbatch")
    names = Names(user_name(), name, bool(batch.array))
    output = file_name(batch.output or usual(names.array), names, folder)
    error = file_name(batch.error, names, folder) if batch.error else ""
    start = Start(
        asked.script,
        asked.arguments,
        exported(batch.export, site.environment),
        slurm_variables(batch, name, folder, site.folder, batch.partition or site.partition),
        file_name(batch.input, names, folder) if batch.input else "",
        together=error in ("", output) and (bool(batch.output) or not asked.terminal),
    )
    details = {
        "name": name,
        "command": asked.path,
        "comment": batch.comment,
        "partition": batch.partition or site.partition,
        "licences": ",".join(what if count == 1 else f"{what}:{count}" for what, count in batch.licences),
        "folder": folder,
        "input": batch.input,
    }
    home, named = _home(folder, asked.script, site.environment.get(ROOT, ""))
    more: dict[str, Any] = {"licences": dict(batch.licences)} if batch.licences else {}
    if batch.signal and batch.limit is not None:  # without a limit it is never sent
        more |= {"warn_signal": batch.signal, "warn_seconds": float(batch.signal_seconds)}
    return JobSpec(
        name=clean_name(name),
        command=COMMAND,
        environment={NUMBER: "{number}", START: start.text(), DETAILS: json.dumps({k: v for k, v in details.items() if v})},
        cpus=batch.cpus,
        memory_bytes=max(MEMORY_MIN, batch.memory or (batch.memory_per_cpu or 0) * batch.cpus or MEMORY_USUAL),
        out_of_memory="fail",
        gpus=batch.gpus,
        gpu=batch.gpu,
        market=MarketChoice(site.market(batch.partition, "sbatch")),
        priority=max(-PRIORITY_MAX, min(PRIORITY_MAX, -batch.nice)),
        project=clean_name(batch.account) if batch.account else "",
        array=batch.array,
        after=read_dependency(batch.dependency),
        begin=batch.begin.isoformat() if batch.begin and batch.begin > site.now else "",
        time_limit_seconds=None if batch.limit is None else float(batch.limit),
        home=home,
        home_files=named,
        stdout=output,
        stderr=error if error != output else "",
        output_append=bool(batch.append),
        **more,
    )


def _home(folder: str, script: str, root: str) -> tuple[str, tuple[str, ...]]:
    """The home of a job that works in `folder`, and which names of it come along (none = all)."""
    if not Path(folder).is_dir():
        return "", ()
    if not root:
        return folder, ()
    from spotsurfer.home.named_paths import home_of  # it brings all of `home` with it

    return home_of(folder, script, root)


def clean_name(text: str) -> str:
    """A name as the controller takes it: other letters than its own become "-", and 40 of them are kept."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text).lstrip("._-")[:40]
    return kept if NAME.fullmatch(kept) else "job"


# ---- Submission


def _submit(site: Site, spec: JobSpec, *, hold: bool) -> Json:
    try:
        found: Json = site.client.post("/v1/jobs", {"jobs": [{"spec": spec_body(spec), "held": hold}]})["jobs"][0]
    except e.SpotsurferError as error:
        raise refusal(error) from None
    return found


def refusal(error: e.SpotsurferError) -> Refused:
    """The controller's refusal in Slurm's words, or in its own."""
    said = str(error)
    if isinstance(error, e.NoController):
        return Refused(f"{FAILED}Unable to contact slurm controller (connect failure)\n{said}")
    if said.startswith("after "):
        return Refused(PROBLEM)
    if said.startswith("array "):
        return Refused(f"{FAILED}Invalid job array specification")
    if said.startswith("resources.licences "):
        return Refused(f"{FAILED}Invalid license specification")
    return Refused(FAILED + (CONFIGURATION if isinstance(error, e.NoCapacity) or said.startswith("resources.") else said))


def _test(spec: JobSpec, site: Site) -> None:
    body = {"spec": spec_body(replace(spec, array="", after=(), home=""))}
    try:
        plan = site.client.post("/v1/plans", body)
    except e.JobFileError as error:
        if not str(error).startswith("resources."):
            raise
        plan = {"choices": ()}
    if not plan["choices"] or plan["obstacle"]:
        raise Refused(f"allocation failure: {CONFIGURATION}")
    first, at = plan["choices"][0], show_time(site.now)
    where = next((name for name, market in site.partitions.items() if market == spec.market), site.partition)
    said = f"Job 0 to start at {at} using {spec.cpus} processors on nodes {first['instance_type']} in partition {where}"
    sys.stderr.write(f"sbatch: {said}\n")


def _wait(site: Site, made: Json) -> int:
    """The exit code of an ended job that is at home; of an array the highest."""
    while any(row.number == made["number"] for row in fetch(site, ended=False, folded=True)):
        time.sleep(LOOK_SECONDS)
    return max((_code(row) for row in fetch(site, ended=True) if row.number == made["number"]), default=1)


def _code(row: Row) -> int:
    code, _, signal = row.exit.partition(":")
    return int(code) or (1 if int(signal) or row.state != "COMPLETED" else 0)
