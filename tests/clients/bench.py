"""A user's host for clients as their makers publish them, beside a controller with boxes that are reclaimed.

`make clients` installs the clients. They lie where boxes see them: a job finds the same Python as on a machine image.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.fleet import CONFIG, Fleet, fleet, with_kept
from support.tree import ROOT

CLIENTS = Path(os.environ.get("SPOTSURFER_TEST_CLIENTS", "/opt/spotsurfer-clients"))
HOST, MACHINE = CLIENTS / "host" / "bin", CLIENTS / "machine" / "bin"
PLUGIN = ROOT / "integrations" / "snakemake"
GENOMICS = PLUGIN / "example"
SECONDS_MAX = 3000.0
SOCKET = "10.77.0.1:7786"


@dataclass
class Bench:
    """A controller, and commands of a user. `world` is None without a controller."""

    world: Fleet | None
    folder: Path
    path: Sequence[Path] = ()  # before all else on PATH
    environment: Mapping[str, str] = field(default_factory=dict)

    def call(self, words: Sequence[str], seconds: float = SECONDS_MAX) -> subprocess.CompletedProcess[str]:
        """Run a command of the clients' environment in the folder; it must succeed."""
        with self.start(words) as running:
            out, err = running.communicate(timeout=seconds)
        explain = "" if self.world is None or running.returncode == 0 else self.world.explain()
        assert running.returncode == 0, f"{words}: {out[-5000:]}{err[-5000:]}{explain}"
        return subprocess.CompletedProcess(words, 0, out, err)

    @contextmanager
    def start(self, words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
        """A command that runs within the block at most."""
        assert (HOST / "python").exists(), f"there are no clients in {CLIENTS}: call make clients"
        running = subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.whole_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield running
        finally:
            running.kill()
            running.communicate()

    def whole_environment(self) -> dict[str, str]:
        """Of the user's commands."""
        return {
            **os.environ,
            "PATH": ":".join([*map(str, self.path), str(HOST), os.environ["PATH"]]),
            "XDG_STATE_HOME": str(self.folder.parent / "state"),
            "XDG_CACHE_HOME": str(self.folder / ".snakemake" / "cache"),
            "PYTHONPATH": ":".join(map(str, (ROOT, ROOT / "wire", PLUGIN))),
            **({} if self.world is None else {"SPOTSURFER_URL": str(self.world.data / "api.sock")}),
            **self.environment,
        }


def workflow(folder: Path) -> Path:
    """The genomics workflow in a folder of its own."""
    shutil.copytree(GENOMICS, folder)
    return folder


def results(folder: Path) -> dict[str, str]:
    """Digests of all that a workflow made, without logs and what programs note for themselves."""
    files = (p for p in folder.rglob("*") if p.is_file())
    named = {str(p.relative_to(folder)): p for p in files}
    return {
        name: hashlib.sha256(p.read_bytes()).hexdigest()
        for name, p in sorted(named.items())
        if not name.startswith((".snakemake/", "logs/"))
    }


@contextmanager
def bench(
    path: Path, folder: Path, reclaim_seconds: int = 60, notice_seconds: int = 10, boxes: int = 8, socket: Path | None = None
) -> Iterator[Bench]:
    """A controller whose spot boxes are all reclaimed together, again and again. Boxes find `socket` as `SOCKET`."""
    path.mkdir(parents=True, exist_ok=True)
    plot = path / "scenario.toml"
    times = range(reclaim_seconds, int(SECONDS_MAX), reclaim_seconds)
    plot.write_text("".join(f"[[reclaim]]\nat_seconds = {t}\nnotice_seconds = {notice_seconds}\n" for t in times))
    config = CONFIG.replace("[provider.local]\n", f'[provider.local]\nscenario = "{plot}"\n')
    if socket is not None:
        port = SOCKET.partition(":")[2]
        config = config.replace("[provider.local]\n", f'[provider.local]\nsockets = {{{{ {port} = "{socket}" }}}}\n')
    with fleet(path / "fleet", interval=10, config=with_kept(boxes, config)) as world:
        yield Bench(world, folder)


def jobs_of(world: Fleet) -> list[dict[str, object]]:
    """All jobs of the controller, with their attempts."""
    found: list[dict[str, object]] = world.client.get("/v1/jobs")["jobs"]
    return found


def moves(world: Fleet) -> int:
    """How often a job went on on another machine."""
    grants = (sum(a["granted_at"] is not None for a in world.show(str(job["id"]))["attempts"]) for job in jobs_of(world))
    return sum(max(0, n - 1) for n in grants)
