"""Timers that ran out unseen before a save tick on after the restore."""

from __future__ import annotations

import pytest
from spotsurfer_agent.criu.images import BadImage
from spotsurfer_agent.restore.pager.image_files import as_restorable
from support.criu_images import image, message
from support.minibox import minibox


def core(isec: int, iusec: int, vsec: int, vusec: int) -> bytes:
    idle = message(f1=0, f2=0, f3=0, f4=0)
    timers = message(f1=message(f1=isec, f2=iusec, f3=vsec, f4=vusec), f2=idle, f3=idle)
    return image(message(f1=1, f2=b"registers", f3=message(f1=1, f6=b"comm", f7=timers), f5=b""))


def files(ticks: int, vsec: int, vnsec: int, isec: int, insec: int) -> bytes:
    timer = message(f1=7, f2=2, f3=b"owner", f4=1, f5=ticks, f6=0, f7=vsec, f8=vnsec, f9=isec, f10=insec)
    return image(message(f1=6, f2=3, f8=b"an eventfd"), message(f1=17, f2=7, f12=timer))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((0, 500, 0, 0), (0, 500, 0, 1)),
        ((3, 0, 0, 0), (3, 0, 0, 1)),
        ((0, 500, 0, 300), (0, 500, 0, 300)),
        ((0, 500, 1, 0), (0, 500, 1, 0)),
        ((0, 0, 0, 0), (0, 0, 0, 0)),
        ((0, 0, 0, 70), (0, 0, 0, 70)),
    ],
)
def test_a_timer_of_real_time_that_ran_out_runs_out_again(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert as_restorable("core-17.img", core(*before)) == core(*after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, 0, 0, 0, 200), (1, 0, 1, 0, 200)),
        ((900, 0, 0, 5, 0), (900, 0, 1, 5, 0)),
        ((1, 0, 0, 0, 0), (1, 0, 0, 0, 0)),  # it came once, and that was all
        ((0, 0, 0, 0, 200), (0, 0, 0, 0, 200)),  # switched off
        ((1, 0, 7, 0, 200), (1, 0, 7, 0, 200)),
    ],
)
def test_a_timer_behind_a_descriptor_that_ran_out_runs_out_again(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert as_restorable("files.img", files(*before)) == files(*after)


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_broken_file_is_refused(cut: int) -> None:
    with pytest.raises(BadImage):
        as_restorable("core-1.img", core(0, 500, 0, 0)[:-cut])


@pytest.mark.real
@pytest.mark.parametrize("lazy", ["lazy", "plain"])
def test_they_tick_on_after_a_restore(tmp_path, lazy):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.whole_scenes") as machine:
        machine.run("timers", lazy)
