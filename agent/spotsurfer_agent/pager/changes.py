"""Image files that CRIU gets in another form than it wrote them, for that one it could not restore; a row for each kind.

The layouts are those of CRIU's images/mm.proto, vma.proto and tty.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from spotsurfer_agent.pager import ticking
from spotsurfer_agent.pager.images import BadImage, changed

TERMINALS = "tty-info.img"
_AREAS, _START, _END, _MODE, _MAPPED_AS = 14, 1, 2, 5, 6
_WRITE = 0x2  # PROT_WRITE
_PRIVATE, _NORESERVE = 0x02, 0x4000  # of mmap(2)
LARGE_BYTES = 64 << 20  # no machine refuses less, so less is left as it is
_TYPE, _USER, _CONTROLLING = 2, 14, 4  # of a terminal; CTTY of `TtyType`


def _unreserved(area: Mapping[int, int]) -> Mapping[int, int | None]:
    """An area as CRIU may map it.

    The kernel counts no memory for a private area that can't be written. CRIU maps each as if it could, and the kernel refuses
    one that is larger than all memory: a program that keeps terabytes of addresses for later. With MAP_NORESERVE it does not.
    What the program makes writable of it later is then not counted either, unless vm.overcommit_memory is 2.
    """
    large = area[_END] - area[_START] >= LARGE_BYTES
    if large and area[_MAPPED_AS] & (_PRIVATE | _NORESERVE) == _PRIVATE and not area[_MODE] & _WRITE:
        return {_MAPPED_AS: area[_MAPPED_AS] | _NORESERVE}
    return {}


def _unowned(terminal: Mapping[int, int]) -> Mapping[int, int | None]:
    """A terminal without its owner, where it is /dev/tty: CRIU would change that of a file in the job's read-only /dev."""
    return {_USER: None} if terminal[_TYPE] == _CONTROLLING else {}


def _reserved(name: str, data: bytes) -> bytes:
    return _read(name, lambda: changed(data, (_AREAS,), _unreserved))


def _owned(name: str, data: bytes) -> bytes:
    return _read(name, lambda: changed(data, (), _unowned))


def _read(name: str, work: Callable[[], bytes]) -> bytes:
    try:
        return work()
    except (IndexError, KeyError, struct.error) as e:
        raise BadImage(f"{name} can't be read: {type(e).__name__}") from e


# Whether a file is meant, and what CRIU gets instead; the first that is meant counts.
_CHANGES: tuple[tuple[Callable[[str], bool], Callable[[str, bytes], bytes]], ...] = (
    (ticking.concerned, ticking.ticking),
    (lambda name: name.startswith("mm-"), _reserved),
    (lambda name: name == TERMINALS, _owned),
)


def change(name: str) -> Callable[[str, bytes], bytes] | None:
    """What makes of a file's name and bytes those that CRIU gets; None where it gets what it wrote. It raises BadImage."""
    return next((made for meant, made in _CHANGES if meant(name)), None)
