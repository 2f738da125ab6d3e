"""What CRIU could not restore as it wrote it is changed for it, and nothing else is."""

from __future__ import annotations

import pytest
from spotsurfer_agent.criu.images import BadImage
from spotsurfer_agent.restore.pager.image_files import as_restorable, is_changed
from support.criu_images import image, message
from support.minibox import minibox

PRIVATE, NORESERVE, READ, WRITE = 0x22, 0x4022, 1, 3
SMALL, LARGE = 4096, 8 << 40


def areas(*found: tuple[int, int, int]) -> bytes:
    """A list of mappings: size, how it is mapped, what may be done there."""
    base = 0x7F0000000000
    each = (
        message(f1=base, f2=base + size, f3=0, f4=0, f5=mode, f6=flags, f7=513, f8=2**64 - 1) for size, flags, mode in found
    )
    listed = b"".join(message(f14=x) for x in each)
    return image(message(f1=base, f2=base) + listed + message(f16=b"auxv"))


def test_large_reservations_are_mapped_without_counting_them() -> None:
    before = areas((LARGE, PRIVATE, 0), (SMALL, PRIVATE, READ), (LARGE, PRIVATE, READ), (LARGE, PRIVATE, WRITE))
    after = areas((LARGE, NORESERVE, 0), (SMALL, PRIVATE, READ), (LARGE, NORESERVE, READ), (LARGE, PRIVATE, WRITE))
    assert as_restorable("mm-7.img", before) == after
    assert as_restorable("mm-7.img", after) == after
    shared = areas((LARGE, 0x21, 0))
    assert as_restorable("mm-7.img", shared) == shared


def terminal(kind: int, **more: int) -> bytes:
    return message(f1=7, f2=kind, f3=0, f4=0, f5=0, f6=9, f7=9, f8=1280, f9=b"settings", **more)


def test_the_owner_of_dev_tty_is_let_alone() -> None:
    before = image(terminal(1, f14=5, f15=6), terminal(4, f14=5, f15=6))
    assert as_restorable("tty-info.img", before) == image(terminal(1, f14=5, f15=6), terminal(4, f15=6))


def test_other_files_are_as_criu_wrote_them() -> None:
    assert [n for n in ("pagemap-1.img", "ids-1.img", "tty-data.img", "pages-1.img", "inventory.img") if is_changed(n)] == []


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_a_broken_file_is_refused(cut: int) -> None:
    with pytest.raises(BadImage):
        as_restorable("mm-7.img", areas((LARGE, PRIVATE, 0), (SMALL, PRIVATE, READ))[:-cut])


@pytest.mark.real
@pytest.mark.parametrize("scene", ["reserves lazy", "reserves whole", "tty lazy"])
def test_it_goes_on_after_two_moves(tmp_path, scene):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.reserve_scenes") as box:
        box.run("goes_on", *scene.split())
