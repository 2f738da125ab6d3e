"""`python -m spotsurfer_agent.restore.pager`: one restore from the plan on standard input. Ends when all memory is there."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.chunks.budget import PAGER
from spotsurfer_wire.linux import memory, procfs, syscalls
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Extents
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.chunks.fingerprints import Index, is_pages_name, kept_as
from spotsurfer_agent.criu import datagrams, process_numbers, terminals, thread_attributes
from spotsurfer_agent.criu.images import Pagemap
from spotsurfer_agent.host import launch
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.linux import userfaultfd
from spotsurfer_agent.linux.processors import worker_count
from spotsurfer_agent.restore.pager import image_files, page_fault_server
from spotsurfer_agent.restore.pager.feeder import Feeder, Order, is_aligned
from spotsurfer_agent.restore.pager.image_files import Streamer
from spotsurfer_agent.restore.pager.process_memory import Workers, leave, serve
from spotsurfer_agent.restore.pager_process import BLAME_IMAGE, ORDER, STATE, Loss, PagerPlan, PagerState, Phase

log = logging.getLogger("pager")

# ---- The choice: does it help if the pager brings memory itself, behind the running job or before it runs?

SMALL_BYTES = 16 << 20  # a smaller memory is there before anybody notices
SHARE = 0.5  # of the pages must be able to come later
MEMORY_SHARE = 0.9  # of the free memory may be taken by processes that lost their sharing
CHUNK_BITS = 32  # every chunk is shorter than 2**32 bytes
WORKERS_MAX = 8  # they write memory into a job that stands still (`bench.gpu.bring` measures their benefit)
WORKERS_BYTES_MIN = 4 << 30  # a smaller memory arrives soon enough
COPIES_SHARE = 1 / 16  # of a job's memory may be duplicated if the only gain is time


def plain_because(
    maps: Mapping[int, Pagemap], files: Mapping[str, Extents], free_bytes: int, *, faults: bool = True, at_once: bool = True
) -> str:
    """Why CRIU should bring all memory; empty if the pager does it, with all processors.

    `maps`: the pages of each process; `files`: the content of the files of pages; `free_bytes`: memory of this machine;
    `faults`: this machine can serve page faults; `at_once`: the job runs meanwhile, which is worth a copy of all shared memory.

    If the job waits, only a little may be copied, but some: programs that were started alike hold equal pages without sharing
    them, and CRIU brings all memory with one processor.
    """
    lazy = sum(m.lazy_pages for m in maps.values()) * PAGE
    everything = sum(e.bytes for e in files.values())
    if not faults:
        return "this kernel does not let us serve page faults"
    if lazy < SMALL_BYTES:
        return "there is little memory"
    if lazy < SHARE * everything:
        return "most memory is shared or belongs to files"
    if not all(is_aligned(files[m.file]) for m in maps.values() if m.file in files):
        return "pages of the image are cut in pieces"
    copies = _copied_bytes([files[m.file] for m in maps.values() if m.file in files])
    if copies and lazy > MEMORY_SHARE * free_bytes:
        return "its processes share memory, and there is too little for a copy each"
    if copies > COPIES_SHARE * lazy and not at_once:
        return "its processes share memory, and go on to do so"
    return ""


def _copied_bytes(held: Sequence[Extents]) -> int:
    """Bytes that exist more than once without sharing: equal pages of processes after a fork."""
    return sum(_distinct(e) for e in held) - _distinct(*held) if len(held) > 1 else 0


def _distinct(*held: Extents) -> int:
    """Bytes of the chunks that these refer to; each counts once."""
    rows = np.concatenate([e.table[:, [2, 3, 1]] for e in held]).astype(np.int64)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    begins = (rows[:, 0] << CHUNK_BITS) + rows[:, 1]
    ends = begins + rows[:, 2]
    before = np.concatenate(([0], np.maximum.accumulate(ends)[:-1]))
    return int(np.maximum(ends - np.maximum(begins, before), 0).sum())


# ---- Holders: a dead pager must kill the job, because when the last copy of a userfaultfd closes, missing pages read as zeros
#
# Two holders share the pager's table of descriptors (clone with CLONE_FILES), so they hold every descriptor as soon as the
# pager opens it. If the pager dies before it reported completion, a holder records the loss, kills the job, and only then
# exits. The holders also watch each other: if one dies, the other makes a new twin. Both have a single thread, so that they
# can fork at any time, unlike the pager.

_CLONE_FILES = 0x400
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SENTENCE = "the process that brought the job's memory died: the job was killed before it could see a wrong page"
# PyDLL keeps the interpreter's lock, so that the child's only thread owns it.
_libc = ctypes.PyDLL(None, use_errno=True)


class Holders:
    """What the pager has of them. Made before it has a second thread."""

    def __init__(self, plan: PagerPlan) -> None:
        self._over_read, self._over = os.pipe()  # readable: the pager is done
        me = os.getpid()
        if _clone() == 0:
            leave("holder", lambda: _Holder(plan, me, self._over_read).run())

    def dismiss(self) -> None:
        """All memory is there, or the job never ran: the holders go with the pager."""
        os.write(self._over, b"x")


class _Holder:
    def __init__(self, plan: PagerPlan, pager: int, over: int) -> None:
        self._plan, self._pager, self._over = plan, os.pidfd_open(pager), over
        self._server = pager

    def run(self) -> None:
        """Run until the pager is gone."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        twin = self._twin()
        while True:
            watched = select.poll()
            for fd in (self._pager, twin):
                watched.register(fd, select.POLLIN)
            gone = [fd for fd, _ in watched.poll()]
            if self._pager in gone:
                break
            os.close(twin)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            twin = self._twin()
        if not select.select([self._over], [], [], 0)[0]:
            lose(self._plan, Loss(_SENTENCE))

    def _twin(self) -> int:
        """Make a second holder and return a descriptor of it. In the second one this is a descriptor of the first."""
        me = os.getpid()
        child = _clone()
        return os.pidfd_open(me if child == 0 else child)


