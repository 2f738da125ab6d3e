"""What happens in the boxes: programs of the suite as jobs, saved in one and restored in another; and plain CRIU with them.

Run on a minibox by `python -m zdtm.scenes`. Each scene takes the programs of `batch.json` in its folder one after the other and
writes what it saw of each to `seen/NAME.json` there. After one that hangs it ends: the next boot begins with the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from spotsurfer_agent.criu import command
from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.host import launch
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.restore.pager_process import PagerState
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux import procfs
from spotsurfer_wire.manifest import Manifest, decode
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, W, output, request, until
from zdtm.program import Program
from zdtm.suite import CURRENT
from zdtm.verdict import PASS, Seen

HERE = Path("/run/share")
STORE = Path("/run/store")
PROGRAM_SECONDS = 300  # in all; then it hangs
KILL_SECONDS = 40
START_SECONDS = 60.0  # also on a busy host
WORKS_SECONDS = 0.4  # what works rather than waits is stopped in the middle of that
# The job: the program's parent ends when the program is ready, and a job's command must not.
PARENT = """
import os, subprocess, sys, time
mine = os.urandom(16 << 20)
print("started", subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL).returncode, flush=True)
while True: time.sleep(1000)
"""
# Whom the suite makes programs that are not root.
UIDS = {
    "ZDTM_UID": "18943",
    "ZDTM_GID": "58467",
    "ZDTM_GROUPS": "27495 48244",
}


NOTHING = Program("none", "static", ())


class Hangs(Exception):
    """It took too long."""


class Unstarted(Exception):
    """The program says that it can't be; its words."""


# ------------------------------------------------------------ a job


class Job:
    """One program as a job, with a store of its own."""

    def __init__(self, program: Program, user: str, way: str) -> None:
        self._program = program
        store = STORE / program.key / way
        store.mkdir(parents=True, exist_ok=True)
        self._store = open_store(f"file://{store}")
        words = ["/usr/bin/python3", "-c", PARENT, *program.command]
        self._spec = Spec(JOB, words, user=user)
        self._store.create(object_keys.spec_key(JOB), json_codec.encode(self._spec))
        tools = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))

        self.engine = JobEngine(BASE, JOB, self._store, tools, Origin(StoreAccess(f"file://{store}")))
        self._work = Path(self.engine.scratch(), "work")

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.kill()

    def start(self) -> None:
        """Raises Unstarted where the program does not get as far as to wait for its end."""
        lay(self._program, self._work)
        self.engine.start(self._spec)
        with contextlib.suppress(AssertionError):  # then it says why, perhaps
            until(lambda: b"started " in output(self.engine) or self.engine.status().state is not W.RUNNING, START_SECONDS)
        if b"started 0" not in output(self.engine) or not (self._work / self._program.pidfile).exists():
            if b"started " not in output(self.engine) and self.engine.status().state is W.RUNNING:
                raise Unstarted(f"it is not ready within {START_SECONDS:.0f} s")
            printed = output(self.engine) + output(self.engine, "err")
            raise Unstarted(said(self._program, self._work, printed.decode(errors="replace")))
        if self._program.group == "transition":
            time.sleep(WORKS_SECONDS)

    def save(self, number: int, base: str | None, *, final: bool) -> str:
        """Empty, or why not."""
        try:
            self.engine.save(request(number, final=final, base=base))
        except EngineError as e:
            return str(e)
        finally:
            for log in (BASE / "job").glob("failed-*.log"):
                shutil.copy(log, HERE)
        return ""

    def _checkpoint(self, number: int) -> Manifest:
        data = self._store.get(object_keys.manifest_key(JOB, object_keys.checkpoint_id(1, number)))
        assert data is not None
        return decode(data, Keys.derive(b"", JOB), JOB)

    def restore(self, number: int) -> tuple[str, bool]:
        """From the checkpoint of a save, then it is stopped: the program's verdict, or why not; and whether it was lazy."""
        try:
            self.engine.restore(self._checkpoint(number), self._spec)
        except EngineError as e:
            return f"the restore fails: {e}", False
        state = PagerState.read(BASE / "job")
        lazy = state is not None and state.lazy
        if self._program.group == "transition":
            time.sleep(WORKS_SECONDS)
        return self.stop(), lazy

    def stop(self) -> str:
        """As the suite does it: SIGTERM, and what the program says when it is gone."""
        try:
            inside = (self._work / self._program.pidfile).read_text().strip()
        except OSError:
            return f"it has ended before it was told to: {said(self._program, self._work)}"
        pid = next((p for p in self.engine.pids() if _inside(p) == inside), None)
        if pid is None:
            return f"it is gone before it was told to end: {said(self._program, self._work) or 'without a word'}"
        return stopped(self._program, self._work, pid)


