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
