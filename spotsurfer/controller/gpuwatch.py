"""What is known of GPUs before a machine is bought: of those that checkpoints were made on, and of drivers on machines now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from spotsurfer.core.gpus import asked
from spotsurfer.model.gpus import Gpus
from spotsurfer.model.ids import AttemptNumber
from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.snapshot import HeadSeen
from spotsurfer.store.imagegpus import ImageGpus
from spotsurfer.store.reports import Heard

Region = tuple[str, str]  # provider, region
WITH_GPUS = "criu+cuda"


class GpuWatch:
    """Kept from tick to tick; what a machine said counts for a while after it is gone."""

    def __init__(self, images: ImageGpus | None, kept_seconds: float) -> None:
        """`images` None: no checkpoint is looked at."""
        self._images, self._kept = images, timedelta(seconds=kept_seconds)
        self._drivers: dict[Region, tuple[datetime, datetime, str]] = {}  # launched, heard last, version
        self._using: set[str] = set()  # jobs that were seen to be saved with GPU memory

    def hear(self, job: Job, attempts: Iterable[Attempt], heard: Mapping[AttemptNumber, Heard], now: datetime) -> None:
        """What the agents of one job say."""
        for a in attempts:
            report = heard[a.number].report if a.number in heard else None
            if report is None:
                continue
            if report.protection == WITH_GPUS:
                self._using.add(job.id)
            launched = a.launched_at or a.planned_at
            region = a.pool.provider, a.pool.region
            if report.gpu_driver and (region not in self._drivers or self._drivers[region][0] <= launched):
                self._drivers[region] = launched, now, report.gpu_driver

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all other jobs."""
        self._using.intersection_update(jobs)
        if self._images is not None:
            self._images.keep(jobs)

    def drivers(self, now: datetime) -> dict[Region, str]:
        """By region, of the newest machine with GPUs that was heard of lately."""
        self._drivers = {where: said for where, said in self._drivers.items() if now - said[1] <= self._kept}
        return {where: version for where, (_, _, version) in self._drivers.items()}

    def image(self, job: Job, head: HeadSeen | None) -> Gpus | None:
        """Of a job's newest checkpoint. Jobs that neither asked for GPUs nor were seen to use one are not looked at."""
        if self._images is None or head is None or not (asked(job.spec) or job.id in self._using):
            return None
        return self._images.of(job.id, job.lineage, head.checkpoint)