def _inside(pid: int) -> str:
    try:
        return procfs.status(pid)["NSpid"].split()[-1]
    except OSError:
        return ""


def lay(program: Program, work: Path) -> None:
    """The program and what it may call, into the folder in which it runs."""
    shutil.copy(CURRENT / program.group / program.name, work)


def stopped(program: Program, work: Path, pid: int, reap: Callable[[], None] = lambda: None) -> str:
    """Tell it to end; its verdict."""
    os.kill(pid, signal.SIGTERM)

    def gone() -> bool:
        reap()
        return not _runs(pid)

    try:
        until(gone, program.timeout)
    except AssertionError:
        return f"it does not end within {program.timeout} s: {said(program, work)}"
    return said(program, work) or "it ends without a word"


def _runs(pid: int) -> bool:
    try:
        return procfs.status(pid)["State"][:1] != "Z"
    except OSError:
        return False


CRIUS_OWN = re.compile(r".*\(CRIU: (.*)\)$|CRIU could not do it: ")
CLOCK = re.compile(r"^\s*[\d:.]+:\s*\d+:\s*")  # time and number of the process, before each line


def said(program: Program, work: Path, otherwise: str = "") -> str:
    """PASS, or the first line in which the program complains, else its last one."""
    for name in (program.outfile, f"{program.outfile}.inprogress"):
        path = work / name
        lines = [CLOCK.sub("", x).strip() for x in path.read_text(errors="replace").splitlines()] if path.exists() else []
        if lines and PASS in lines[-1].split():  # as the suite itself looks
            return PASS
        if lines := [x for x in lines if x]:
            return next((x for x in lines if x.startswith(("ERR", "FAIL"))), lines[-1])
    lines = [CLOCK.sub("", x).strip() for x in otherwise.splitlines() if x.strip() and not x.startswith("started ")]
    return next((x for x in lines if "/lib" not in x), "") or "it ends at once, without a word"


# ------------------------------------------------------------ scenes


def first(program: Program, seen: Seen) -> None:
    """In the first box: as the user that it is meant for; where it can't be that one, as root."""
    users = ("root",) if program.is_root else ("nobody", "root")
    for seen.user in users:
        try:
            _saved(program, seen)
        except Unstarted as e:
            seen.undisturbed = str(e)
            continue
        if seen.unharmed != PASS and (seen.apart or seen.final):
            seen.undisturbed = _undisturbed(program, seen.user)
        if seen.undisturbed in (None, PASS):
            return


def _saved(program: Program, seen: Seen) -> None:
    seen.live, seen.unharmed, seen.final = [], None, None
    if seen.apart:
        _saved_apart(program, seen)
        return
    with Job(program, seen.user, "whole") as job:
        job.start()
        seen.live.append(job.save(1, None, final=False))
        seen.live.append(job.save(2, None if seen.live[0] else object_keys.checkpoint_id(1, 1), final=False))
        seen.final = job.save(3, None if seen.live[1] else object_keys.checkpoint_id(1, 2), final=True)
        if seen.final:
            seen.unharmed = job.stop()


def _saved_apart(program: Program, seen: Seen) -> None:
    with Job(program, seen.user, "live") as job:
        job.start()
        seen.live.append(job.save(1, None, final=False))
        seen.live.append(job.save(2, None if seen.live[0] else object_keys.checkpoint_id(1, 1), final=False))
        seen.unharmed = job.stop()
    with Job(program, seen.user, "final") as job:
        job.start()
        seen.final = job.save(1, None, final=True)
        if seen.final and seen.unharmed == PASS:
            seen.unharmed = job.stop()


def _undisturbed(program: Program, user: str) -> str:
    with Job(program, user, "undisturbed") as job:
        try:
            job.start()
            return job.stop()
        except Unstarted as e:
            return str(e)


