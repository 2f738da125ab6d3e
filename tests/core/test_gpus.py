"""GPUs in the choice of machines: what a job asks for, and what its checkpoint needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_providers.aws.spot_market import types_of
from spotsurfer_providers.catalog import instance_types
from spotsurfer_providers.local import host_checks
from spotsurfer_providers.local.box import rootfs
from support.builders import NOW, POOL, a_head, a_job, a_snapshot, an_attempt, an_offer, seen

from spotsurfer.core.decide import Decision, decide
from spotsurfer.core.scheduling import placement
from spotsurfer.core.scheduling.launch import preview
from spotsurfer.model.actions import Plan
from spotsurfer.model.job import AttemptState, JobSpec
from spotsurfer.model.market import NO_GPUS, Gpus, Offer

POLICY = Cheapest(60.0, 0.2)
H100 = Gpus("h100", 1, 80 << 30)
T4 = Gpus("t4", 1, 16 << 30)
IMAGE = Gpus("NVIDIA H100 80GB HBM3", 1, driver="580.159.04")


def offer(name: str, there: Gpus, price: int) -> Offer:
    return replace(an_offer(price=price, pool=replace(POOL, instance_type=name)), gpus=there)


OFFERS = [
    offer("plain", NO_GPUS, 1),
    offer("t4", T4, 2),
    offer("h100x8", replace(H100, count=8), 3),
    offer("h100", H100, 4),
]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (IMAGE, H100, True),
        (Gpus("NVIDIA H200"), H100, False),
        (Gpus("NVIDIA L40S"), Gpus("l4"), False),
        (Gpus("Tesla T4"), T4, True),
        (Gpus("NVIDIA T4G"), T4, False),
        (Gpus("NVIDIA A100-SXM4-40GB"), Gpus("a100", memory_bytes=40960 << 20), True),
        (Gpus("NVIDIA A100-SXM4-80GB"), Gpus("a100", memory_bytes=40960 << 20), False),
        (Gpus("NVIDIA RTX PRO 6000 Blackwell Server Edition"), Gpus("rtx-pro-server-6000"), True),
        (Gpus("NVIDIA RTX PRO 4500 Blackwell"), Gpus("rtx-pro-server-6000"), False),
        (Gpus(""), H100, True),
    ],
    ids=str,
)
def test_names_of_one_chip(one: Gpus, other: Gpus, same: bool) -> None:
    assert placement.same_chip(one, other) is same
    assert placement.same_chip(other, one) is same


@pytest.mark.parametrize(
    ("spec", "there", "why"),
    [
        ({}, NO_GPUS, None),
        ({}, H100, None),
        ({"gpus": 2}, NO_GPUS, "it has no GPU, the job asks for 2"),
        ({"gpus": 2}, H100, "it has 1 GPU (h100), the job asks for 2"),
        ({"gpu": "H100"}, NO_GPUS, "it has no GPU, the job asks for 1"),
        ({"gpu": "H100"}, T4, "its GPU is 't4', the job asks for 'H100'"),
        ({"gpu": "H100", "gpus": 1}, H100, None),
        ({"devices": ("nvidia.com/gpu=all",)}, NO_GPUS, "it has no GPU, the job asks for 1"),
        ({"devices": ("vendor.com/net=1",)}, NO_GPUS, None),
    ],
    ids=str,
)
def test_what_a_job_asks_for(spec: dict[str, Any], there: Gpus, why: str | None) -> None:
    assert placement.lacking(JobSpec("job", ("x",), **spec), there) == why


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (H100, None),
        (replace(H100, driver="580.159.04"), None),
        (NO_GPUS, "it has no GPU, the checkpoint was made with 1 GPU (NVIDIA H100 80GB HBM3)"),
        (replace(H100, count=8), "it has 8 GPUs (h100), the checkpoint was made with 1 GPU (NVIDIA H100 80GB HBM3)"),
        (T4, "its GPU is 't4', the checkpoint was made on 'NVIDIA H100 80GB HBM3'"),
        (
            replace(H100, driver="575.1"),
            "machines there have the GPU driver '575.1', the checkpoint was made with '580.159.04'",
        ),
    ],
    ids=str,
)
def test_what_a_checkpoint_needs(there: Gpus, why: str | None) -> None:
    assert placement.wrong_gpus(IMAGE, there) == why


def decided(image: Gpus | None, **changes: Any) -> Decision:
    job = a_job({"gpus": 1}, state="queued")
    world = seen([an_attempt(1, AttemptState.RELEASED)], a_head(checkpoint="1-1"), job=job, image_gpus=image)
    return decide(a_snapshot(world, offers=changes.pop("offers", OFFERS), **changes), POLICY, NOW)


def planned(decision: Decision) -> list[str]:
    return [a.offer.pool.instance_type for a in decision.actions if isinstance(a, Plan)]


def test_a_job_with_gpus_gets_the_cheapest_machine_that_has_some() -> None:
    assert planned(decided(None)) == ["t4"]


def test_no_machine_is_bought_that_could_not_take_the_checkpoint() -> None:
    decision = decided(IMAGE)
    assert planned(decision) == ["h100"]
    whys = {r.what.rpartition("/")[2]: r.why for r in decision.rejected}
    assert whys["t4"] == "its GPU is 't4', the checkpoint was made on 'NVIDIA H100 80GB HBM3'"
    assert whys["h100x8"].startswith("it has 8 GPUs")


def test_where_no_machine_could_take_it_both_values_are_told() -> None:
    decision = decided(IMAGE, offers=OFFERS[:2])
    assert planned(decision) == []
    assert "t4: its GPU is 't4', the checkpoint was made on 'NVIDIA H100 80GB HBM3'" in " ".join(decision.notes.values())


def test_a_driver_that_machines_there_have_counts_before_one_is_bought() -> None:
    there = (POOL.provider, POOL.region)
    assert planned(decided(IMAGE, gpu_drivers={there: "575.1"})) == []
    assert planned(decided(IMAGE, gpu_drivers={there: "580.159.04"})) == ["h100"]
    assert planned(decided(IMAGE, gpu_drivers={(POOL.provider, "elsewhere"): "575.1"})) == ["h100"]


def test_a_preview_says_what_has_no_gpu() -> None:
    found = preview(a_job({"gpus": 8}), a_snapshot(offers=OFFERS), POLICY, NOW)
    assert [o.pool.instance_type for o in found.choices] == ["h100x8"]
    assert "it has no GPU, the job asks for 8" in {why for _, why in found.rejected}


def test_the_catalogue_knows_nvidias_gpus_alone() -> None:
    known = instance_types()
    assert known["g5.12xlarge"].gpus == Gpus("a10g", 4, 22888 << 20)
    assert known["p5.4xlarge"].gpus.count == 1
    assert known["m6i.large"].gpus == known["g4ad.xlarge"].gpus == known["gr6f.4xlarge"].gpus == NO_GPUS


def test_a_box_has_the_hosts_gpus_whatever_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs, "DEV", tmp_path)
    assert rootfs.gpus_of_host() == NO_GPUS
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidia1").symlink_to("/dev/null")
    (tmp_path / "nvidiactl").symlink_to("/dev/null")
    assert rootfs.gpus_of_host() == Gpus(count=2)
    assert placement.wrong_gpus(replace(IMAGE, count=2), Gpus(count=2)) is None, "the chip is the agent's to compare"


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "driver 580.159.04"),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19",
            "driver 535.104.05; jobs that use them can't be saved before 580",
        ),
        (None, "driver unknown; jobs that use them can't be saved before 580"),
    ],
)
def test_doctor_tells_the_gpus_and_whether_their_driver_can_save(
    version: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rootfs, "DEV", tmp_path)
    monkeypatch.setattr(host_checks, "DRIVER", tmp_path / "version")
    assert host_checks.gpus_told() == ""
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    if version is not None:
        (tmp_path / "version").write_text(version)
    assert host_checks.gpus_told() == f"; its boxes share 1 GPU, {told}"


def test_gpus_of_ec2s_answer() -> None:
    def kind(name: str, *found: dict[str, Any]) -> dict[str, Any]:
        size = {"InstanceType": name, "VCpuInfo": {"DefaultVCpus": 4}, "MemoryInfo": {"SizeInMiB": 1024}}
        return size | ({"GpuInfo": {"Gpus": list(found)}} if found else {})

    l4 = {"Name": "L4", "Manufacturer": "NVIDIA", "Count": 2, "MemoryInfo": {"SizeInMiB": 22888}}
    page = [kind("a", l4), kind("b"), kind("c", l4 | {"Manufacturer": "AMD"}), kind("d", l4 | {"Count": 0})]
    types = types_of([{"InstanceTypes": page}])
    assert types["a"].gpus == Gpus("L4", 2, 22888 << 20)
    assert {types[x].gpus for x in "bcd"} == {NO_GPUS}
