"""The surfed run: the same command as a job, saved three times and moved twice at moments that a seed draws."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from programs.entry import Entry
from programs.plain import Made
from support.fleet import ENDED, Fleet, Json, fleet, with_disks

SAVES, MOVES = 3, 2
SHARE = (0.01, 0.09)  # of the run's length: the pause before each act, so that all five fit into the run
DISK_BYTES = 8 << 30
INTERVAL_SECONDS = 3600.0  # only the saves that were drawn take place
MEMORY_BYTES = 4 << 30
ACT_SECONDS = 90
END_SECONDS = 300
SERVICE = """\
import socket, time
with socket.create_server(("0.0.0.0", 7000)) as s:
    held = s.accept()
    time.sleep(86400)
"""


class Failed(Exception):
    """The program was not brought through; the text says how."""


def plan(seed: str, name: str, seconds: float) -> list[tuple[float, str]]:
    """Pauses in seconds and what follows each, drawn from the seed."""
    chance = random.Random(f"{seed}:{name}")
    acts = ["save"] * SAVES + ["move"] * MOVES
    chance.shuffle(acts)
    return [(seconds * chance.uniform(*SHARE), act) for act in acts]


class Surf:
    """One program on a fleet of its own."""

    def __init__(self, entry: Entry, folder: Path, world: Fleet, say: Callable[[str], None]) -> None:
        self._entry, self._inputs, self._world, self._say = entry, folder / "inputs", world, say
        self._job = ""
        self._service: subprocess.Popen[bytes] | None = None

    def run(self, acts: list[tuple[float, str]]) -> Made:
        """Submit, act, wait for the end. Raises Failed."""
        begin = time.monotonic()
        self._begin()
        for number, (pause, act) in enumerate(acts, 1):
            self._pause(pause, number)
            self._say(f"{act} after {pause:.1f} s")
            {"save": self._save, "move": self._move}[act]()
        return made(self._world, self._end(), time.monotonic() - begin)

    def refused(self, pause: float) -> tuple[str, Made]:
        """Ask for a save that can't be: the sentence, and what the program made after it. Raises Failed."""
        begin = time.monotonic()
        self._begin()
        self._pause(pause, 1)
        self._world.client.post(f"/v1/jobs/{self._job}/checkpoint", {})
        self._world.wait(lambda: self._alerts() or self._saved(), "the answer to a save", ACT_SECONDS)
        if not self._alerts():
            raise Failed("it was saved, though the table says that it can't be")
        sentence = str(self._alerts()[0]["text"])
        self._say(sentence)
        return sentence, made(self._world, self._end(), time.monotonic() - begin)

    def explain(self) -> str:
        """What there is to know of a failure."""
        self._world.steps[self._job] = 0
        logs = []
        for name in ("failed-dump.log", "failed-restore.log"):
            for path in (self._world.data / "boxes").glob(f"*/**/{name}"):
                logs.append(f"== {path}\n{path.read_text(errors='replace')[-4000:]}")
        return "\n".join([self._world.explain(), *logs])

    def close(self) -> None:
        """End what was started beside the job. Idempotent."""
        if self._service is not None:
            self._service.kill()
            self._service.wait()

    # ---- acts

    def _begin(self) -> None:
        self._job = submitted(self._world, self._entry, self._inputs)
        self._world.wait_state(self._job, "running", 1, ACT_SECONDS)
        if self._entry.service:
            agent = self._world.agent_pid(self._world.box(self._job, 1))
            enter = ["nsenter", f"--net=/proc/{agent}/ns/net", sys.executable, "-c", SERVICE]
            self._service = subprocess.Popen(enter)

    def _pause(self, seconds: float, number: int) -> None:
        time.sleep(seconds)
        if self._show()["state"] in ENDED:
            raise Failed(f"it ended before act {number} of {SAVES + MOVES}: it has to run longer")

    def _save(self) -> None:
        before, alerts = len(self._saved()), len(self._alerts())
        self._world.client.post(f"/v1/jobs/{self._job}/checkpoint", {})
        self._wait(lambda: len(self._saved()) > before, alerts, "a save")

    def _move(self) -> None:
        attempts, alerts = len(self._show()["attempts"]), len(self._alerts())
        self._world.client.post(f"/v1/jobs/{self._job}/move", {})
        self._wait(lambda: self._world.attempt(self._job, "running", attempts + 1), alerts, "a move")

    def _wait(self, good: Callable[[], object], alerts: int, what: str) -> None:
        """Until it was done; what an agent says meanwhile is the failure."""
        self._world.wait(lambda: good() or len(self._alerts()) > alerts or self._over(), what, ACT_SECONDS)
        if len(self._alerts()) > alerts:
            raise Failed(f"{what} failed: {self._alerts()[-1]['text']}")
        if not good():
            raise Failed(f"it ended during {what}: {self._show()['reason']}")

    def _end(self) -> Json:
        ended = self._world.wait_end(self._job, END_SECONDS)
        if ended["state"] != "succeeded":
            raise Failed(f"the job {ended['state']}: {ended['reason']}, exit code {ended['exit_code']}")
        if not self._entry.refused and ended["moves"] != MOVES:
            raise Failed(f"it moved {ended['moves']} times instead of {MOVES}")
        return ended

    # ---- looks

    def _show(self) -> Json:
        return self._world.show(self._job)

    def _over(self) -> bool:
        return self._show()["state"] in ENDED

    def _saved(self) -> list[Json]:
        return [m for m in self._world.moments(self._job, "saved") if m["data"]["kind"] == "live"]

    def _alerts(self) -> list[Json]:
        return self._world.moments(self._job, "alert")


