"""Image files as CRIU gets them: bytes from chunks, the kinds that are changed, and the server of `criu restore --stream`."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import select
import socket
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux import syscalls
from spotsurfer_wire.linux.addresses import address
from spotsurfer_wire.linux.buffers import PAGE, Buffer
from spotsurfer_wire.manifest import Entry, Extent, Manifest
from spotsurfer_wire.store.port import ObjectStore, StoreError

from spotsurfer_agent.criu import images, terminals
from spotsurfer_agent.criu.images import BadImage, Pagemap, changed, places
from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.restore.pager.feeder import Layout
from spotsurfer_agent.restore.pager_process import BLAME_IMAGE, BLAME_MACHINE, BLAME_STORE, PagerPlan
from spotsurfer_agent.store.cache import DiskCache
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_agent.store.layers import CachedStore, RetryingStore

log = logging.getLogger(__name__)

# ---- Image files that CRIU gets in another form than it wrote them, because it could not restore that one
#
# The layouts are those of CRIU's core.proto, timer.proto, fdinfo.proto, timerfd.proto, mm.proto, vma.proto and tty.proto.

FILES, TERMINALS = "files.img", "tty-info.img"
# Of timers: the way to one, and the numbers of its fields: interval, time left, and the mark of an unnoticed expiry (none: a
# time left of 0 is the mark).
_REAL_TIMER, _REAL_FIELDS = (3, 7, 1), ((1, 2), (3, 4), ())  # of a core entry: task, timers, the one of real time
_TIMER_DESCRIPTOR, _DESCRIPTOR_FIELDS = (12,), ((9, 10), (7, 8), (5,))  # of a file entry
_AREAS, _START, _END, _MODE, _MAPPED_AS = 14, 1, 2, 5, 6
_WRITE = 0x2  # PROT_WRITE
_PRIVATE, _NORESERVE = 0x02, 0x4000  # of mmap(2)
LARGE_BYTES = 64 << 20  # smaller areas are never refused, so they stay as they are
_TYPE, _USER, _CONTROLLING = 2, 14, 4  # of a terminal; CTTY of `TtyType`


def _ticking(data: bytes, path: Sequence[int], fields: tuple[tuple[int, ...], ...]) -> bytes:
    """Timers that had expired unnoticed when the image was made: they go on ticking after a restore.

    The kernel begins the next round of an interval timer only when the signal is taken, or the descriptor read. Until then it
    reports 0 as the remaining time (`itimer_get_remtime` of kernel/time/itimer.c, `timerfd_get_remaining` of fs/timerfd.c).
    CRIU 4.2 sets that 0 again, which switches the timer off for good. The smallest time above 0 makes it expire at once, as it
    had.
    """
    out = bytearray(data)
    interval, left, unseen = fields
    for timer in places(data, path):
        ran_out = any(timer[f][0] for f in unseen) or not unseen
        if ran_out and any(timer[f][0] for f in interval) and not any(timer[f][0] for f in left):
            out[timer[left[-1]][1]] = 1  # the lowest byte of the remaining time
    return bytes(out)


def _unreserved(area: Mapping[int, int]) -> Mapping[int, int | None]:
    """An area as CRIU may map it.

    The kernel counts no memory for a private area that can't be written. CRIU maps each as writable, and the kernel refuses an
    area larger than all memory (a program may reserve terabytes of addresses). With MAP_NORESERVE it does not refuse. Parts
    that the program makes writable later are then not counted either, unless vm.overcommit_memory is 2.
    """
    large = area[_END] - area[_START] >= LARGE_BYTES
    if large and area[_MAPPED_AS] & (_PRIVATE | _NORESERVE) == _PRIVATE and not area[_MODE] & _WRITE:
        return {_MAPPED_AS: area[_MAPPED_AS] | _NORESERVE}
    return {}


def _unowned(terminal: Mapping[int, int]) -> Mapping[int, int | None]:
    """A terminal; /dev/tty without its owner, because CRIU would set the owner of a file in the job's read-only /dev."""
    return {_USER: None} if terminal[_TYPE] == _CONTROLLING else {}


# How the name of a file begins, and what CRIU gets instead of its bytes.
_CHANGES: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    (FILES, lambda data: _ticking(data, _TIMER_DESCRIPTOR, _DESCRIPTOR_FIELDS)),
    ("core-", lambda data: _ticking(data, _REAL_TIMER, _REAL_FIELDS)),
    ("mm-", lambda data: changed(data, (_AREAS,), _unreserved)),
    (TERMINALS, lambda data: changed(data, (), _unowned)),
)


def is_changed(name: str) -> bool:
    """Whether CRIU gets an image file in another form than it wrote it."""
    return any(name.startswith(beginning) for beginning, _ in _CHANGES)


def as_restorable(name: str, data: bytes) -> bytes:
    """The bytes of an image file as CRIU can restore them. Raises BadImage."""
    try:
        return next((change(data) for beginning, change in _CHANGES if name.startswith(beginning)), data)
    except (IndexError, KeyError, struct.error) as e:
        raise BadImage(f"{name} can't be read: {type(e).__name__}") from e


