"""Timers that had run out when an image was made and nobody had looked yet: they go on ticking after a restore.

The kernel begins the next round of an interval timer only when the signal is taken, or the descriptor read. Until then it
tells 0 as the time that is left (`itimer_get_remtime` of kernel/time/itimer.c, `timerfd_get_remaining` of fs/timerfd.c), and
CRIU 4.2 sets that again, which switches the timer off for good. The least time above 0 makes it run out at once, as it had. The
layouts are those of CRIU's images/core.proto, timer.proto, fdinfo.proto and timerfd.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from spotsurfer_agent.pager.images import BadImage, places

FILES = "files.img"
_REAL_TIMER = (3, 7, 1)  # of a core entry: task, timers, the one of real time
_TIMER_DESCRIPTOR = (12,)  # of a file entry
# Numbers of fields: interval, time left, and what tells that it ran out and nobody looked, none = the time left tells it.
_REAL_FIELDS = ((1, 2), (3, 4), ())
_DESCRIPTOR_FIELDS = ((9, 10), (7, 8), (5,))


def concerned(name: str) -> bool:
    """Whether an image file may hold timers."""
    return name == FILES or name.startswith("core-")


def ticking(name: str, data: bytes) -> bytes:
    """The same image file, with its timers running. Raises BadImage."""
    path, fields = (_TIMER_DESCRIPTOR, _DESCRIPTOR_FIELDS) if name == FILES else (_REAL_TIMER, _REAL_FIELDS)
    out = bytearray(data)
    try:
        for at in _stopped(data, path, fields):
            out[at] = 1
    except (IndexError, KeyError, struct.error) as e:
        raise BadImage(f"the timers of {name} can't be read: {type(e).__name__}") from e
    return bytes(out)


def _stopped(data: bytes, path: Sequence[int], fields: tuple[tuple[int, ...], ...]) -> Iterator[int]:
    """Where the last digits of the time left are, a byte each, of timers that a restore would switch off."""
    interval, left, unseen = fields
    for timer in places(data, path):
        ran_out = any(timer[f][0] for f in unseen) or not unseen
        if ran_out and any(timer[f][0] for f in interval) and not any(timer[f][0] for f in left):
            yield timer[left[-1]][1]
