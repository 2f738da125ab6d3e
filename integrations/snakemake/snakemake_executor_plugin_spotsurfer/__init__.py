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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, DeploymentMethod

from snakemake_executor_plugin_spotsurfer import carried_files, rule_request
from snakemake_executor_plugin_spotsurfer.controller import Controller, NoController, SpotsurferError
from snakemake_executor_plugin_spotsurfer.settings import ExecutorSettings
from spotsurfer.web.client import connect

Rule = Any  # a job of Snakemake, or a group of them: their interface names but a part of what is needed here
LOGS = ".snakemake/spotsurfer_logs"
UPLOADS = 8  # jobs that are submitted at a time
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


@dataclass(frozen=True)
class _Request:
    """The specification of a job, and the files that it takes along, by the names under which they arrive."""

    spec: dict[str, Any]
    files: dict[str, Path]

    @property
    def modes(self) -> dict[str, int]:
        return {name: source.stat().st_mode & 0o777 for name, source in self.files.items()}


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
        asked: list[tuple[Rule, _Request]] = []
        for job in jobs:
            self.run_job_pre(job)
            try:
                asked.append((job, self._request(job)))
            except rule_request.Unfit as e:
                self.report_job_error(SubmittedJobInfo(job), msg=f"{e}. ")
        with ThreadPoolExecutor(UPLOADS) as pool:
            ids = list(pool.map(self._bring, [request for _, request in asked]))
        ready = {str(x): (job, request) for x, (job, request) in zip(ids, asked, strict=True) if isinstance(x, str)}
        bodies = [{"job": id, "spec": request.spec, "modes": request.modes} for id, (_, request) in ready.items()]
        self._open |= set(ready)
        stopped = WorkflowError("the workflow was cancelled.")
        refused = dict.fromkeys(ready, stopped) if self._cancelled.is_set() else self._controller.submit(bodies)
        for told, (job, _) in zip(ids, asked, strict=True):
            self._report_submission(job, refused[told] or told if isinstance(told, str) else told)

    def _bring(self, request: _Request) -> str | Exception:
        try:
            return self._controller.bring(request.spec["name"], request.files)
        except (SpotsurferError, OSError) as e:
            return e

    def _report_submission(self, job: Rule, told: str | Exception) -> None:
        if isinstance(told, Exception):
            self.report_job_error(SubmittedJobInfo(job), msg=f"It was not submitted: {told} ")
            return
        self.logger.info(f"Job {job.jobid} is {told} (its log will be {self._log(job)}).")
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=told))

    def _log(self, job: Rule) -> Path:
        return self._folder / job.logfile_suggestion(LOGS)

    def _request(self, job: Rule) -> _Request:
        """Raises Unfit."""
        rules = list(job.jobs) if job.is_group() else [job]
        read = carried_files.to_send((str(f) for f in job.input if not f.is_storage), self._folder)
        image, command = self._how(job)
        sources = {} if image else carried_files.to_send(self._deployed(), self._folder)
        spec = {
            "name": rule_request.named(job.name if job.is_group() else job.rule.name),
            "command": ["bash", "-c", command],
            "outputs": [carried_files.as_pattern(x) for x in self._made(rules)],
            "outputs_optional": True,
            "environment": {str(k): str(v) for k, v in self.envvars().items()},
            "tags": rule_request.tags(self._run, job.name, _wildcards(job), sum(f.stat().st_size for f in read.values())),
            **({"project": self._settings.project} if self._settings.project else {}),
            **({"market": self._settings.market} if self._settings.market else {}),
            **rule_request.resources(job.resources, job.threads),
        }
        if image := image or self._settings.image or "":
            spec["image"] = image
        return _Request(spec, sources | read)

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

    def _made(self, rules: Iterable[Any]) -> list[str]:
        """What may come home: results, log files and benchmarks."""
        found: dict[str, None] = {}
        for rule in rules:
            for path in [*rule.output, *rule.log, *([rule.benchmark] if rule.benchmark else [])]:
                if not getattr(path, "is_storage", False):
                    found[carried_files.below(str(path), self._folder, "output")] = None
        return list(found)

    # ---- from a job's end to a rule's

    async def check_active_jobs(  # pyright: ignore[reportIncompatibleMethodOverride] - the interface declares no generator, and needs one
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report those that have ended; yields the others. A controller that is away changes nothing."""
        if not active_jobs:
            return
        try:
            states = await asyncio.to_thread(self._controller.states)
        except SpotsurferError as e:
            self._warn("", f"{e} Jobs go on without it.")
            states = None
        looks = (asyncio.to_thread(self._over, info, states) for info in active_jobs)
        for info, over in zip(active_jobs, await asyncio.gather(*looks), strict=True):
            if not over:
                yield info
                continue
            self._open.discard(str(info.external_jobid))
            if over == "succeeded":
                self.report_job_success(info)
            else:
                self.report_job_error(info, msg=f"{over} ", aux_logs=[str(self._log(info.job))])

    def _over(self, info: SubmittedJobInfo, states: dict[str, dict[str, Any]] | None) -> str:
        """`succeeded` once its results are here, a sentence if it failed; "" if it goes on."""
        if states is None:
            return ""
        job = str(info.external_jobid)
        row = states.get(job, {"state": "lost", "reason": "the controller does not know it any more"})
        state = str(row["state"])
        if state == "held":
            self._warn(job, f"{job} is held: {row['reason']} `spotsurfer resume {job}` lets it go on.")
        if state not in ("succeeded", "failed", "cancelled", "lost"):
            return ""
        try:
            self._land(info, job, results=state in ("succeeded", "failed"))
        except NoController:
            return ""  # the next look tries again
        except (SpotsurferError, OSError, rule_request.Unfit) as e:
            return f"{job}: its results can't be fetched: {e}."
        return state if state == "succeeded" else f"{job} is {state}: {row['reason']}."

    def _land(self, info: SubmittedJobInfo, job: str, *, results: bool) -> None:
        log = self._log(info.job)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(self._controller.stderr(job) if results else b"")
        for name in self._controller.results(job) if results else ():
            carried_files.land(self._controller.result(job, name), name, self._folder)

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


def _quoted(paths: Iterable[str]) -> str:
    return " ".join(shlex.quote(p) for p in paths)


__all__ = ["Executor", "ExecutorSettings", "common_settings"]
