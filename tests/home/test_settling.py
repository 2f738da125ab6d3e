"""Programs rename files after their submission has returned: the job is held until the folder has settled, and finds them."""

from __future__ import annotations

from pathlib import Path

from spotsurfer_wire import object_keys
from support.home_world import HomeWorld, shown

from spotsurfer.home import deliver, expect
from spotsurfer.home.settling import settle


def test_a_job_finds_what_was_renamed_after_its_submission(tmp_path: Path) -> None:
    world = HomeWorld(tmp_path)
    (world.home / "tmp.pkl").write_text("x")
    spec = world.submit("j1")
    expect(world.client, [(spec, {"job": "j1", "number": 1})], book=world.book(), start=False, settle_seconds=1e-9)
    (world.home / "tmp.pkl").rename(world.home / "1_submitted.pkl")
    assert world.book().settling(world.place) != []
    assert deliver(world.client, book=world.book()).troubles == {}
    assert world.settled == {"j1"}
    assert world.book().settling(world.place) == []
    seen: list[dict[str, object]] = []
    world.run("j1", lambda work: seen.append(shown(work)))
    assert [set(x) for x in seen] == [{"1_submitted.pkl"}]
    assert deliver(world.client, book=world.book()).troubles == {}
    assert [p.name for p in world.home.iterdir()] == ["1_submitted.pkl"]


def test_it_is_not_looked_at_before_its_time_and_tried_again_if_it_fails(tmp_path: Path) -> None:
    world = HomeWorld(tmp_path)
    (world.home / "a").write_text("x")
    spec = world.submit("j1")
    expect(world.client, [(spec, {"job": "j1", "number": 1})], book=world.book(), start=False, settle_seconds=3600)
    assert settle(world.client, world.book()) == {}
    assert world.settled == set()
    spec = world.submit("j2")
    expect(world.client, [(spec, {"job": "j2", "number": 2})], book=world.book(), start=False, settle_seconds=1e-9)
    (world.home / "bad\n").write_text("x")
    assert "control character" in settle(world.client, world.book())["j2"]
    (world.home / "bad\n").unlink()
    assert settle(world.client, world.book()) == {}
    assert world.settled == {"j2"}
    assert world.store.get(object_keys.home_tree_key("j2")) is not None
