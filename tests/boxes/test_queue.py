"""Arrays, dependencies and time limits with real agents in boxes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fleet import MARKS, Fleet, fleet

pytestmark = [*MARKS]
TASK = "cat data.txt > out-{task}.txt; echo $SPOTSURFER_ARRAY_ID $SPOTSURFER_TASK >> out-{task}.txt; sleep 2"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("queue"), interval=2) as made:
        yield made


def result(world: Fleet, job: str, name: str) -> str:
    return b"".join(world.client.download(f"/v1/jobs/{job}/outputs/{name}")).decode()


def array(world: Fleet) -> str:
    """Three tasks, of which one fails, with one upload for all."""
    id = str(world.client.post("/v1/ids", {"name": "sweep"})["job"])
    world.client.upload(f"/v1/jobs/{id}/inputs/data.txt", iter([b"shared\n"]), 7)
    words = ["sh", "-c", TASK + "; test {task} != 2"]
    spec = {"name": "sweep", "command": words, "inputs": ["data.txt"], "outputs": ["out-{task}.txt"], "array": "1-3%2"}
    world.client.put(f"/v1/jobs/{id}", {"spec": {**spec, "memory_bytes": 1 << 29}, "modes": {"data.txt": 0o644}})
    return id


def test_tasks_share_their_inputs_and_others_wait_for_them(world: Fleet) -> None:
    id = array(world)
    specs = [{"name": name, "command": ["true"], "memory_bytes": 1 << 29, "after": [f"{kind}:{id}"]} for name, kind in KINDS]
    after = [x["job"] for x in world.client.post("/v1/jobs", {"jobs": [{"spec": spec} for spec in specs]})["jobs"]]
    ends = [world.wait_end(f"{id}-{n}") for n in (1, 2, 3)]
    assert [job["state"] for job in ends] == ["succeeded", "failed", "succeeded"]
    assert [result(world, f"{id}-{n}", f"out-{n}.txt") for n in (1, 3)] == [f"shared\n{id} {n}\n" for n in (1, 3)]
    assert world.wait_end(after[0])["state"] == "succeeded"
    assert world.show(after[1])["state"] == "queued"
    brief = {job["id"]: job for job in world.client.get("/v1/brief")["jobs"]}
    assert brief[after[1]]["reason"] == f"what it waits for can't come any more: {id} did not succeed (1 of its tasks)"


KINDS = (("any", "afterany"), ("ok", "afterok"))


def test_a_job_is_told_of_its_time_limit_and_ended_by_it(world: Fleet) -> None:
    script = "trap 'echo warned' USR1; trap 'echo told > told.txt; exit 0' TERM; while :; do sleep 0.1; done"
    limits = {"time_limit_seconds": 6.0, "warn_signal": "B:USR1", "warn_seconds": 3.0}
    spec = {"name": "long", "command": ["sh", "-c", script], "outputs": ["told.txt"], "memory_bytes": 1 << 29, **limits}
    (made,) = world.client.post("/v1/jobs", {"jobs": [{"spec": spec}]})["jobs"]
    job = world.wait_end(made["job"])
    assert (job["state"], job["ended_by"], job["reason"]) == ("failed", "time limit", "it was ended by its time limit")
    assert (result(world, job["id"], "told.txt"), world.output(job["id"])) == ("told\n", "warned\n")


def test_a_signal_reaches_the_job(world: Fleet) -> None:
    spec = {"name": "deaf", "command": ["sh", "-c", "trap 'echo heard; exit 4' USR2; while :; do sleep 0.1; done"]}
    (made,) = world.client.post("/v1/jobs", {"jobs": [{"spec": {**spec, "memory_bytes": 1 << 29}}]})["jobs"]
    world.wait_state(made["job"], "running")
    world.client.post(f"/v1/jobs/{made['job']}/signal", {"signal": "B:USR2"})
    job = world.wait_end(made["job"])
    assert (job["state"], job["exit_code"], job["ended_by"], world.output(job["id"])) == ("failed", 4, "", "heard\n")