def second(program: Program, seen: Seen) -> None:
    """In another box: from the second live save, and from the final one."""
    if len(seen.live) > 1 and not seen.live[1]:
        with Job(program, seen.user, "live" if seen.apart else "whole") as job:
            seen.from_live, seen.lazy = job.restore(2)
    if seen.final == "":
        with Job(program, seen.user, "final" if seen.apart else "whole") as job:
            seen.from_final, seen.lazy = job.restore(1 if seen.apart else 3)


def alone(program: Program, seen: Seen) -> None:
    """Plain CRIU, with the options that the suite gives it for this program, as root and in no namespace of its own."""
    work, images = BASE / "alone" / "work", BASE / "alone" / "images"
    shutil.rmtree(BASE / "alone", ignore_errors=True)
    work.mkdir(parents=True)
    images.mkdir()
    for folder in (BASE / "alone", work):
        folder.chmod(0o777)
    lay(program, work)
    environment = {**os.environ, **({} if program.is_root else UIDS)}
    log = (images / "start.log").open("wb")
    done = subprocess.run(
        program.command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
    )
    if done.returncode:
        seen.alone = f"does not start: {said(program, work, (images / 'start.log').read_text(errors='replace'))}"
        return
    criu = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"])).criu
    subprocess.run([*criu, "check"], capture_output=True, check=False)  # as root it finds out what this kernel can
    pid = int((work / program.pidfile).read_text())
    who = launch.owner_of(pid)
    if program.group == "transition":
        time.sleep(WORKS_SECONDS)
    common = ["-D", str(images), "-v4", "--no-default-config", "--manage-cgroups=ignore", *program.opts]
    if launch.lends(who[0]):  # nft refuses who is root only in effect
        common += ["--network-lock", "skip"]
    dump = [*criu, "dump", "-t", str(pid), "-o", "dump.log", *common, *program.dopts]
    seen.alone = _criu(dump, work, images / "dump.log", who)
    if not seen.alone:
        _reap()
        restore = [*criu, "restore", "-d", "-o", "restore.log", *common, *program.ropts]
        seen.alone = _criu(restore, work, images / "restore.log", who)
    if not seen.alone:
        seen.alone = stopped(program, work, pid, _reap)
    seen.alone = "passes" if seen.alone == PASS else f"fails too: {seen.alone}"
    for left in procfs_pids():
        if left != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(left, signal.SIGKILL)
    until(lambda: _reap() or len(procfs_pids()) == 1)


def procfs_pids() -> list[int]:
    """The processes of this box."""
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


def _criu(argv: list[str], work: Path, log: Path, who: tuple[int, int]) -> str:
    def lend() -> None:
        launch.lend_identity(*who)

    done = subprocess.run(argv, cwd=work, capture_output=True, text=True, check=False, timeout=90, preexec_fn=lend)
    if not done.returncode:
        return ""
    told = command.sentence(log, done.stderr.strip())
    return CRIUS_OWN.sub(r"\1", told)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raises Hangs in this block after a time."""

    def late(*_: object) -> None:
        raise Hangs(f"it hangs: not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


SCENES = {"first": first, "second": second, "alone": alone}


def main(scene: str) -> None:
    """The batch, as far as it gets."""
    folder = HERE / "seen"
    folder.mkdir(exist_ok=True)
    if scene != "alone":  # as an agent does before anything else: CRIU finds out what this kernel can
        problems = Job(NOTHING, "root", "preflight").engine.preflight()
        assert problems == [], problems
    for text, before in json.loads((HERE / "batch.json").read_text()):
        program, seen = Program.of(text), Seen(**before)
        where = ""
        try:
            with within(PROGRAM_SECONDS):
                SCENES[scene](program, seen)
        except (Exception, Hangs) as e:
            where = traceback.format_exc()
            (HERE / f"{program.key}.{scene}.traceback").write_text(where)
            seen.broken = f"{type(e).__name__}: {e}"
            if scene == "alone":
                seen.alone, seen.broken = f"fails too: {seen.broken}", before["broken"]
        (folder / f"{program.key}.json.new").write_text(json.dumps(asdict(seen)))
        (folder / f"{program.key}.json.new").replace(folder / f"{program.key}.json")
        if where:
            with contextlib.suppress(Exception, Hangs), within(KILL_SECONDS):  # what is frozen could not be ended with the box
                Job(NOTHING, "root", "end").engine.kill()
            return


if __name__ == "__main__":
    main(sys.argv[1])