def lose(plan: PagerPlan, loss: Loss) -> None:
    """Record the loss and kill the job; returns when no process of it runs."""
    while True:
        with contextlib.suppress(OSError):
            loss.write(Path(plan.folder))
            break
        time.sleep(0.1)  # a full disk: meanwhile the job waits at its missing pages
    group = JobCgroup(plan.cgroup)
    while not group.kill():
        time.sleep(0.1)


def _clone() -> int:
    """Like fork, but with one table of descriptors for both. 0 in the child."""
    number = _SYS_CLONE[os.uname().machine]
    zero = ctypes.c_ulong(0)
    pid = int(_libc.syscall(ctypes.c_long(number), ctypes.c_ulong(_CLONE_FILES | signal.SIGCHLD), zero, zero, zero, zero))
    if pid < 0:
        raise OSError(ctypes.get_errno(), f"clone: {os.strerror(ctypes.get_errno())}")
    return pid


# ---- The pager

CRIU_ENDS_SECONDS = 5.0
AHEAD_PART = 4  # of the memory, for chunks that are fetched before a task can take them
_saying = threading.Lock()  # held while the state is written; the final state's writer keeps it, so that no other state follows


def _state(phase: Phase, **more: Any) -> PagerState:
    return PagerState(os.getpid(), phase, **more)


