"""CRIU's image files: the little of their format that we must know, and the sockets that they are streamed by."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from spotsurfer_wire.linux.buffers import PAGE

# ---- Streaming: how CRIU names image files to the process that takes or serves them
#
# On a socket CRIU names a file (a length, then a message whose only field is the name), and the bytes go through a pipe that
# is passed along. Source: criu/img-streamer.c and images/img-streamer.proto.

ADDRESS_BYTES_MAX = 107  # of a Unix socket; CRIU uses the whole path
NAME_BYTES_MAX = 4096
PIPE_BYTES = 16 << 20
UNKNOWN = "CRIU speaks of an image file in a way that this version does not know"
_TEXT = 0x0A  # the only field of CRIU's message: the file's name


class StreamError(OSError):
    """The image can't be taken or served; a sentence."""


def socket_address(folder: Path, name: str) -> Path:
    """The address of a socket of this name. Raises StreamError if the path is too long."""
    path = folder / name
    if len(os.fsencode(path)) > ADDRESS_BYTES_MAX:
        raise StreamError(0, f"the path {path} is too long for a socket: choose a shorter base folder")
    return path


def file_name(control: socket.socket) -> str | None:
    """The name of the next file from CRIU, or None at the end. Raises StreamError."""
    head = receive_exactly(control, 4)
    if head is None:
        return None
    (length,) = struct.unpack("=I", head)
    if not 2 <= length <= NAME_BYTES_MAX:
        raise StreamError(0, UNKNOWN)
    body = receive_exactly(control, length)
    if body is None:
        return None
    if body[0] != _TEXT or body[1] != length - 2 or body[1] > 127:
        raise StreamError(0, UNKNOWN)
    return body[2:].decode()


def receive_descriptor(control: socket.socket, what: str) -> int | None:
    """The descriptor that CRIU passes along with one byte; None when CRIU is gone. Raises StreamError for a byte alone."""
    with contextlib.suppress(ConnectionResetError):
        data, fds, _, _ = socket.recv_fds(control, 1, 1)
        if fds:
            return fds[0]
        if data:
            raise StreamError(0, f"CRIU passed nothing along for {what}")
    return None


def receive_exactly(s: socket.socket, count: int) -> bytes | None:
    """So many bytes, or None when the other side is gone."""
    data = b""
    while len(data) < count:
        try:
            piece = s.recv(count - len(data))
        except ConnectionResetError:  # it is gone and never read the last message
            return None
        if not piece:
            return None
        data += piece
    return data


def widen_pipe(pipe: int) -> int:
    """Make the pipe as large as allowed, because a larger pipe needs fewer switches. Returns its size."""
    for size in (PIPE_BYTES, _largest_pipe()):
        with contextlib.suppress(OSError):
            return fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
    return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)


def _largest_pipe() -> int:
    try:
        return int(Path("/proc/sys/fs/pipe-max-size").read_text())
    except (OSError, ValueError):
        return 1 << 20


# ---- The format, as far as we need it: where the pages of a process belong, terminals, memory areas
#
# An image is a magic number of 8 bytes and then messages: a length of 4 bytes, protobuf. See images/pagemap.proto of CRIU.

_MAGIC = 8
_LAZY, _PRESENT = 2, 4
_ADDRESS, _PAGES, _FLAGS, _PAGES_LONG = 1, 2, 4, 5
_AREAS, _START, _END, _MAPPED_AS, _KIND = 14, 1, 2, 6, 7  # of images/mm.proto and images/vma.proto
_WORDS_START, _WORDS_END = 8, 11  # of images/mm.proto: where its arguments begin, and its environment ends
_PRIVATE, _ANONYMOUS, _LOCKED, _HUGE = 0x02, 0x20, 0x2000, 0x40000  # mmap(2)
_ID, _PACKET, _RDEV, _PTY, _INDEX, _OF, _DATA = 1, 5, 8, 12, 1, 1, 2  # of images/tty.proto
_TTY, _TTY_INFO, _TTY_FLAGS = 19, 2, 3  # of images/fdinfo.proto and images/tty.proto
_PTMX = os.makedev(5, 2)
_VSYSCALL, _VDSO, _VVAR = 1 << 2, 1 << 3, 1 << 12  # criu/include/image.h


