"""Scenes of `tests/faults`: something fails while a job is saved or restored; the job is unharmed, and nothing is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.save import memory_reserve, precopy
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_agent.store.layers import RetryingStore
from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Entry, Manifest
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError
from support import faults
from support.cut import Cut
from support.engine_kit import BASE, JOB, CriuEngine, W, begin, engine, job, newest, refused, request, runs, turns_pass, until
from support.faults import LIES, Failing, nothing_left, whole
from support.link import link

URL = "file:///run/store"
SMALL_STORE_BYTES = 4 << 20
CUT_LINK_BITS = 100_000_000
# Writes nothing but its output: a program whose own writes fail ends by itself, which proves nothing.
COUNTS = """
import itertools, time
memory = bytearray(range(256)) * (64 << 12)
for i in itertools.count(): print("turn", i, flush=True); time.sleep(0.02)
"""
CARRIES = """
import itertools, os, time
memory = os.urandom(48 << 20)
for i in itertools.count(): print("turn", i, flush=True); time.sleep(0.02)
"""
HELD_BYTES = 256 << 20
HOLDS = f"""  # half of each page can be compressed
import itertools, os, time
memory = b"".join(os.urandom(2048) + bytes([i & 255]) * 2048 for i in range({HELD_BYTES} >> 12))
for i in itertools.count(): print("turn", i, flush=True); time.sleep(0.02)
"""
OUTSIDE = Path("/mnt/outside")


def saves_and_comes_back(e: CriuEngine, number: int) -> None:
    """After a fault everything works: a live save, a final one, and a restore of it."""
    runs(e)
    e.save(request(number, final=False))
    runs(e)
    e.save(request(number + 1, final=True))
    e.kill()
    e.restore(newest(open_store(URL)), job())
    runs(e)
    whole(e)


# ---------------------------------------------------------------- saves


def _bad_write(write: Callable[[str], None]) -> Callable[[CriuEngine, Failing], AbstractContextManager[object]]:
    """The store fails at each write."""

    @contextlib.contextmanager
    def fault(_e: CriuEngine, store: Failing) -> Iterator[None]:
        store.write = write
        yield
        store.write = lambda _: None

    return fault


@contextlib.contextmanager
def _full_store(_e: CriuEngine, store: Failing) -> Iterator[None]:
    inner = store.inner
    with faults.small_store(SMALL_STORE_BYTES) as place:
        store.inner = open_store(place.as_uri())
        yield
        store.inner = inner


SAVE_FAULTS: dict[str, Callable[[CriuEngine, Failing], AbstractContextManager[object]]] = {
    "refuses": _bad_write(faults.refuse),
    "times_out": _bad_write(faults.time_out),
    "read_only": lambda _e, _s: faults.read_only_store(),
    "full": _full_store,
    "disk_full": lambda _e, _s: faults.full_disk(),
}


def save_fails(name: str) -> None:
    """A live and a final save under a fault fail, or work in spite of it; the job runs on, and later all is well."""
    store = Failing(open_store(URL))
    e = engine(store)  # type: ignore[arg-type]
    with nothing_left(e):
        e.start(Spec(JOB, ["/usr/bin/python3", "-c", COUNTS]))
        turns_pass(e, 5)
        failed = 0
        with SAVE_FAULTS[name](e, store):
            for number, final in ((1, False), (2, True)):
                try:
                    e.save(request(number, final=final, commit=lambda _: False))
                except EngineError as refusal:
                    assert refusal.kind == "save"
                    assert len(str(refusal)) > 20
                    assert name != "disk_full" or "disk" in str(refusal), refusal
                    failed += 1
                if name != "disk_full":  # its output has nowhere to go: the job waits at its pipe
                    runs(e)
        assert failed == 2
        whole(e)
        saves_and_comes_back(e, 3)


SHORT_LIMITS = Limits(memory_bytes=64 << 20)
# What the engine may hold by its own limits, and what its estimate and the allocator are off by.
SHORT_PEAK_BYTES = memory_reserve.BLOCKS_MIN * memory_reserve.BLOCK_BYTES + SHORT_LIMITS.memory_bytes + (48 << 20)
SHORT_FREE_BYTES = 224 << 20


def memory_short(what: str) -> None:
    """A save with much less memory than the image is large, to a store that is slow: it takes longer, and that is all."""
    e = engine(Failing(open_store(URL), faults.dawdle))  # type: ignore[arg-type]
    with nothing_left(e):
        e.start(Spec(JOB, ["/usr/bin/python3", "-c", HOLDS]))
        turns_pass(e, 5)
        if what == "setting":
            e.limits, e.memory_bytes = SHORT_LIMITS, 1 << 20
        bound = {"setting": SHORT_PEAK_BYTES, "group": SHORT_FREE_BYTES}[what]
        made = []
        for number, worth in ((1, 1 << 40), (2, precopy.WORTH_BYTES)):  # all of it in the freeze, and most of it before
            precopy.WORTH_BYTES = worth
            with faults.free_memory(SHORT_FREE_BYTES) if what == "group" else contextlib.nullcontext(), faults.Peak() as peak:
                made.append(e.save(request(number, final=False)))
                runs(e)
            assert made[-1].image_bytes > (made[-1].memory_bytes or 0) > HELD_BYTES > bound
            assert peak.bytes < bound, f"{peak.bytes >> 20} MiB were held"
        streamed, before = made
        assert streamed.waited_seconds > 0.1, "it did not run into its limit"
        assert before.ahead_seconds > 0
        assert before.frozen_seconds < streamed.frozen_seconds
        saves_and_comes_back(e, 3)


# ---------------------------------------------------------------- restores


def _two_images(e: CriuEngine) -> tuple[Manifest, Manifest, list[Path]]:
    """A proven image, a newer one, and the objects that only the newer one has."""
    begin(e, job())
    e.save(request(1, final=False))
    old, before = newest(open_store(URL)), set(faults.objects())
    turns_pass(e, 10)
    e.save(request(2, final=True))
    e.kill()
    return old, newest(open_store(URL)), sorted(set(faults.objects()) - before)


def _no_wrong_page(e: CriuEngine, image: Manifest) -> str:
    """What the engine says of an image that lost bytes: before the job runs, or by killing it while its memory arrives."""
    try:
        e.restore(image, job())
    except EngineError as refusal:
        assert refusal.kind == "restore", refusal
        assert e.status().state is W.ABSENT
        return str(refusal)
    until(lambda: e.status().state is not W.RUNNING, 30.0)
    status = e.status()
    assert status.state is W.LOST, status
    assert status.image_is_bad, status
    e.kill()
    return str(status.lost_because)


def store_lies(name: str) -> None:
    """Every object that the newest image added is wrong: it is told, never run, and the image before it works."""
    e = engine()
    with nothing_left(e):
        old, new, added = _two_images(e)
        assert added, "the second image added nothing"
        kept = faults.objects()
        for path in added:
            LIES[name](path, kept[path])
        said = _no_wrong_page(e, new)
        assert "chunk" in said or "pack" in said, said
        e.restore(old, job())
        runs(e)
        e.kill()
        for path in added:
            path.write_bytes(kept[path])
        e.restore(new, job())
        runs(e)


def store_said_yes(_: str = "") -> None:
    """A store that confirms writes and keeps nothing: the image is refused when it is wanted; the one before it works."""

    class Forgetful(Failing):
        forgets = False

        def create(self, key: str, data: bytes) -> bool:
            return self._forgets(key) or super().create(key, data)

        def create_later(self, key: str, data: bytes) -> bool:
            return self._forgets(key) or super().create_later(key, data)

        def _forgets(self, key: str) -> bool:
            return self.forgets and any(part in key for part in faults.DATA)

    store = Forgetful(open_store(URL))
    e = engine(store)  # type: ignore[arg-type]
    with nothing_left(e):
        begin(e, job())
        e.save(request(1, final=False))
        old = newest(open_store(URL))
        turns_pass(e, 5)
        store.forgets = True
        e.save(request(2, final=True))
        e.kill()
        store.forgets = False
        _no_wrong_page(e, newest(open_store(URL)))
        e.restore(old, job())
        runs(e)


def wrong_key() -> None:
    """Another family's key opens nothing: one sentence, before anything is touched."""
    e = engine()
    with nothing_left(e):
        _, new, _ = _two_images(e)
        data = Path("/run/store", object_keys.manifest_key(JOB, new.id)).read_bytes()
        other = Keys.derive(b"another secret", JOB)
        _told(lambda: manifest.decode(data, other, JOB), "not written with this job's key")
        e.restore(new, job())
        runs(e)


