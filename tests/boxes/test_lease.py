"""Who owns a job when machines are cut off, controllers are dead and agents come back."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.head_log import Appended, HeadLog
from spotsurfer_wire.messages import AgentState, Done, HeadKind, Report
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import FileStore
from support.fleet import MARKS, SHORT_LEASE, Fleet, fleet

pytestmark = MARKS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("lease"), config=SHORT_LEASE) as made:
        yield made


def agent_log(world: Fleet, box: str) -> list[dict[str, str]]:
    text = (world.root(box) / "var/lib/spotsurfer/agent.log").read_text()
    return [json.loads(x) for x in text.splitlines() if x.startswith("{")]


def child_lines(world: Fleet, box: str) -> int:
    """How far the job's second process is, read in the box, so that no network is needed."""
    file = world.root(box) / "var/lib/spotsurfer/job/scratch/work/child.txt"
    return len(file.read_text().splitlines())


def stands_still(world: Fleet, box: str) -> bool:
    before = child_lines(world, box)
    time.sleep(0.5)
    return child_lines(world, box) == before


def test_a_short_cut_freezes_and_thaws_and_nobody_else_starts(world: Fleet) -> None:
    job = world.submit(300)
    world.wait_line(job, 20)
    box = world.box(job, 1)
    manual_control.set_link_up(world.data, box, False)
    world.wait(lambda: stands_still(world, box), "the job held still", 12)
    manual_control.set_link_up(world.data, box, True)
    ended = world.wait_end(job)
    assert [m["kind"] for m in world.moments(job) if m["kind"] in ("frozen", "thawed")] in ([], ["frozen", "thawed"])
    world.assert_identical(job)
    world.assert_one_owner(job)
    assert sum(1 for a in ended["attempts"] if a["granted_at"]) <= 2


def test_a_cut_off_machine_is_frozen_before_its_successor_starts(world: Fleet) -> None:
    job = world.submit(300)
    world.wait(lambda: world.moments(job, "saved"), "a checkpoint")
    box = world.box(job, 1)
    manual_control.set_link_up(world.data, box, False)
    world.wait(lambda: stands_still(world, box), "the job held still", 12)
    held_at = time.monotonic()
    assert not any(e.epoch == 2 for e in world.head(job)), "the successor was granted while the first still ran"
    world.wait(lambda: any(e.epoch == 2 for e in world.head(job)), "the successor", 40)
    assert time.monotonic() > held_at
    world.wait_end(job)
    world.assert_identical(job)
    world.assert_one_owner(job)


def test_an_attempt_that_comes_back_overwrites_nothing_of_its_successor(world: Fleet) -> None:
    """Its command ended while it was cut off; meanwhile another attempt was granted the job, and has published."""
    job = world.submit(90)
    world.wait_line(job, 1)  # the first ones are uploaded at once, those of the next seconds together: too late to cut it off
    box, store = world.box(job, 1), open_store((world.data / "store").as_uri())
    world.kill_controller()
    manual_control.set_link_up(world.data, box, False)
    world.wait(lambda: child_lines(world, box) == 90 or stands_still(world, box), "the command's end", 20)
    time.sleep(1.0)  # it tries to publish
    theirs = {name: f"of attempt 2: {name}\n".encode() for name in ("result.txt", "child.txt")}
    succeed(store, job, theirs)
    manual_control.set_link_up(world.data, box, True)
    world.wait(lambda: live(store, job).state in (AgentState.FENCED, AgentState.HALTED), "the end of the one cut off", 30)
    assert {name: store.get(object_keys.output_prefix(job, 2) + name) for name in theirs} == theirs
    assert [e.epoch for e in world.head(job) if e.kind is HeadKind.DONE] == [2]
    world.start()
    world.wait_end(job)
    shown = {f["path"] for f in world.client.get(f"/v1/jobs/{job}/outputs")["outputs"]}
    told = {name: b"".join(world.client.download(f"/v1/jobs/{job}/outputs/{name}")) for name in shown}
    assert told == theirs
    world.assert_one_owner(job)


