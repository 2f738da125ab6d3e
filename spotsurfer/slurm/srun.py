"""`srun` on the submit host: one task as a job, its output on this terminal, its exit code as ours."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from spotsurfer.slurm.batch_options import SRUN, Batch, read_batch
from spotsurfer.slurm.options import Refused
from spotsurfer.slurm.rows import ENDED
from spotsurfer.slurm.sbatch import Asked, specification
from spotsurfer.slurm.site import Site
from spotsurfer.web.client import Json, job_path
from spotsurfer.web.submitting import spec_body

LOOK_SECONDS = 1.0
PLACES = ("out", "err", "times")


def srun(words: Sequence[str], site: Site) -> Iterator[str]:
    """Runs to the job's end; what it prints is written as it comes. Raises Refused, with the job's exit code too."""
    if {"-V", "--version"} & set(words[:1]):
        yield site.version
        return
    batch, command = read_batch(SRUN, words, None, site.environment, site.now)
    if not site.folder:
        raise Refused("srun: error: getcwd failed: No such file or directory", 255)
    if not command:
        raise Refused("srun: fatal: No command given to execute.")
    if (batch.tasks or 1) > 1 or batch.array:
        raise Refused("srun: error: Unable to allocate resources: Requested node configuration is not available")
    text = f"#!/bin/sh\nexec {shlex.join(command)}\n"
    asked = Asked(replace(batch, tasks=1, name=batch.name or command[0].rpartition("/")[2]), text, terminal=True)
    spec = specification(asked, site)
    spec = replace(spec, stdout=spec.stdout if batch.output else "", stderr=spec.stderr if batch.error else "")
    spec = site.home.bring(site.client, spec)
    made = site.client.post("/v1/jobs", {"jobs": [{"spec": spec_body(spec)}]})["jobs"][0]
    site.home.expect(site.client, spec, made)
    try:
        code = _follow(site, made, batch)
    except KeyboardInterrupt:
        site.client.post(job_path(made["job"], "cancel"))
        raise
    if code:
        raise Refused(f"srun: error: {made['machine'] or 'machine'}: task 0: Exited with exit code {code}", code)
    yield from ()


def _follow(site: Site, made: Json, batch: Batch) -> int:
    """Copy what the job prints until it has ended; its exit code."""
    at: dict[str, Any] = {}
    while True:
        view = site.client.get(job_path(made["job"]))
        ended = view["state"] in ENDED
        while not (batch.output and batch.error):
            parts, told = site.client.framed(job_path(made["job"], "log"), **at)
            at = {name: told["next"][name] for name in PLACES}
            for head, data in parts:
                _write(head["stream"], data, batch)
            if not parts:
                break
        if ended:
            while made["job"] in site.home.awaited(site.client):
                site.home.deliver(site.client, [made["job"]])
                time.sleep(LOOK_SECONDS / 5)
            made["machine"] = next((a["instance"] for a in reversed(view["attempts"]) if a["instance"]), "")
            return _code(view)
        time.sleep(LOOK_SECONDS)


def _write(stream: str, data: bytes, batch: Batch) -> None:
    if batch.output if stream == "out" else batch.error or batch.output:
        return
    if batch.label:
        data = b"".join(b"0: " + line for line in data.splitlines(keepends=True))
    to = sys.stdout if stream == "out" else sys.stderr
    to.buffer.write(data)
    to.flush()


def _code(view: Json) -> int:
    if view["exit_code"] is not None:
        return int(view["exit_code"])
    return 0 if view["state"] == "succeeded" else 1
