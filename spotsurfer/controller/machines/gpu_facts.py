"""Facts about GPUs before a machine is bought: the GPUs of a job's checkpoint, and the drivers on machines now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta

from spotsurfer_wire import gpu_facts, manifest
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.store.port import ObjectStore, StoreError

from spotsurfer.core.scheduling.placement import asked
from spotsurfer.model.job import Attempt, AttemptNumber, Job
from spotsurfer.model.market import Gpus
from spotsurfer.model.snapshot import HeadSeen
from spotsurfer.store.agent_reports import Heard


class ImageGpus:
    """The GPUs of checkpoints, by their manifests. It reads one manifest per machine: all checkpoints there say the same."""

    def __init__(self, store: ObjectStore, keys_of: Callable[[str], Keys]) -> None:
        """`keys_of`: the keys of a job's lineage."""
        self._store, self._keys_of = store, keys_of
        self._known: dict[tuple[str, str], Gpus | None] = {}

    def of(self, job: str, lineage: str, checkpoint: str | None) -> Gpus | None:
        """The GPUs of a checkpoint; None = it was made without GPUs, does not exist, or can't be read now."""
        if checkpoint is None:
            return None
        key = job, checkpoint.partition("-")[0]
        if key not in self._known:
            try:
                data = manifest.stored(self._store, job, checkpoint) or b""
                facts = manifest.decode(data, self._keys_of(lineage or job), job, checkpoint).facts
            except (StoreError, ProtocolError):
                return None
            count, chip, driver = (facts.get(name, "") for name in (gpu_facts.COUNT, gpu_facts.CHIP, gpu_facts.DRIVER))
            gpus = Gpus(chip, int(count) if count.isdecimal() else 0, driver=driver)
            self._known[key] = gpus if gpu_facts.processes_of(facts) else None  # None: it holds no GPU memory
        return self._known[key]

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all other jobs."""
        self._known = {key: gpus for key, gpus in self._known.items() if key[0] in jobs}


Region = tuple[str, str]  # provider, region
WITH_GPUS = "criu+cuda"


class GpuWatch:
    """Facts kept from tick to tick; a machine's report counts for a while after it is gone."""

    def __init__(self, images: ImageGpus | None, kept_seconds: float) -> None:
        """`images` None: no checkpoint is read."""
        self._images, self._kept = images, timedelta(seconds=kept_seconds)
        self._drivers: dict[Region, tuple[datetime, datetime, str]] = {}  # launched, heard last, version
        self._using: set[str] = set()  # jobs that were seen to be saved with GPU memory

    def hear(self, job: Job, attempts: Iterable[Attempt], heard: Mapping[AttemptNumber, Heard], now: datetime) -> None:
        """Take in the reports of one job's agents."""
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
        """The driver version by region, from the newest machine with GPUs that reported lately."""
        self._drivers = {where: said for where, said in self._drivers.items() if now - said[1] <= self._kept}
        return {where: version for where, (_, _, version) in self._drivers.items()}

    def image(self, job: Job, head: HeadSeen | None) -> Gpus | None:
        """The GPUs of a job's newest checkpoint; None without I/O for a job that neither asked for GPUs nor used one."""
        if self._images is None or head is None or not (asked(job.spec) or job.id in self._using):
            return None
        return self._images.of(job.id, job.lineage, head.checkpoint)