def forged_manifest() -> None:
    """Whoever can write to the store, but has no key, can't make a job run what he likes."""
    e = engine()
    keys = Keys.derive(b"", JOB)
    with nothing_left(e):
        old, new, _ = _two_images(e)
        data = manifest.encode(new, keys)
        forged = [
            data[:-1] + bytes([data[-1] ^ 1]),
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
            data[:-32],
            data[:-32] + bytes(32),
            manifest.encode(new, Keys.derive(b"mine", JOB)),
            b"",
        ]
        for wrong in forged:
            _told(lambda wrong=wrong: manifest.decode(wrong, keys, JOB), "")  # type: ignore[misc]
        assert manifest.decode(manifest.encode(old, keys), keys, JOB).id == old.id
        e.restore(new, job())
        runs(e)


def _told(call: Callable[[], object], sentence: str) -> None:
    try:
        call()
    except (ProtocolError, ValueError) as refusal:
        assert sentence in str(refusal), refusal
        assert str(refusal)
        return
    raise AssertionError("it was taken for good")


HOSTILE: dict[str, list[Entry]] = {
    "up": [Entry("../../outside", "file")],
    "absolute": [Entry(str(OUTSIDE), "file")],
    "dots": [Entry("work/./x", "file")],
    "nothing": [Entry("", "file")],
    "zero_byte": [Entry("work/a\0b", "file")],
    "through_a_link": [Entry("away", "symlink", target="/mnt"), Entry("away/outside", "file")],
    "repeats_outside": [Entry("mine", "hardlink", target="../../../../mnt/outside")],
    "twice": [Entry("x", "file"), Entry("x", "file")],
    "unknown_kind": [Entry("x", "socket-to-hell")],
}


