"""Arrays with limits and dependencies in the virtual world: their rules hold at every second, and every task comes to its end.

The controller dies at any call, often.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation.agents import spec_of
from simulation.chances import Chances
from simulation.chances import calm as no_chances
from simulation.seeds import seeds
from simulation.world import LIMITS, World
from spotsurfer_wire import json_codec, object_keys

from spotsurfer.controller.jobs.batches import of_task, rows_of
from spotsurfer.controller.jobs.brief import Told, jobs_brief
from spotsurfer.model.job import ENDED, OVER, JobId, JobSpec, JobState
from spotsurfer.model.queueing.dependencies import read_after
from spotsurfer.state import dependencies, timeline
from spotsurfer.state import jobs as rows
from spotsurfer.state.brief import Which

ROOM = replace(LIMITS, instances_max=6, cancel_never_satisfied=True)


class Queue(World):
    """Three arrays, of which the second waits for the first task by task, and the third for all of the second; and a job that
    begins when all of the first have begun.
    """

    def __init__(self, seed: int, work: int = 30, **chances: Any) -> None:
        super().__init__(seed, jobs=0, work=work, chances=Chances(**{"crash": 0.01, **chances}), limits=ROOM)
        self.add("a", array="1-6%2")
        self.add("b", "aftercorr:a", array="1-6")
        self.add("c", "afterany:b")
        self.add("d", "after:a:a-6")

    def add(self, name: str, *after: str, array: str = "") -> None:
        spec = JobSpec(name=name, command=("work",), array=array, after=after)
        with self.engine.begin() as c:
            made = rows.add_jobs(c, rows_of(JobId(name), spec, self.clock.now(), ""))
            dependencies.add(c, [(job, of_task(read_after(after), job.task)) for job in made])
        for job in made:
            self.ids.append(job.id)
            self.store.data[object_keys.spec_key(job.id)] = (json_codec.encode(spec_of(job.id)), 0)

    def check(self) -> None:
        super().check()
        jobs = {job.id: job for job in self._jobs()}
        began = {id for id, some in self.attempts.items() if some}
        going = [j for j in jobs.values() if j.array == "a" and j.state not in ENDED and j.id in began]
        leaving = [j for j in jobs.values() if j.array == "a" and any(a.state not in OVER for a in self.attempts[j.id])]
        counted = {j.id for j in (*going, *leaving)} - self.rewinds.keys()  # users may go back to one that had ended
        assert len(counted) <= 2, "more tasks at a time than its limit"
        for n in range(1, 7):
            if f"b-{n}" in began and f"a-{n}" not in self.rewinds:
                assert jobs[JobId(f"a-{n}")].state is JobState.SUCCEEDED
        if "d" in began:
            assert all(j.state in ENDED or j.id in began for j in jobs.values() if j.array == "a")
        if "c" in began:
            assert all(j.state in ENDED for j in jobs.values() if j.array == "b" and j.id not in self.rewinds)


def test_tasks_begin_in_their_order_and_no_more_than_may() -> None:
    world = Queue(1, **vars(no_chances()))
    world.users_busy = False
    assert world.run() == "ok"
    world.check_end()
    assert {j.state for j in world._jobs()} == {JobState.SUCCEEDED}
    with world.engine.connect() as c:
        told = [(m.kind, m.job) for _, m in timeline.read(c, None, 0)]
        each, folded = (jobs_brief(c, Which(folded=some), Told()) for some in (False, True))
    assert all(b.machine and b.started_at for b in each), "squeue and sacct tell where a job was that has ended"
    assert sorted((b.array, b.tasks, bool(b.machine)) for b in folded if b.array) == [("a", "1-6", False), ("b", "1-6", False)]
    first = [job for kind, job in told if kind == "planned" and job and job.startswith("a-")]
    assert list(dict.fromkeys(first)) == [f"a-{n}" for n in range(1, 7)]
    assert told.index(("planned", JobId("d"))) < told.index(("ended", JobId("a-6")))


@pytest.mark.parametrize("seed", seeds(2))
def test_the_rules_hold_whatever_happens(seed: int) -> None:
    world = Queue(seed)
    assert world.run() == "ok", f"seed {seed}: {[(j.id, j.state, j.wish, j.reason) for j in world._jobs()]}"
    world.check_end()