def succeed(store: FileStore, job: str, results: dict[str, bytes]) -> None:
    """What a controller and a second attempt would write: the grant, results, the end."""
    log = HeadLog(store, job)
    newest = log.refresh()
    assert newest is not None
    grant = replace(newest, number=newest.number + 1, kind=HeadKind.GRANT, epoch=2, nonce="grant")
    assert log.append(grant) is Appended.OURS
    for name, data in results.items():
        store.put(object_keys.output_prefix(job, 2) + name, data)
    done = Done(0, "exited", {name: len(data) for name, data in results.items()}, dict.fromkeys(("out", "err"), 0))
    end = replace(grant, number=grant.number + 1, kind=HeadKind.DONE, done=done, nonce="done")
    assert log.append(end) is Appended.OURS


def live(store: FileStore, job: str) -> Report:
    data = store.get(object_keys.live_key(job, 1))
    assert data is not None
    return json_codec.decode(Report, data)


def test_a_notice_while_the_controller_is_dead(world: Fleet) -> None:
    job = world.submit(600)  # longer than the window: it runs on while there is time
    world.wait_line(job, 20)
    box = world.box(job, 1)
    world.kill_controller()
    manual_control.reclaim(world.data, box, 15)
    world.wait(lambda: world.head(job)[-1].final, "the final checkpoint that the agent made alone", 30)
    world.wait(lambda: box not in manual_control.living(world.data), "the box's end", 30)
    world.start()
    assert world.wait_end(job)["moves"] == 1
    world.assert_identical(job)


def test_the_job_ends_while_the_controller_is_dead(world: Fleet) -> None:
    job = world.submit(140)
    world.wait_line(job, 20)
    world.kill_controller()
    world.wait(lambda: world.head(job)[-1].kind is HeadKind.DONE, "the agent's own end", 30)
    world.start()
    assert world.wait_end(job)["state"] == "succeeded"
    world.assert_identical(job)


def test_the_agent_restarts_under_a_running_job(world: Fleet) -> None:
    job = world.submit(200)
    world.wait_line(job, 20)
    box = world.box(job, 1)
    before, shim = world.job_pid(box), world.shim_pid(box)
    world.kill(world.agent_pid(box))
    world.wait_line(job, 100)
    assert (world.job_pid(box), world.shim_pid(box)) == (before, shim)
    assert world.wait_end(job)["moves"] == 0
    world.assert_identical(job)


def test_the_agent_is_upgraded_under_a_running_job(world: Fleet) -> None:
    job = world.submit(400)
    world.wait_line(job, 20)
    box = world.box(job, 1)
    before, agent = world.job_pid(box), world.agent_pid(box)
    runtimes = world.root(box) / "var/lib/spotsurfer/runtime"
    old = (runtimes / "current").readlink()
    shutil.copytree(runtimes / old.name, runtimes / "newer", symlinks=True)
    world.inside(
        box, ["/var/lib/spotsurfer/runtime/newer/bin/spotsurfer-agent", "--switch", "/var/lib/spotsurfer/runtime/newer"]
    )
    world.wait(lambda: world.agent_pid(box) != agent, "the new agent", 20)
    assert "newer" in Path(f"/proc/{world.agent_pid(box)}/cmdline").read_text()
    assert world.job_pid(box) == before
    world.client.post(f"/v1/jobs/{job}/move", {})
    assert world.wait_end(job)["moves"] == 1
    world.assert_identical(job)


def test_a_save_that_fails_in_a_move_leaves_the_job_where_it_was(world: Fleet) -> None:
    job = world.submit(300, checkpoint_interval_seconds=3600)
    world.wait_line(job, 20)
    box = world.box(job, 1)
    pid = world.job_pid(box)
    store = world.data / "store" / "jobs" / job
    # The store refuses this job's chunks: what should be a folder is a file.
    (store / "chunks").write_text("in the way")
    world.client.post(f"/v1/jobs/{job}/move", {})
    world.wait(lambda: world.moments(job, "wish")[-1]["text"].startswith("the move failed"), "the move's failure", 60)
    assert world.job_pid(box) == pid
    (store / "chunks").unlink()
    ended = world.wait_end(job)
    assert ended["moves"] == 0
    world.assert_identical(job)
