"""Rules of a Snakemake workflow as jobs of spotsurfer.

Machines share no file system with the host of the workflow: a job takes along the workflow's sources and the rule's inputs,
and its results land in the working directory when it has ended. A machine that is reclaimed is no event here: the job goes on
elsewhere, bit for bit, and Snakemake sees a job that runs.
"""

from __future__ import annotations

import asyncio
import shlex
import threading
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, DeploymentMethod

from snakemake_executor_plugin_spotsurfer import carried_files, rule_request
from snakemake_executor_plugin_spotsurfer.controller import Controller
from snakemake_executor_plugin_spotsurfer.settings import ExecutorSettings
from spotsurfer.home.folder import USUAL_EXCLUDE
from spotsurfer.model.errors import SpotsurferError
from spotsurfer.model.job import JobSpec
from spotsurfer.web.client import connect

Rule = Any  # a job of Snakemake, or a group of them: their interface names but a part of what is needed here
LOGS = ".snakemake/spotsurfer_logs"
UPLOADS = 8  # jobs that are submitted at a time
EXCLUDE = (*USUAL_EXCLUDE, ".snakemake")  # what Snakemake notes on a machine stays there
ENDED = ("succeeded", "failed", "cancelled", "lost")
LOST = {"state": "lost", "reason": "the controller does not know it any more"}
LOOK_SECONDS = 2  # between two looks at all jobs


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=True,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    pass_group_args=True,
    can_transfer_local_files=True,
)