class Pager:
    """One restore."""

    def __init__(self, plan: PagerPlan, holders: Holders) -> None:
        self._plan, self._holders, self._folder = plan, holders, Path(plan.folder)
        self._image = manifest.decode(
            Path(plan.manifest).read_bytes(), image_files.keys_of_plan(plan), plan.job, plan.checkpoint
        )
        # As many workers as planned or useful, before any thread starts; none if the job runs meanwhile.
        useful = worker_count(self._image.image_bytes, WORKERS_BYTES_MIN, WORKERS_MAX)
        count = 0 if plan.lazy else useful if plan.workers is None else plan.workers
        self._workers = Workers(count, lambda number, line: serve(plan, self._image, count, number, line))
        self._store = image_files.store_of_plan(plan)
        self._content = image_files.content(plan, self._image, self._store, PAGER)

    def run(self) -> None:
        """Serve to the end. Raises what makes a restore impossible."""
        maps = self._content.maps()
        terminals.keep(Path(self._plan.work), self._content.terminals())
        for name in (thread_attributes.NAME, datagrams.NAME, process_numbers.NAME):  # for the shim
            Path(self._plan.work, name).write_bytes(self._content.noted(name))
        files = {name: e.extents for name, e in self._content.files.items() if is_pages_name(name)}
        why = plain_because(maps, files, memory.free_bytes(), faults=userfaultfd.available(), at_once=self._plan.lazy)
        later = {pid: f"{m.lazy_pages} of {m.pages} pages" for pid, m in maps.items()}
        how = "by CRIU" if why else ("behind the job" if self._plan.lazy else "before the job runs")
        log.info("memory comes %s, %s; what may come later, by process: %s", how, why or "it helps", later)
        if why:
            self._workers.dismiss()
            self._by_criu()
        else:
            self._by_faults(maps)

    def _by_criu(self) -> None:
        """CRIU brings all memory."""
        read, write = os.pipe()
        failures: list[Exception] = []

        def ended(failure: Exception | None) -> None:
            failures.extend([failure] if failure else [])
            os.write(write, b"x")

        Streamer(Path(self._plan.images), self._content.whole, ended).start()
        _state(Phase.READY).write(self._folder)
        os.read(read, 1)
        if failures:
            raise failures[0]
        self._done()

    def _by_faults(self, maps: dict[int, Pagemap]) -> None:
        """The pager brings most memory, behind the running job or while the shim holds it; CRIU brings the rest."""
        maps, layout = self._content.bringable(maps)
        order = Order(maps, layout, self._learned())
        feeder = Feeder(layout, self._content.once, self._failed, patient=self._plan.lazy)
        eager = {m.file: m for m in maps.values()}

        def tell(told: page_fault_server.Told) -> None:
            state = _state(
                Phase.ARRIVING if told.running else Phase.READY,
                lazy=True,
                arriving_bytes=told.missing_pages * PAGE,
                faults=told.faults,
                error=feeder.trouble,
            )
            with _saying, contextlib.suppress(OSError):  # a full disk: the old state stays, and the job must not suffer
                state.write(self._folder)

        def content(name: str) -> Iterator[memoryview] | None:
            if name not in eager:
                return self._content.whole(name)
            parts = [(r.at * PAGE, (r.at + r.pages) * PAGE) for r in eager[name].runs if not r.lazy]
            return self._content.pieces(self._content.files[name], parts)

        server = page_fault_server.Server(
            Path(self._plan.work),
            page_fault_server.Image(maps, layout, order),
            feeder,
            tell,
            dict if self._plan.lazy else self._numbers,
            self._workers,
        )
        streamer = Streamer(Path(self._plan.images), content, lambda e: self._failed(e) if e is not None else None)
        streamer.start()
        feeder.start(PAGER.puts)
        # Fetched before CRIU is ready. Afterwards the thread that puts a chunk fetches it: so it is in that processor's cache.
        soon = order.first_chunks() if self._plan.lazy else order.all_chunks()
        self._content.ahead(soon, PAGER.memory_bytes // AHEAD_PART)
        total = sum(m.lazy_pages for m in maps.values())
        _state(Phase.READY, lazy=True, arriving_bytes=total * PAGE).write(self._folder)
        try:
            server.run()
        except page_fault_server.CriuGone as e:
            raise (streamer.failure(CRIU_ENDS_SECONDS) or e) from None
        log.info("all memory is there: %d MB by %d threads, %d faults", total * PAGE >> 20, feeder.threads, server.told.faults)
        fresh = self._folder / f"{ORDER}.new"
        with contextlib.suppress(OSError):  # a full disk: it is a hint for the next restore
            fresh.write_bytes(order.learned())
            fresh.replace(self._folder / ORDER)
        self._done(lazy=True, faults=server.told.faults)

    def _numbers(self) -> dict[int, int]:
        """Numbers of the job's processes, in the image and here."""
        found = {}
        for pid in JobCgroup(self._plan.cgroup).pids():
            with contextlib.suppress(OSError):
                found[procfs.number_inside(pid)] = pid
        return found

    def _learned(self) -> bytes | None:
        try:
            return self._store.get(object_keys.order_key(self._plan.job))
        except StoreError as e:
            log.warning("the order of pages is not known: %s", e)
            return None

    def _done(self, *, lazy: bool = False, faults: int = 0) -> None:
        with _saying:
            try:
                _state(Phase.DONE, lazy=lazy, faults=faults).write(self._folder)
            except OSError:  # a full disk: without a pager's state, nothing counts as missing
                (self._folder / STATE).unlink(missing_ok=True)
        self._holders.dismiss()

    def keep_prints(self) -> None:
        """Put the fingerprints of the image where the next save looks for them; without them it only sends more.

        An image up to 0.2.0 has no usable ones: the next save sends everything and writes new ones.

        The job has all its memory and does not wait for this. A failure here must not harm it.
        """
        try:
            index, path = Index(self._image), Path(self._plan.prints)
            for name in index.begins:
                if (found := self._content.whole(kept_as(name))) is None:
                    raise LookupError(f"it has no {kept_as(name)}")
                index.fill(name, b"".join(found))
            path.parent.mkdir(exist_ok=True)
            index.save(path)
        except Exception as e:
            log.warning("the next save can't build on this checkpoint: %s", str(e) or type(e).__name__)

    def _failed(self, e: Exception) -> None:
        """Handle, in any thread, that the job can't get its memory."""
        give_up(self._plan, self._holders, e)


def give_up(plan: PagerPlan, holders: Holders, e: BaseException) -> NoReturn:
    """Kill the job's processes, record the cause, and end this process."""
    _saying.acquire()
    blame = image_files.blame(e)
    sentence = "" if isinstance(e, page_fault_server.CriuGone) else str(e) or type(e).__name__
    loss = sentence
    if blame == BLAME_IMAGE:
        loss = f"the memory of checkpoint {plan.checkpoint} can't be brought: {sentence}"
    with contextlib.suppress(OSError):  # a full disk: the loss is recorded, which waits for space
        _state(Phase.FAILED, error=sentence, blame=blame).write(Path(plan.folder))
    lose(plan, Loss(loss, blame))
    holders.dismiss()
    os._exit(1)


def main() -> None:
    """Serve the plan on standard input."""
    syscalls.leave_no_core()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the memory or with the job
    os.umask(0o077)
    if not (told := sys.stdin.read()):
        return  # the agent is gone, or needs no restore
    plan = PagerPlan.from_json(told)
    launch.enter_cgroups(plan.enter)
    memory.reuse_memory()
    holders = Holders(plan)
    try:
        pager = Pager(plan, holders)
        pager.run()
    except BaseException as e:
        log.exception("the memory can't be brought")
        give_up(plan, holders, e)
    pager.keep_prints()
    os._exit(0)  # threads may still wait for a store


if __name__ == "__main__":
    main()