def path_tricks(name: str) -> None:
    """Paths in a manifest that would leave their root: refused among the job's files, of no effect among the image's."""
    e = engine()
    with nothing_left(e):
        _, new, _ = _two_images(e)
        hostile = dataclasses.replace(new, scratch=[*new.scratch, *HOSTILE[name]])
        refused("restore", partial(e.restore, hostile, job()))
        assert e.status().state is W.ABSENT
        assert not OUTSIDE.exists()
        until(lambda: not faults.processes())
        with contextlib.suppress(EngineError):  # nobody asks for such a file
            e.restore(dataclasses.replace(new, image=[*new.image, *HOSTILE[name]]), job())
        e.kill()
        assert not OUTSIDE.exists()
        e.restore(new, job())
        runs(e)


# ---------------------------------------------------------------- the network


def network_cut(when: str, how: str) -> None:
    """The way to the store is cut in the middle of it, and is there again later: the save or restore is only slower."""
    with link(CUT_LINK_BITS) as way:
        tools = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))
        store, origin = (
            RetryingStore(open_store(way.url, way.options)),
            Origin(StoreAccess(way.url, way.options), lazy=when == "lazy_restore"),
        )
        e = CriuEngine(BASE, JOB, store, tools, origin)
        e.start(Spec(JOB, ["/usr/bin/python3", "-c", CARRIES]))
        turns_pass(e, 5)
        cut = Cut(way, how, tools.nft, (lambda: runs(e)) if when == "live_save" else lambda: None)
        if when.endswith("save"):
            with cut:
                e.save(request(1, final=when == "final_save"))
        else:
            e.save(request(1, final=True))
        if when != "live_save":
            e.kill()
            with contextlib.nullcontext() if when == "final_save" else cut:
                e.restore(newest(open_store(URL)), job())
                until(lambda: e.status().arriving_bytes is None, 60.0)
        saves_and_comes_back(e, 2)
        until(lambda: e.status().arriving_bytes is None, 60.0)
        e.kill()
    until(lambda: not faults.processes())


# ---------------------------------------------------------------- killed while it restores


def killed_in_restore(delay: str) -> None:
    """kill -9 of the agent some time after it was told to restore; the next one finds a whole job or none, and goes on."""
    e = engine()
    with nothing_left(e):
        _, new, _ = _two_images(e)
        words = [sys.executable, "-m", "support.fault_scenes", "restores", new.id]
        agent = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE)
        assert agent.stdout is not None
        agent.stdout.readline()
        time.sleep(float(delay))
        agent.kill()
        agent.wait()
        agent.stdout.close()
        again = engine()
        state = again.adopt().state
        until(lambda: not any("restore.log" in x for x in faults.processes()), 30.0)
        if state is not W.RUNNING:
            again.kill()
            again.restore(new, job())
        until(lambda: again.status().arriving_bytes is None)
        runs(again)
        whole(again)
        again.kill()


def restores(checkpoint: str) -> None:
    """The agent that is killed."""
    e, image = engine(), newest(open_store(URL))
    assert image.id == checkpoint
    print("now", flush=True)
    with contextlib.suppress(EngineError, StoreError):
        e.restore(image, job())
    signal.pause()


if __name__ == "__main__":
    {**globals()}[sys.argv[1]](*sys.argv[2:])
