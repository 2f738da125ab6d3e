"""What the controller knows of GPUs before it buys: drivers from reports, chips from manifests."""

from __future__ import annotations

from datetime import timedelta

from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.messages import AgentState, Report
from support.builders import NOW, a_head, a_job, ago, an_attempt
from support.dict_store import DictStore
from support.saves import JOB, KEYS, a_manifest

from spotsurfer.controller.machines.gpu_facts import GpuWatch, ImageGpus
from spotsurfer.model.job import AttemptNumber, Job, JobId
from spotsurfer.model.market import Gpus
from spotsurfer.store.agent_reports import Heard

FIRST, SECOND = "000001-000001", "000001-000002"
FACTS = {"GPU": "NVIDIA H200", "GPU count": "2", "GPU driver": "580.159.04", "GPU processes": "2 3"}
FOUND = Gpus("NVIDIA H200", 2, driver="580.159.04")


def heard(number: int, driver: str, protection: str = "") -> dict[AttemptNumber, Heard]:
    report = Report(JOB, number, "i", "0", 1, AgentState.RUNNING, 1, gpu_driver=driver, protection=protection)
    return {AttemptNumber(number): Heard(report, "v", NOW)}


def job(**spec: object) -> Job:
    return a_job(dict(spec), id=JobId(JOB))


def test_the_driver_of_the_newest_machine_counts_and_only_for_a_while() -> None:
    watch = GpuWatch(None, 60.0)
    older, newer = an_attempt(1, launched_at=ago(90)), an_attempt(2, launched_at=ago(30))
    where = (older.pool.provider, older.pool.region)
    watch.hear(job(), [newer], heard(2, "590.1"), NOW)
    watch.hear(job(), [older], heard(1, "580.1"), NOW)
    watch.hear(job(), [newer], heard(2, ""), NOW)
    assert watch.drivers(NOW) == {where: "590.1"}
    assert watch.drivers(NOW + timedelta(seconds=61)) == {}


def store_with(facts: dict[str, str]) -> DictStore:
    store = DictStore()
    store.put(object_keys.manifest_key(JOB, FIRST), manifest.encode(a_manifest(FIRST, ["a"], facts=facts), KEYS))
    return store


def test_a_manifest_is_read_once_a_machine_and_only_for_jobs_with_gpus() -> None:
    store = store_with(FACTS)
    watch = GpuWatch(ImageGpus(store, lambda _: KEYS), 60.0)
    assert watch.image(job(), a_head(checkpoint=FIRST)) is None
    assert watch.image(job(gpus=2), a_head()) is None
    assert watch.image(job(gpus=2), a_head(checkpoint=FIRST)) == FOUND
    store.objects.clear()
    assert watch.image(job(gpus=2), a_head(checkpoint=SECOND)) == FOUND


def test_a_job_that_was_seen_on_a_gpu_counts_without_having_asked() -> None:
    watch = GpuWatch(ImageGpus(store_with(FACTS), lambda _: KEYS), 60.0)
    watch.hear(job(), [an_attempt(1)], heard(1, "", "criu+cuda"), NOW)
    assert watch.image(job(), a_head(checkpoint=FIRST)) == FOUND


def test_an_image_without_gpu_memory_may_go_anywhere() -> None:
    watch = GpuWatch(ImageGpus(store_with({**FACTS, "GPU processes": ""}), lambda _: KEYS), 60.0)
    assert watch.image(job(gpus=2), a_head(checkpoint=FIRST)) is None


def test_a_store_that_does_not_answer_or_lies_speaks_against_nothing_and_is_asked_again() -> None:
    store = store_with(FACTS)
    key = object_keys.manifest_key(JOB, FIRST)
    good, store.objects[key] = store.objects[key], b"forged"
    watch = GpuWatch(ImageGpus(store, lambda _: KEYS), 60.0)
    assert watch.image(job(gpus=2), a_head(checkpoint=FIRST)) is None
    store.objects[key] = good
    assert watch.image(job(gpus=2), a_head(checkpoint=FIRST)) == FOUND