ZEROS = bytes(1 << 20)


class Content:
    """The image of one manifest. Safe to use from several threads."""

    def __init__(self, image: Manifest, chunks: Reader) -> None:
        self._table, self._chunks = image.chunks, chunks
        self._instead: dict[str, bytes] = {}  # files that CRIU gets in another form than it wrote
        self.files = {e.path: e for e in image.image if e.kind == "file"}

    def once(self, chunk: int) -> Buffer:
        """A chunk by its number, for a caller that uses it in all its places at once."""
        return self._chunks.plain(self._table[chunk], keep=False)

    def ahead(self, chunks: Iterable[int], most_bytes: int) -> None:
        """The first so many bytes of these chunks will be wanted soon."""
        wanted = [self._table[c] for c in chunks]
        until = itertools.accumulate(c.size for c in wanted)
        self._chunks.ahead([c for c, end in zip(wanted, until, strict=True) if end <= most_bytes])

    def maps(self) -> dict[int, Pagemap]:
        """Which pages each process has, by its number in the image. Raises BadImage, BadChunk, StoreError."""
        names = (name.removeprefix("pagemap-").removesuffix(".img") for name in self.files if name.startswith("pagemap-"))
        return {int(number): self._map(number) for number in names if number.isdigit()}

    def terminals(self) -> list[images.Unread]:
        """Unread bytes of the job's terminals. CRIU does not get them: the restore puts them back.

        Raises BadImage, BadChunk, StoreError.
        """
        if not {terminals.DATA, terminals.INFO} <= self.files.keys():
            return []
        data = self._small(terminals.DATA)
        found = images.unread(self._small(terminals.INFO), data)
        self._instead[terminals.DATA] = images.without_messages(data)
        lines = terminals.lines(self._small(terminals.LINES)) if terminals.LINES in self.files else {}
        return [replace(u, line=lines.get(u.number, b"")) for u in found]

    def noted(self, name: str) -> bytes:
        """A small file of ours in the image; empty if it has none of that name. Raises BadChunk, StoreError."""
        return self._small(name) if name in self.files else b""

    def bringable(self, maps: Mapping[int, Pagemap]) -> tuple[dict[int, Pagemap], Layout]:
        """The processes among these that have pages, and the places of these pages."""
        layout = Layout({m.file: self.files[m.file].extents for m in maps.values() if m.file in self.files})
        return {number: m for number, m in maps.items() if m.file in layout.files}, layout

    def _map(self, number: str) -> Pagemap:
        name, areas = f"pagemap-{number}.img", f"mm-{number}.img"
        data = self._small(name)
        found = images.pagemap(data)
        better = found
        if areas in self.files:
            memory = self._small(areas)
            better = images.first(images.later(found, images.areas(memory)), images.words(memory))
        if better != found:
            self._instead[name] = images.encoded(data, better)
        return better

    def _small(self, name: str) -> bytes:
        entry = self.files[name]
        return b"".join(self.pieces(entry, [(0, entry.size)]))

    def whole(self, name: str) -> Iterator[memoryview] | None:
        """A whole file; None if the image has none of that name. Raises BadImage."""
        if (data := self._instead.get(name)) is not None:
            return iter([memoryview(data)])
        entry = self.files.get(name)
        if entry is not None and is_changed(name):
            return iter([memoryview(as_restorable(name, self._small(name)))])
        return None if entry is None else self.pieces(entry, [(0, entry.size)])

    def pieces(self, entry: Entry, parts: Iterable[tuple[int, int]]) -> Iterator[memoryview]:
        """Parts of a file (first and last byte), one after the other."""
        wanted = list(parts)
        rows = list(itertools.chain.from_iterable(_between(entry, first, last) for first, last in wanted))
        self._chunks.ahead([self._table[c] for c in dict.fromkeys(e.chunk for e in rows)])
        for first, last in wanted:
            at = first
            for e in _between(entry, first, last):
                yield from _zeros(e.offset - at)
                yield memoryview(self._chunks.plain(self._table[e.chunk]))[e.skip : e.skip + e.length]
                at = e.offset + e.length
            yield from _zeros(last - at)


def _between(entry: Entry, first: int, last: int) -> Iterator[Extent]:
    """The extents of a part of a file, cut to it."""
    table = entry.extents.table
    lower = int((table[:, 0] + table[:, 1]).searchsorted(first, side="right")) if len(table) else 0
    for offset, length, chunk, skip in table[lower:].tolist():
        if offset >= last:
            return
        begin, end = max(offset, first), min(offset + length, last)
        yield Extent(begin, end - begin, chunk, skip + begin - offset)


def _zeros(count: int) -> Iterator[memoryview]:
    while count > 0:
        piece = memoryview(ZEROS)[:count]
        yield piece
        count -= len(piece)


def keys_of_plan(plan: PagerPlan) -> Keys:
    """The job's keys."""
    return Keys.of_hex(plan.key, plan.lineage, plan.encrypts)