class Executor(RemoteExecutor):
    """Submits rules, looks at all of them with one request, and lands their results."""

    workflow: Any  # of Snakemake, of which the interface names but a part

    def __post_init__(self) -> None:
        self._settings: ExecutorSettings = self.workflow.executor_settings or ExecutorSettings()
        self._folder = Path.cwd()
        self._run = uuid.uuid4().hex[:16]
        self._controller = Controller(connect(), self._run, self.logger.info)
        self._open: set[str] = set()  # ids of jobs that have not been reported
        self._cancelled = threading.Event()
        self._warned: set[tuple[str, str]] = set()
        self._sources: list[str] | None = None
        self.next_seconds_between_status_checks = LOOK_SECONDS
        self.logger.info(f"Jobs of this run have the tag workflow={self._run} (spotsurfer list --tag workflow={self._run}).")

    # ---- from a rule to a job

    def get_python_executable(self) -> str:
        """On the machines."""
        return self._settings.python or "python"

    def additional_general_args(self) -> Any:  # the interface says that it is a list, and joins it as text
        """A failed rule's log files reach its user by the job's own stderr."""
        return "--show-failed-logs"

    def get_job_args(self, job: Rule) -> str:
        """With the processors that the job has, not those of its machine."""
        return super(RemoteExecutor, self).get_job_args(job, cores=max(1, job.threads))

    def run_job(self, job: Rule) -> None:
        """Submit one job."""
        self.run_jobs([job])

    def run_jobs(self, jobs: Sequence[Rule]) -> None:
        """Submit jobs: their files some at a time, then all in one request."""
        asked: list[tuple[Rule, JobSpec]] = []
        for job in jobs:
            self.run_job_pre(job)
            try:
                asked.append((job, self._request(job)))
            except rule_request.Unfit as e:
                self.report_job_error(SubmittedJobInfo(job), msg=f"{e}. ")
        with ThreadPoolExecutor(UPLOADS) as pool:
            brought = list(pool.map(self._bring, [spec for _, spec in asked]))
        ready = [x for x in brought if not isinstance(x, Exception)]
        self._open |= {id for id, _ in ready}
        stopped = WorkflowError("the workflow was cancelled.")
        refused = {id: stopped for id, _ in ready} if self._cancelled.is_set() else self._controller.submit(ready)
        for (job, _), told in zip(asked, brought, strict=True):
            self._report_submission(job, told if isinstance(told, Exception) else refused[told[0]] or told[0])

    def _bring(self, spec: JobSpec) -> tuple[str, JobSpec] | Exception:
        try:
            return self._controller.bring(spec)
        except (SpotsurferError, OSError) as e:
            return e

    def _report_submission(self, job: Rule, told: str | Exception) -> None:
        if isinstance(told, Exception):
            self.report_job_error(SubmittedJobInfo(job), msg=f"It was not submitted: {told} ")
            return
        self.logger.info(f"Job {job.jobid} is {told} (its log is {self._log(job)}).")
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=told))

    def _log(self, job: Rule) -> Path:
        return self._folder / job.logfile_suggestion(LOGS)

    def _request(self, job: Rule) -> JobSpec:
        """Raises Unfit."""
        rules = list(job.jobs) if job.is_group() else [job]
        for path in (str(f) for rule in rules for f in _products(rule)):
            carried_files.below(path, self._folder, "output")
        read = [str(f) for f in job.input if not f.is_storage]
        image, command = self._how(job)
        asked = self._settings
        log = str(self._log(job))
        return JobSpec(
            name=rule_request.named(job.name),
            command=("bash", "-c", command),
            image=image or asked.image,
            home=str(self._folder),
            home_files=tuple(carried_files.names(read if image else [*self._deployed(), *read], self._folder)),
            home_exclude=EXCLUDE,
            stdout=log,
            environment={str(k): str(v) for k, v in self.envvars().items()},
            tags=rule_request.tags(self._run, job.name, _wildcards(job), carried_files.size(read, self._folder)),
            project=asked.project,
            market=rule_request.market_of(str(job.resources.get("market", "")) or asked.market),
            **rule_request.resources(job.resources, job.threads),
        )

    def _deployed(self) -> list[str]:
        """What Snakemake needs of the workflow itself, on each machine."""
        if self._sources is None:
            found = set(self.workflow.dag.get_sources()) | {str(x) for x in self.workflow.configfiles}
            self._sources = sorted(str(x) for x in found | {str(x) for x in self.workflow.overwrite_configfiles})
        return self._sources

    def _how(self, job: Rule) -> tuple[str, str]:
        """The image of the rule and its own command if it can be run in there, else "" and Snakemake's."""
        asked = DeploymentMethod.APPTAINER in self.workflow.deployment_settings.deployment_method
        if not asked or job.is_group() or not job.container_img_url:
            return "", self.format_job_exec(job)
        if not job.is_shell or job.is_shadow or job.benchmark or job.env_modules:
            raise rule_request.Unfit(
                f"rule {job.rule.name} has a container, and is more than a shell command (script, shadow, benchmark, "
                "envmodules): let it be one, or run all in an image with Snakemake (--spotsurfer-image)"
            )
        folders = sorted({str(Path(f).parent) for f in [*job.output, *job.log]})
        touched = [str(f) for f in job.output if "touch" in getattr(f, "flags", {})]
        lines = [f"mkdir -p {_quoted(folders)}", "set -euo pipefail", job.shellcmd]
        return job.container_img_url, "\n".join(lines + [f"touch {_quoted(touched)}"] * bool(touched))

    # ---- from a job's end to a rule's

    async def check_active_jobs(  # pyright: ignore[reportIncompatibleMethodOverride] - the interface declares no generator, and needs one
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report those that have ended; yields the others. A controller that is away changes nothing."""
        if not active_jobs:
            return
        over: dict[str, str] = {}
        try:
            over = await asyncio.to_thread(self._over, [str(info.external_jobid) for info in active_jobs])
        except SpotsurferError as e:
            self._warn("", f"{e} Jobs go on without it.")
        for info in active_jobs:
            told = over.get(str(info.external_jobid))
            if told is None:
                yield info
                continue
            self._open.discard(str(info.external_jobid))
            if told:
                self.report_job_error(info, msg=f"{told} ", aux_logs=[str(self._log(info.job))])
            else:
                self.report_job_success(info)

    def _over(self, jobs: list[str]) -> dict[str, str]:
        """Jobs that have ended and are at home: "", or why they failed. Raises SpotsurferError."""
        states = self._controller.states()
        rows = {job: states.get(job, LOST) for job in jobs}
        for job in (job for job, row in rows.items() if row["state"] == "held"):
            self._warn(job, f"{job} is held: {rows[job]['reason']}. `spotsurfer resume {job}` lets it go on.")
        ended = [job for job, row in rows.items() if row["state"] in ENDED]
        over: dict[str, str] = {}
        for job, awaited in (self._controller.fetch(ended) if ended else {}).items():
            if awaited:
                self._warn(job, f"{job} has ended, and is not at home: {awaited}")
            else:
                state, reason = rows[job]["state"], rows[job]["reason"]
                over[job] = "" if state == "succeeded" else f"{job} is {state}: {reason}."
        return over

    def _warn(self, job: str, text: str) -> None:
        if (job, text) not in self._warned:
            self._warned.add((job, text))
            self.logger.info(text)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:  # noqa: ARG002 - a look in progress has taken them out
        """Cancel all that this run has submitted and not reported."""
        self._cancelled.set()
        if left := self._controller.cancel(sorted(self._open)):
            self.logger.error(f"No controller answers. Cancel by hand: spotsurfer cancel {' '.join(left)}")


def _wildcards(job: Rule) -> str:
    return "" if job.is_group() else ",".join(f"{k}={v}" for k, v in sorted(job.wildcards_dict.items()))


def _products(rule: Rule) -> list[Any]:
    """Results, log files and benchmarks that land in the working directory."""
    made = [*rule.output, *rule.log, *([rule.benchmark] if rule.benchmark else [])]
    return [f for f in made if not getattr(f, "is_storage", False)]


def _quoted(paths: Iterable[str]) -> str:
    return " ".join(shlex.quote(p) for p in paths)


__all__ = ["Executor", "ExecutorSettings", "common_settings"]
