"""What happens on a minibox to a job that brings a container image: each function is one scene, see `minibox`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from spotsurfer_agent.engines.criu import CriuEngine
from spotsurfer_agent.images.bringing import Rules
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.store import ObjectStore, open_store
from support.engine_kit import (
    JOB,
    PROGRAM,
    SMALL,
    STORE,
    W,
    engine,
    keep_output,
    newest,
    output,
    request,
    runs,
    turns_pass,
    until,
)
from support.registry import HOST, registry

STORAGE = Path("/run/store/registry")
TURNS = 200


def surfing(image: str = "tool:1", turns: int = TURNS) -> Spec:
    return Spec(JOB, ["python3", "engine_job.py", str(SMALL), str(turns)], image=f"docker://{HOST}/{image}")


def made(store: ObjectStore | None = None) -> CriuEngine:
    e = engine(store)
    e.keep_images(Rules(insecure=(HOST,)))
    return e


def put_program(e: CriuEngine) -> None:
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))


def first() -> None:
    """The job starts in its image and is saved twice."""
    e = made()
    put_program(e)
    with registry(STORAGE):
        e.start(surfing())
    turns_pass(e, 5)
    mark = Path(f"/proc/{e.pids()[0]}/root/etc/mark").read_text()
    assert mark == "image one\n", mark
    live = e.save(request(1, final=False))
    runs(e)
    e.save(request(2, final=True, base=live.checkpoint, commit=lambda i: keep_output(e, i.log)))
    e.kill()


def last() -> None:
    """It goes on in a box that never had the image, although the tag means another one by now, and ends as if alone."""
    store = open_store(STORE)
    e, image = made(store), newest(store)
    with registry(STORAGE):
        e.restore(image, surfing())
    runs(e)
    assert Path(f"/proc/{e.pids()[0]}/root/etc/mark").read_text() == "image one\n"
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert e.status().exit_code == 7, output(e, "err")
    keep_output(e, dict(e.status().log or {}))
    told = Path("/run/store/log-out").read_text().split("\n")
    assert told[1:] == [f"turn {i}" for i in range(TURNS)] + ["end", ""], told
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
