"""An engine on a minibox, a job for it, and what to watch while they work."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, WorkloadState
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Manifest, Stored
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import ObjectStore
from support.patience import FACTOR

STORE = "file:///run/store"
BASE, JOB = Path("/var/lib/spotsurfer"), "j1"
SHARE = Path("/run/share")
PROGRAM = Path(__file__).with_name("engine_job.py")
SMALL = 32 << 20
W = WorkloadState


class CriuEngine(JobEngine):
    """Saves by CRIU, whatever stands against it."""

    def save(self, request: SaveRequest) -> SaveFacts:
        return self.methods["criu"].save(Spec(JOB, []), request)


def engine(store: ObjectStore | None = None) -> CriuEngine:
    prefix = Path(os.environ["SPOTSURFER_PREFIX"])
    return CriuEngine(BASE, JOB, store or open_store(STORE), Tools.find(prefix), Origin(StoreAccess(STORE)))


def job(memory: int = SMALL, turns: int = 10**6, user: str | None = None) -> Spec:
    return Spec(JOB, ["/usr/bin/python3", "engine_job.py", str(memory), str(turns)], user=user)


def begin(e: JobEngine, spec: Spec) -> None:
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))
    e.start(spec)
    turns_pass(e, 5)


def request(
    number: int,
    *,
    final: bool,
    commit: Callable[[Manifest], bool] = lambda _: True,
    base: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> SaveRequest:
    return SaveRequest(object_keys.checkpoint_id(1, number), 1, number, final, 10.0, base, commit, progress)


def file_of(chunk: Stored) -> Path:
    """The object of a chunk, in its pack where it is packed."""
    return Path("/run/store", object_keys.pack_key(JOB, chunk.pack) if chunk.pack else object_keys.chunk_key(JOB, chunk.digest))


def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds * FACTOR
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def output(e: JobEngine, stream: str = "out") -> bytes:
    kept = [int(p.name.rpartition("-")[2]) for p in (BASE / "job/log").glob(f"{stream}-*")]
    out, at = b"", min(kept, default=0)  # none before the job's first byte
    while piece := e.read_log(stream, at, 1 << 20):
        out, at = out + piece, at + len(piece)
    return out


def turns_pass(e: JobEngine, count: int) -> None:
    enough = (e.status().log or {}).get("out", 0) + 7 * count
    until(lambda: (e.status().log or {}).get("out", 0) > enough)
    until(lambda: e.read_log("out", enough, 1))  # output is kept a moment after it was counted


def runs(e: JobEngine) -> None:
    status = e.status()
    assert (status.state, status.pending_final) == (W.RUNNING, None), status
    turns_pass(e, 3)


def stands_still(e: JobEngine) -> None:
    before = e.status().log
    time.sleep(0.3)
    assert e.status().log == before


def newest(store: ObjectStore) -> Manifest:
    keys = [x.key for x in store.list(f"jobs/{JOB}/checkpoints/")]
    data = store.get(keys[-1])
    assert data is not None
    return manifest.decode(data, Keys.derive(b"", JOB), JOB)


def keep_output(e: JobEngine, limit: dict[str, int]) -> bool:
    """Put what belongs to the job's history, up to the checkpoint, with what earlier machines kept."""
    for stream in ("out", "err"):
        with (SHARE.parent / "store" / f"log-{stream}").open("ab") as f:
            at = f.tell()
            while at < limit[stream]:  # it is kept a moment after it was counted
                until(lambda s=stream, a=at: e.read_log(s, a, 1))  # type: ignore[misc]
                at += f.write(e.read_log(stream, at, limit[stream] - at))
    return True


class NotRefused(AssertionError):
    """It went well."""


def refused(kind: str, call: Callable[[], object]) -> str:
    try:
        call()
    except EngineError as e:
        assert e.kind == kind, e
        return str(e)
    raise NotRefused(f"no EngineError({kind!r})")


def shim_gone(e: JobEngine) -> None:
    pid = shim_protocol.ask(BASE / "job", "hello")["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert e.status().state is not W.RUNNING
