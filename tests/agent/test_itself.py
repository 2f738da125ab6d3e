"""What a process sees of itself, before and after a save and a move."""

from __future__ import annotations

import re

import pytest
from spotsurfer_agent.host import network
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.prepare.environment import World
from spotsurfer_agent.prepare.images.cache import Images
from spotsurfer_agent.restore import compatibility
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.minibox import minibox

SCENES = "support.self_scenes"


@pytest.mark.parametrize(
    ("job", "name"),
    [("train-7f3a", "train-7f3a"), ("My_Job.2", "my-job-2"), ("-x-", "x"), ("..", "job"), ("a" * 62 + "-b", "a" * 62)],
)
def test_a_name_that_every_program_takes_for_a_machines(job, name):
    assert network.hostname_of(job) == name


def test_a_copy_finds_itself_by_the_name_that_its_programs_have_read(tmp_path):
    images = Images(tmp_path, "other", open_store(tmp_path.as_uri()), Tools((), (), (), (), "", ()))
    world, names = World(tmp_path, "other", images), tmp_path / "job/names/hosts"
    (tmp_path / "job").mkdir()
    for host, told in (("", "10.201.0.2 other\n"), ("first", "10.201.0.2 other first\n"), ("other", "10.201.0.2 other\n")):
        world.bring(Spec("other", []), host)
        assert names.read_text().startswith(told)
        assert "localhost" in names.read_text()
        assert names.stat().st_mode & 0o777 == 0o644


def test_its_machine_id_is_its_own_and_that_of_a_copy_is_the_firsts(tmp_path):
    images = Images(tmp_path, "other", open_store(tmp_path.as_uri()), Tools((), (), (), (), "", ()))
    world, file = World(tmp_path, "other", images), tmp_path / "job/names/machine-id"
    (tmp_path / "job").mkdir()
    told = []
    for host in ("", "first", "other"):
        world.bring(Spec("other", []), host)
        told.append(file.read_text())
        assert re.fullmatch(r"[0-9a-f]{32}\n", told[-1])
    assert told[0] == told[2] != told[1]
    here = {"mounts": "/dev /etc/hosts /etc/machine-id"}
    assert compatibility.refusal({"mounts": "/dev /etc/hosts"}, here) is None, "an image of before"
    assert compatibility.refusal(here, {"mounts": "/dev /etc/hosts"}) is not None


def test_images_of_before_jobs_had_a_name_of_their_own_are_not_refused():
    here = {"mounts": "/dev /etc/hosts /tmp"}
    assert compatibility.refusal({"mounts": "/dev /tmp"}, here) is None
    assert compatibility.refusal({"mounts": "/dev /tmp"}, {"mounts": "/dev /etc/hosts"}) is not None
    assert compatibility.refusal(here, {"mounts": "/dev /tmp"}) is not None, "a machine that has none to mount ours on"


@pytest.mark.real
def test_a_job_goes_by_one_name_wherever_it_is(tmp_path):
    for machine in ("first", "second"):
        with minibox(tmp_path / machine, tmp_path / "store", module=SCENES) as box:
            box.run("named", machine)


@pytest.mark.real
def test_a_call_that_waits_does_not_come_back_because_of_a_save(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", module=SCENES) as box:
        box.run("waits")


@pytest.mark.real
def test_what_the_kernel_notes_of_a_thread_comes_back(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", module=SCENES) as box:
        box.run("attributes")


@pytest.mark.real
def test_no_process_gets_the_number_of_one_that_ended(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", module=SCENES) as box:
        box.run("numbers")


@pytest.mark.real
def test_datagrams_that_wait_come_along(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", module=SCENES) as box:
        box.run("datagrams")


@pytest.mark.real
def test_a_descriptor_at_the_top_of_its_limit_is_there_again(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", module=SCENES) as box:
        box.run("highest")