def submitted(world: Fleet, entry: Entry, inputs: Path) -> str:
    """A job of the program with all files below `inputs`: its identifier."""
    client = world.client
    job = str(client.post("/v1/ids", {"name": entry.name})["job"])
    modes = {}
    for path in sorted(p for p in inputs.rglob("*") if p.is_file()):
        arrives = path.relative_to(inputs).as_posix()
        client.upload(f"/v1/jobs/{job}/inputs/{arrives}", _pieces(path), path.stat().st_size)
        modes[arrives] = path.stat().st_mode & 0o777
    spec = {
        "name": entry.name,
        "command": entry.command,
        "inputs": sorted(modes),
        "outputs": entry.outputs,
        "cpus": entry.cpus,
        "memory_bytes": MEMORY_BYTES,
        **entry.job,
    }
    client.put(f"/v1/jobs/{job}", {"spec": spec, "modes": modes})
    return job


def made(world: Fleet, ended: Json, seconds: float) -> Made:
    """What a job that ended made; it took so long."""
    job, found = ended["id"], {}
    for file in world.client.get(f"/v1/jobs/{job}/outputs")["outputs"]:
        sum_ = hashlib.sha256()
        for piece in world.client.download(f"/v1/jobs/{job}/outputs/{file['path']}"):
            sum_.update(piece)
        found[str(file["path"])] = sum_.hexdigest()
    found["standard output"] = hashlib.sha256(world.output(job).encode()).hexdigest()
    return Made(seconds, 0.0, int(ended["exit_code"]), found)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as f:
        while piece := f.read(1 << 20):
            yield piece


def surfed(entry: Entry, folder: Path, disk: str, seconds: float, seed: str, say: Callable[[str], None]) -> tuple[str, Made]:
    """The run on a fleet of its own below `folder`, with disks of this kind: the sentence of a refused save, and what was made.

    Raises Failed; then everything there is to know lies in the file `failure.log`.
    """
    config = with_disks(DISK_BYTES) + f'disk_kind = "{disk}"\n'
    with fleet(folder / f"surf-{disk}", INTERVAL_SECONDS, config) as world:
        surf = Surf(entry, folder, world, say)
        try:
            acts = plan(seed, entry.name, seconds)
            return surf.refused(acts[0][0]) if entry.refused else ("", surf.run(acts))
        except (Failed, AssertionError) as e:
            (folder / "failure.log").write_text(f"{e}\n{surf.explain()}")
            raise e if isinstance(e, Failed) else Failed(str(e).splitlines()[0]) from e
        finally:
            surf.close()
