"""The agent's side of a pager: starts it, waits for it, and reads its files about a job with memory still arriving."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire import manifest
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.host import shim_protocol, tools
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.restore.pager import protocol as pager
from spotsurfer_agent.restore.pager.protocol import BLAME_STORE, Loss, PagerPlan, PagerState, Phase
from spotsurfer_agent.store.credentials import StoreAccess

READY_SECONDS = 600.0  # a slow store may have to send small files first
PRINTS_SECONDS = 2.0  # with them the next save sends so much less that the wait is worth it
LOOK_SECONDS = 0.005
HANGS = "CRIU waited for something that does not answer and was ended; a network file system in use may be the reason"
# Until the holders exist there must be only one thread: numpy would start some of its own.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class CantBring(Exception):
    """The pager gave up before the job ran; its sentence."""


@dataclass(frozen=True, slots=True)
class Origin:
    """How a separate process reaches the store, and how it may restore."""

    way: StoreAccess
    key: str = ""  # the lineage's secret, in hexadecimal digits
    lazy: bool = True
    memory_bytes: int = 256 << 20
    cache: str = ""  # folder of objects that were fetched ahead; "" = there is none
    hands: int | None = None  # see `PagerPlan`


@dataclass(frozen=True, slots=True)
class RestorePlace:
    """Where a restore happens."""

    folder: Path  # the job's
    images: Path  # CRIU looks for the image server there
    work: Path  # and for the server of faults there
    job: str
    python: tuple[str, ...]
    prints: Path  # destination of the fingerprints of the image's pages


def standing(folder: Path, python: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """A pager that loads its modules and waits for its plan; it ends with the process that started it. Raises OSError."""
    with (folder / "pager.log").open("ab") as log:
        return subprocess.Popen(
            [*python, "-m", "spotsurfer_agent.restore.pager"],
            stdin=subprocess.PIPE, stdout=log, stderr=log, cwd="/", start_new_session=True,
            env={**os.environ, **_ENVIRONMENT},
        )  # fmt: skip


class Bringing:
    """A pager for one restore. It outlives the agent while memory arrives."""

    def __init__(self, place: RestorePlace, process: subprocess.Popen[bytes] | None = None) -> None:
        """`process`: a standby pager; without one this starts one, which loads its modules while files are put in place.

        Raises OSError.
        """
        self._place = place
        pager.forget(place.folder)
        alive = process is not None and process.poll() is None
        self._process = process if process is not None and alive else standing(place.folder, place.python)

    def begin(self, image: Manifest, keys: Keys, origin: Origin, group: JobCgroup, joins: JobCgroup) -> None:
        """Send the plan; `group` is the job's control group, `joins` the one that the pager joins. Raises OSError."""
        p = self._place
        path = p.work / "manifest"
        path.write_bytes(manifest.encode(image, keys))
        told = PagerPlan(
            way=origin.way.carry(),
            cache=origin.cache,
            job=p.job,
            checkpoint=image.id,
            key=origin.key,
            lineage=keys.lineage,
            encrypts=keys.encrypts,
            manifest=str(path),
            folder=str(p.folder),
            images=str(p.images),
            work=str(p.work),
            lazy=origin.lazy,
            cgroup=group.folders,
            enter=joins.entries(),
            prints=str(p.prints),
            memory_bytes=origin.memory_bytes,
            hands=origin.hands,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(told.to_json().encode())
            self._process.stdin.close()

    def ready(self) -> bool:
        """Wait until CRIU may connect; True for a lazy restore. Raises CantBring, or StoreError if the store is the cause."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            state = PagerState.read(self._place.folder)
            if state is not None and state.phase is not Phase.STARTING and state.phase is not Phase.FAILED:
                return state.lazy
            if self._process.poll() is not None:
                break
            time.sleep(LOOK_SECONDS)
        raise self.trouble() or CantBring(f"its memory can't be brought: see {self._place.folder}/pager.log")

    def trouble(self) -> CantBring | StoreError | None:
        """The pager's error."""
        state, loss = PagerState.read(self._place.folder), Loss.read(self._place.folder)
        why, blame = (loss.sentence, loss.blame) if loss is not None else ("", "")
        if state is not None and state.phase is Phase.FAILED and state.error:  # else it is what the pager waits for
            why, blame = state.error, state.blame
        return (StoreError if blame == BLAME_STORE else CantBring)(why) if why else None

    def stop(self) -> None:
        """End the pager after a failed restore: it may not be in the job's group yet, which ends with the job. Idempotent."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)


@contextlib.contextmanager
def getting_on(folder: Path, work: Path, group: JobCgroup) -> Iterator[None]:
    """Context of a shim's restore: ends CRIU if it makes no progress. Raises ShimRefused."""
    give_up = tools.ending_criu(folder, "end_restore")
    with tools.watched(lambda: _signs(folder, work / "restore.log", group), give_up, tools.STALL_SECONDS) as hung:
        try:
            yield
        except shim_protocol.ShimRefused as e:
            raise (shim_protocol.ShimRefused(HANGS) if hung() else e) from None


def _signs(folder: Path, log: Path, group: JobCgroup) -> object:
    """Values that change while CRIU works, or waits for arriving memory or for an unreachable store."""
    state = PagerState.read(folder)
    if state is not None and (state.phase is Phase.ARRIVING or state.error):
        return time.monotonic()
    return log.stat().st_size if log.exists() else 0, group.cpu_seconds(), state


@dataclass(frozen=True, slots=True)
class Arrival:
    """The state of memory on its way."""

    arriving_bytes: int | None = None  # None: all is there
    loss: Loss | None = None


def arrival(folder: Path, group: JobCgroup) -> Arrival:
    """The arrival's state. If no holder is left to kill a job without its memory, this kills it."""
    loss, state = Loss.read(folder), PagerState.read(folder)
    if loss is not None or state is None or not state.lazy or state.phase not in (Phase.READY, Phase.ARRIVING):
        return Arrival(None, loss)
    if pager.alive(state.pid):
        return Arrival(state.arriving_bytes)
    state = PagerState.read(folder)
    if state is not None and state.phase is Phase.DONE:
        return Arrival()
    loss = Loss.read(folder) or Loss(pager.DEAD)
    with contextlib.suppress(OSError):  # a full disk: a later check still finds it incomplete
        loss.write(folder)
    group.kill()
    return Arrival(None, loss)


def await_prints(folder: Path, prints: Path) -> None:
    """Wait a moment for the pager, which has brought all memory, to write the fingerprints for the next save."""
    end = time.monotonic() + PRINTS_SECONDS
    while not prints.exists() and time.monotonic() < end:
        state = PagerState.read(folder)
        if state is None or not pager.alive(state.pid):
            return
        time.sleep(LOOK_SECONDS)