def store_of_plan(plan: PagerPlan) -> ObjectStore:
    """The store that the plan names."""
    opened = RetryingStore(StoreAccess.carried(plan.way).open())
    return CachedStore(opened, DiskCache(Path(plan.cache))) if plan.cache else opened


def content(plan: PagerPlan, image: Manifest, where: ObjectStore, limits: Limits) -> Content:
    """The image's files, from the job's chunks in the store."""
    return Content(image, Reader(where, plan.job, keys_of_plan(plan), limits))


def blame(e: BaseException) -> str:
    """The blame for memory that can't be brought, as in `Loss`."""
    if isinstance(e, BadChunk):
        return BLAME_IMAGE
    return BLAME_STORE if isinstance(e, StoreError) else BLAME_MACHINE


# ---- Bytes into a pipe without a copy: the pipe refers to our memory, which must be held until it was read
#
# A pipe has one slot for each page of its size, and every page of ours takes one. So once as many later pages as there are
# slots were lent, the earlier ones have been read and need not be held.

COPIED_BELOW_BYTES = 64 << 10  # less than this is copied: a page of ours for a few bytes would fill the pipe
LOOK_SECONDS = 0.001


class Lender:
    """The writing end of one pipe, of a size in bytes. Only one thread may use it, and nobody may change what was written."""

    def __init__(self, pipe: int, size: int) -> None:
        self._pipe, self._slots = pipe, size // PAGE
        self._lent: deque[tuple[memoryview, int]] = deque()  # with the slots that it took
        self._taken = 0

    def write(self, view: memoryview) -> None:
        """Write all of it; waits for the reader. Raises OSError, and BrokenPipeError if the reader is gone."""
        if len(view) < COPIED_BELOW_BYTES:
            while view:
                view = view[os.write(self._pipe, view) :]
            return
        start = address(view)
        slots = (start + len(view) + PAGE - 1) // PAGE - start // PAGE
        self._lent.append((view, slots))
        self._taken += slots
        at = 0
        while at < len(view):
            at += syscalls.vmsplice(self._pipe, start + at, len(view) - at)
        while self._taken - self._lent[0][1] >= self._slots:
            self._taken -= self._lent.popleft()[1]

    def settle(self) -> None:
        """Wait until all was read, or the reader is gone: from then on the memory may change."""
        look = select.poll()
        look.register(self._pipe, 0)  # errors only
        unread = bytearray(4)
        while self._lent and not look.poll(0):
            fcntl.ioctl(self._pipe, termios.FIONREAD, unread)
            if not any(unread):
                break
            time.sleep(LOOK_SECONDS)
        self._lent.clear()


# ---- The image server of `criu restore --stream`: CRIU asks for files by name and gets each through its own pipe

SOCKET = "streamer-serve.sock"
_YES, _NO = b"\x08\x01", b"\x08\x00"


class Streamer:
    """Serves one restore. `content` gives the bytes of a file piece by piece, or None for a file that is not in the image.

    `ended` is called when CRIU has everything, with the failure, if any.
    """

    def __init__(
        self,
        folder: Path,
        content: Callable[[str], Iterator[memoryview] | None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        path = images.socket_address(folder, SOCKET)
        self._content, self._ended = content, ended
        self._failure: Exception | None = None
        self._listener = shim_protocol.listen(path)
        self._listener.setblocking(True)
        self._senders: list[threading.Thread] = []

    def start(self) -> None:
        """Wait for CRIU in a thread."""
        self._thread = threading.Thread(target=self._run, name="image server", daemon=True)
        self._thread.start()

    def failure(self, seconds: float) -> Exception | None:
        """The failure, if any, once CRIU is gone; waits so long for the rest of its files."""
        self._thread.join(seconds)
        return self._failure

    def _run(self) -> None:
        try:
            with self._listener:
                control, _ = self._listener.accept()
            with control:
                while (name := images.file_name(control)) is not None and self._serve(control, name):
                    pass
            for sender in self._senders:
                sender.join()
        except Exception as e:
            self._failure = self._failure or e
        self._ended(self._failure)

    def _serve(self, control: socket.socket, name: str) -> bool:
        """One file; False when CRIU is gone."""
        pieces = self._content(name)
        reply = _NO if pieces is None else _YES
        try:
            control.sendall(struct.pack("=I", len(reply)) + reply)
        except (BrokenPipeError, ConnectionResetError):
            return False
        if pieces is None:
            return True
        pipe = images.receive_descriptor(control, name)
        if pipe is None:
            return False
        sender = threading.Thread(target=self._send, args=(name, pipe, pieces), name=f"image {name}", daemon=True)
        sender.start()
        self._senders.append(sender)
        return True

    def _send(self, name: str, fd: int, pieces: Iterator[memoryview]) -> None:
        try:
            lender = Lender(fd, images.widen_pipe(fd))
            for view in pieces:
                lender.write(view)
            lender.settle()
        except BrokenPipeError:
            log.info("CRIU does not want the rest of %s", name)
        except Exception as e:
            log.warning("image file %s: %s", name, e)
            self._failure = self._failure or e
            self._ended(self._failure)  # before CRIU hangs up because of it: this is the cause, not the hang-up
        finally:
            os.close(fd)