# From a message's plain numbers, by field, to the new numbers of these fields; None removes a field.
Change = Callable[[dict[int, int]], Mapping[int, "int | None"]]


class BadImage(Exception):
    """An image file is not what CRIU writes; a sentence."""


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Broken bytes in this block are a BadImage."""
    try:
        yield
    except (ValueError, IndexError, KeyError, struct.error) as e:
        raise BadImage(f"{what} can't be read: {type(e).__name__}") from e


@dataclass(frozen=True, slots=True)
class PageRun:
    """`pages` pages of a process at address `start`; `at` is their place in the file of pages, in pages."""

    start: int
    pages: int
    at: int
    lazy: bool


@dataclass(frozen=True, slots=True)
class Pagemap:
    """All pages of one process, or of one piece of shared memory; `file` is the name of the image that holds them."""

    file: str
    runs: tuple[PageRun, ...]

    @property
    def lazy_pages(self) -> int:
        """Pages that can come when they are needed."""
        return sum(r.pages for r in self.runs if r.lazy)

    @property
    def pages(self) -> int:
        """All pages in the file."""
        return sum(r.pages for r in self.runs)


@dataclass(frozen=True, slots=True)
class Unread:
    """Unread bytes of a terminal: `output` towards its far end, `input` towards its user."""

    number: int  # N of /dev/pts/N
    output: bytes = b""
    input: bytes = b""
    line: bytes = b""  # input of a line that is not ended yet, which CRIU can't read

    def __bool__(self) -> bool:
        return bool(self.output or self.input or self.line)


class End(NamedTuple):
    """One of the two ends of a terminal."""

    number: int
    far: bool  # the one that a program holds, not the one that it sits at


def unread(info: bytes, data: bytes) -> list[Unread]:
    """From a `tty-info.img` and a `tty-data.img`: terminals with both ends in the job, and their unread bytes.

    CRIU leaves other terminals alone. Raises BadImage.
    """
    with _reading("what terminals held"):
        ends = _ends(info)
        there = {end for end, _ in ends.values()}
        found = {end.number: Unread(end.number) for end in there if end.far and End(end.number, far=False) in there}
        for message in _messages(data):
            end, packets = ends[_fields(message)[_OF]]
            whole, before = b"".join(_parts(message, _DATA)), found[end.number]
            said = whole[1:] if packets else whole  # a status byte leads
            found[end.number] = replace(before, output=said) if end.far else replace(before, input=whole)
        return list(found.values())


def waiting(info: bytes, files: bytes) -> set[End]:
    """From a `tty-info.img` and a `files.img`: ends of terminals that nobody holds open with O_NONBLOCK. Raises BadImage."""
    with _reading("how terminals are held"):
        flags: dict[int, int] = {}
        for f in (_fields(tty) for message in _messages(files) for tty in _parts(message, _TTY)):
            flags[f[_TTY_INFO]] = flags.get(f[_TTY_INFO], 0) | f[_TTY_FLAGS]
        return {end for number, (end, _) in _ends(info).items() if not flags.get(number, os.O_NONBLOCK) & os.O_NONBLOCK}


def _ends(info: bytes) -> dict[int, tuple[End, bool]]:
    """By its number in the image, an end of a terminal, and whether what is read there comes in packets."""
    found = {}
    for message in _messages(info):
        fields = _fields(message)
        for terminal in _parts(message, _PTY):
            end = End(_fields(terminal)[_INDEX], fields[_RDEV] == _PTMX)
            found[fields[_ID]] = end, bool(fields.get(_PACKET))
    return found


def without_messages(data: bytes) -> bytes:
    """An image of the same kind with nothing in it."""
    return data[:_MAGIC]


def pagemap(data: bytes) -> Pagemap:
    """Read a `pagemap-*.img`. Raises BadImage."""
    with _reading("a map of pages"):
        messages = [_fields(m) for m in _messages(data)]
        head, runs, at = messages[0], [], 0
        for fields in messages[1:]:
            flags, pages = fields.get(_FLAGS, _PRESENT), fields.get(_PAGES_LONG, fields.get(_PAGES, 0))
            if flags & _PRESENT:
                runs.append(PageRun(fields[_ADDRESS], pages, at, bool(flags & _LAZY)))
                at += pages
        if any(r.start % PAGE or not 0 < r.pages < 1 << 40 for r in runs):
            raise BadImage("a map of pages names addresses that can't be")
        return Pagemap(f"pages-{head[_ADDRESS]}.img", tuple(runs))


def areas(data: bytes) -> list[tuple[int, int]]:
    """From an `mm-*.img`: start and end of memory that may come later, by CRIU's own rule. Raises BadImage.

    The rule is `vma_entry_can_be_lazy` of criu/include/vma.h.
    """
    with _reading("a list of mappings"):
        (message,) = _messages(data)
        found = [_fields(m) for m in _parts(message, _AREAS)]
        return [(f[_START], f[_END]) for f in found if _may_come_later(f[_MAPPED_AS], f[_KIND])]


def words(data: bytes) -> tuple[int, int]:
    """From an `mm-*.img`: where a process's arguments and environment lie. Raises BadImage.

    Reading them in /proc does not wait for missing pages: they read as empty.
    """
    with _reading("a list of mappings"):
        (message,) = _messages(data)
        fields = _fields(message)
        return fields[_WORDS_START], fields[_WORDS_END]


def first(found: Pagemap, where: tuple[int, int]) -> Pagemap:
    """The same pages, but those that touch this area come before the process runs."""
    start, end = where[0] // PAGE * PAGE, -(-where[1] // PAGE) * PAGE
    return _marked(found, [(start, end)] if start < end else [], lazy=False)


def _may_come_later(mapped_as: int, kind: int) -> bool:
    private = mapped_as & (_PRIVATE | _ANONYMOUS | _LOCKED | _HUGE) == _PRIVATE | _ANONYMOUS
    return private and not kind & (_VSYSCALL | _VDSO | _VVAR)


def later(found: Pagemap, where: Iterable[tuple[int, int]]) -> Pagemap:
    """The same pages, but those in these areas may come later.

    CRIU 4.2 marks them itself, unless a thread's stack pointer is a multiple of the page size: its check for pages of
    stacks (`is_stack` in criu/mem.c) compares the wrong bits and then takes every page for one. This hits one thread in 256.
    """
    return _marked(found, sorted(where), lazy=True)


def _marked(found: Pagemap, areas: list[tuple[int, int]], *, lazy: bool) -> Pagemap:
    """The same pages; runs are cut so that those within one of these areas, which are in order, are `lazy` or not."""
    starts, ends = [start for start, _ in areas], [end for _, end in areas]

    def parts(run: PageRun) -> Iterator[PageRun]:
        at, end = run.start, run.start + run.pages * PAGE
        for start, last in areas[bisect_right(ends, at) : bisect_left(starts, end)]:
            if start > at:
                yield _piece(run, at, start, lazy=not lazy)
            at, until = max(at, start), min(last, end)
            yield _piece(run, at, until, lazy=lazy)
            at = until
        if at < end:
            yield _piece(run, at, end, lazy=not lazy)

    return Pagemap(found.file, tuple(part for run in found.runs for part in ([run] if run.lazy is lazy else parts(run))))


def _piece(run: PageRun, first: int, last: int, *, lazy: bool) -> PageRun:
    return PageRun(first, (last - first) // PAGE, run.at + (first - run.start) // PAGE, lazy)


def encoded(data: bytes, pages: Pagemap) -> bytes:
    """A `pagemap-*.img` like `data`, with these runs."""
    (length,) = struct.unpack_from("=I", data, _MAGIC)
    out = [data[: _MAGIC + 4 + length]]
    for r in pages.runs:
        flags = _PRESENT | (_LAZY if r.lazy else 0)
        values = ((_ADDRESS, r.start), (_PAGES, r.pages & 0xFFFFFFFF), (_FLAGS, flags), (_PAGES_LONG, r.pages))
        body = b"".join(_number(number << 3) + _number(value) for number, value in values)
        out.append(struct.pack("=I", len(body)) + body)
    return b"".join(out)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def places(data: bytes, path: Sequence[int]) -> Iterator[dict[int, tuple[int, int]]]:
    """Plain numbers of each message at this path of fields: by field, the number, and where its bytes begin in `data`.

    Raises BadImage, and what broken bytes raise: IndexError, struct.error.
    """
    for first, last in _bounds(data):
        yield from _at(data, first, last, path)


def _at(data: bytes, first: int, last: int, path: Sequence[int]) -> Iterator[dict[int, tuple[int, int]]]:
    found = list(_walk(data, first, last))
    if not path:
        yield {number: (value, at) for number, at, value in found if isinstance(value, int)}
        return
    for number, at, value in found:
        if number == path[0] and isinstance(value, bytes):
            yield from _at(data, at, at + len(value), path[1:])


def _messages(data: bytes) -> Iterator[bytes]:
    for first, last in _bounds(data):
        yield data[first:last]


def _bounds(data: bytes) -> Iterator[tuple[int, int]]:
    at = _MAGIC
    while at < len(data):
        (length,) = struct.unpack_from("=I", data, at)
        at += 4
        if at + length > len(data):  # one may be large: a mapping takes thirty bytes, and a process may have a million
            raise BadImage("an image file is cut off")
        yield at, at + length
        at += length


def _parts(message: bytes, wanted: int) -> Iterator[bytes]:
    """The messages within a message that have this number."""
    for number, _, value in _walk(message, 0, len(message)):
        if number == wanted and isinstance(value, bytes):
            yield value


def _fields(message: bytes) -> dict[int, int]:
    """Fields of a message that are plain numbers."""
    return {number: value for number, _, value in _walk(message, 0, len(message)) if isinstance(value, int)}


def _walk(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int | bytes]]:
    """Fields with the positions of their values and the values: plain numbers and those with a length; others are skipped."""
    for number, _, begin, value, _ in _spans(data, at, end):
        if value is not None:
            yield number, begin, value


def _spans(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int | bytes | None, int]]:
    """Each field: number, start, start of its value, that value (None = of another kind), end."""
    while at < end:
        key, begin = _varint(data, at)
        wire = key & 7
        value: int | bytes | None = None
        if wire == 0:
            value, after = _varint(data, begin)
        elif wire == 2:
            length, begin = _varint(data, begin)
            after = begin + length
            value = data[begin:after]
        else:
            after = begin + (8 if wire == 1 else 4)
        yield key >> 3, at, begin, value, after
        at = after


def changed(data: bytes, path: Sequence[int], change: Change) -> bytes:
    """The same image with other plain numbers in the messages at this path of fields.

    Raises BadImage, and what broken bytes raise: IndexError, struct.error.
    """
    out = [data[:_MAGIC]]
    for message in _messages(data):
        body = _changed(message, path, change)
        out += [struct.pack("=I", len(body)), body]
    return b"".join(out)


def _changed(message: bytes, path: Sequence[int], change: Change) -> bytes:
    spans = list(_spans(message, 0, len(message)))
    instead = {} if path else change({number: value for number, _, _, value, _ in spans if isinstance(value, int)})
    out = []
    for number, begin, at, value, after in spans:
        whole = message[begin:after]
        if path and number == path[0] and isinstance(value, bytes):
            body = _changed(value, path[1:], change)
            whole = whole if body == value else _number(number << 3 | 2) + _number(len(body)) + body
        elif number in instead and isinstance(value, int):
            other = instead[number]
            whole = b"" if other is None else message[begin:at] + _number(other)
        out.append(whole)
    return b"".join(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
