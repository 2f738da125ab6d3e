"""The engine `criu+cuda` on miniboxes, with the stand-in for the driver: moves, refusals, and whatever dies when."""

from __future__ import annotations

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.real
MODULE = "support.cuda_scenes"


@pytest.fixture
def box(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", module=MODULE) as made:
        yield made


def test_a_job_on_a_gpu_goes_on_with_other_cards_and_is_refused_where_it_can_not(tmp_path):
    for scene in ("first_machine", "refusals", "last_machine"):
        with minibox(tmp_path / scene, tmp_path / "store", module=MODULE) as machine:
            machine.run(scene)


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("managed", "managed_(unified)_memory"),
        ("endless", "did_not_come_to_rest_on_its_GPU_in_time"),
        ("stranger", "holds_/dev/nvidia0_and_has_no_CUDA_of_its_own"),
        ("lies", "came_into_the_job's_memory"),
        ("mig", "cut_into_instances_(MIG)"),
        ("short", "ask_for_a_machine_with_more_memory"),
    ],
)
def test_what_can_not_be_saved_is_said_and_nobody_is_harmed(box, mode, told):
    box.run("cant", mode, f'"{told}"')


@pytest.mark.parametrize("scene", ["retried", "late", "taken", "unclear", "moved", "forked"])
def test_scene(box, scene):
    box.run(scene)


@pytest.mark.parametrize("how", ["held", "known", "refused", "running"])
def test_threads_that_would_end_the_job_while_its_memory_is_out(box, how):
    box.run("threaded", how)


# The stages are those of a live save; in "gpu" the side-car locks and copies out, in "resume" it copies back.
@pytest.mark.parametrize("at", ["gpu", "gpu+0.2", "snapshot", "resume+0.1", "resume+0.3", "upload"])
def test_kill_the_side_car_at(box, at):
    stage, _, delay = at.partition("+")
    box.run("sidecar_killed", stage, delay or "0")


@pytest.mark.parametrize("at", ["gpu", "gpu+0.2", "freeze", "snapshot", "resume+0.1", "upload"])
def test_kill_the_agent_at(box, at):
    stage, _, delay = at.partition("+")
    box.run("agent_killed", stage, delay or "0")
