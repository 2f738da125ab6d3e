"""A box from its start to each of its ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.boxes import Yard, yard

from spotsurfer.model.errors import Conflict, NotFound
from spotsurfer.model.market import Market
from spotsurfer.ports.provider import InstanceState

pytestmark = pytest.mark.real

IMDS = """
T=$(curl -sS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token)
imds() { curl -s -o /dev/stdout -w ' %{http_code}\\n' -H "X-aws-ec2-metadata-token: $T" http://169.254.169.254/latest/$1; }
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Yard]:
    with yard(tmp_path) as y:
        yield y


@pytest.mark.alone
def test_user_data_runs_within_seconds(here: Yard) -> None:
    begin = time.monotonic()
    box = here.launch("echo hello from $(hostname) as $(id -u), pid 1 is $(cat /proc/1/comm)")
    text = here.wait_console(box.id, "hello")
    took = time.monotonic() - begin
    assert f"hello from {box.id} as 0" in text
    assert took < 5, f"{took} s"  # a fraction of a second on an idle machine
    assert here.view(box.id).state is InstanceState.RUNNING
    assert here.log(box.id) == ""


def test_runtimes_of_its_image_are_in_place_and_read_only(tmp_path: Path) -> None:
    """They come from a folder that a box can't see otherwise."""
    runtime = tmp_path / "runtimes" / "5e5e"
    runtime.mkdir(parents=True)
    (runtime / "hello").write_text("#!/bin/sh\necho hello\n")
    (runtime / "hello").chmod(0o755)
    with yard(tmp_path / "yard", runtimes=str(runtime.parent)) as here:
        box = here.launch("cd /var/lib/spotsurfer/runtime/5e5e; ./hello; touch x || echo kept; touch ../other && echo added")
        assert here.wait_console(box.id, "added").startswith("hello\ntouch: cannot touch 'x': Read-only file system\nkept\n")
    assert [p.name for p in runtime.iterdir()] == ["hello"]


def test_it_stays_up_when_user_data_ends(here: Yard) -> None:
    box = here.launch("echo done; exit 3")
    here.wait_console(box.id, "done")
    time.sleep(0.3)
    assert here.view(box.id).state is InstanceState.RUNNING


def test_orphans_are_reaped(here: Yard) -> None:
    box = here.launch("(sleep 0.1 & sleep 0.1 &) ; sleep 0.5; ps -e -o stat= | grep -c Z; echo counted")
    assert "0\ncounted" in here.wait_console(box.id, "counted")


def test_power_off_from_inside_ends_it(here: Yard) -> None:
    box = here.launch("sleep 0.2; kill -TERM 1; sleep 100")
    gone = here.wait_gone(box.id)
    assert (gone.reclaimed, here.reason(box.id)) == (False, "powered off")


def test_terminate_ends_it_at_once(here: Yard) -> None:
    box = here.launch("trap '' TERM; sleep 1000")
    here.provider.terminate(box.id)
    gone = here.wait_gone(box.id, 2)
    assert gone.ended_at is not None and not gone.reclaimed
    assert here.reason(box.id) == "terminated"
    here.assert_clean()


def test_terminated_while_it_starts(here: Yard) -> None:
    view = here.provider.launch(here.plan("#!/bin/sh\n"))
    here.provider.terminate(view.id)
    assert not here.wait_gone(view.id).reclaimed
    here.assert_clean()


@pytest.mark.alone
def test_metadata_and_notice_then_gone(here: Yard) -> None:
    box = here.launch(
        IMDS
        + """
for p in meta-data/instance-id meta-data/instance-type/ meta-data/instance-life-cycle meta-data/placement/availability-zone \\
  meta-data/tags/instance/spotsurfer:job meta-data/spot/instance-action meta-data/events/recommendations/rebalance
do imds $p; done; echo asked; while imds meta-data/spot/instance-action | grep 404; do sleep 0.05; done
imds meta-data/spot/instance-action; imds meta-data/spot/termination-time; imds meta-data/events/recommendations/rebalance
echo noticed; sleep 1000"""
    )
    text = here.wait_console(box.id, "asked")
    for line in (f"{box.id} 200", "m6i.large 200", "spot 200", "local-a 200", "job-a 200"):
        assert line in text
    assert text.count(" 404") >= 2
    manual_control.rebalance(here.path, box.id)
    begin = time.monotonic()
    assert manual_control.reclaim(here.path, box.id, 2)["action_at"]
    text = here.wait_console(box.id, "noticed", 2)
    assert '{"action": "terminate", "time": "20' in text and "noticeTime" in text
    assert here.view(box.id).state is InstanceState.RUNNING and not here.view(box.id).reclaimed
    assert here.wait_gone(box.id, 5).reclaimed
    assert 1.9 < time.monotonic() - begin < 4


def test_taken_without_a_word(here: Yard) -> None:
    box = here.launch("sleep 1000")
    manual_control.reclaim(here.path, box.id, 0)
    assert here.wait_gone(box.id, 2).reclaimed


def test_a_second_reclaim_gives_no_more_time(here: Yard) -> None:
    box = here.launch("sleep 1000")
    manual_control.reclaim(here.path, box.id, 0.5)
    manual_control.reclaim(here.path, box.id, 600)
    assert here.wait_gone(box.id, 5).reclaimed


def test_orders_to_no_box_are_told_so(here: Yard) -> None:
    with pytest.raises(NotFound):
        manual_control.rebalance(here.path, "box-000000000000")
    box = here.launch("sleep 1000")
    here.provider.terminate(box.id)
    here.wait_gone(box.id)
    with pytest.raises(Conflict):
        manual_control.rebalance(here.path, box.id)


def test_it_outlives_its_launcher_and_a_new_one_finds_it(here: Yard) -> None:
    plan = here.plan("#!/bin/sh\nsleep 1000\n", Market.ON_DEMAND)
    child = os.fork()
    if child == 0:
        os.setsid()
        here.provider.launch(plan)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    here.wait_for(lambda: here.provider.describe().instances[0].state is InstanceState.RUNNING, "the box")
    again = here.provider.launch(plan)
    assert [v.id for v in here.provider.describe().instances] == [again.id]
    assert manual_control.list_boxes(here.path)[0]["market"] == "on-demand"
