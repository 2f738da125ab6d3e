"""Ten thousand queued tasks of an array: how long users wait for the queue, the list and the page, with a real controller."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from support.fleet import CONFIG, MARKS, Fleet, fleet

from spotsurfer.slurm.install import install

pytestmark = [*MARKS, pytest.mark.alone]
TASKS = 10_000
# All wait for a licence, and no machine is ordered.
DRY = CONFIG.replace("[provider.local]", '[licences.vcs]\ncommand = ["/bin/echo", "0"]\n[provider.local]')
SECONDS = 1.0


class User:
    """Calls programs in a folder of their own."""

    def __init__(self, world: Fleet, folder: Path) -> None:
        self.world, self.folder = world, folder / "wf"
        self.folder.mkdir()
        install(folder / "bin", {"main": "spot-first"})
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPOTSURFER", "SLURM"))}
        own = {"SPOTSURFER_URL": world.client.place, "XDG_STATE_HOME": str(folder / "state")}
        self.environment = kept | own | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def page(self, path: str) -> str:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.world.data / "api.sock")), timeout=60) as client:
            answer = client.get(f"http://localhost{path}", headers={"Accept": "text/html"})
            assert answer.status_code == 200, answer.text[:500]
            return answer.text


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    with fleet(tmp_path_factory.mktemp("many"), config=DRY) as world:
        made = User(world, tmp_path_factory.mktemp("user"))
        made("sbatch", "--parsable", f"--array=1-{TASKS}", "-J", "sweep", "-L", "vcs", "--wrap", "true")
        yield made


def seconds(call: Callable[[], object]) -> float:
    """The best of some."""

    def once() -> float:
        began = time.monotonic()
        call()
        return time.monotonic() - began

    return min(once() for _ in range(5))


CALLS = {
    "squeue": ("squeue",),
    "sbatch": ("sbatch", "--hold", "--wrap", "true"),
    "list": (sys.executable, "-m", "spotsurfer", "list"),
}


def test_all_tasks_are_in_one_line(user: User) -> None:
    assert user("squeue", "-h", "-j", "1", "-o", "%i %t").strip() == f"1_[1-{TASKS}] PD"
    assert f"-[1-{TASKS}] " in user(*CALLS["list"])
    assert f"-[1-{TASKS}]</a>" in user.page("/queue")


@pytest.mark.parametrize("what", CALLS)
def test_a_command_takes_less_than_a_second(user: User, what: str) -> None:
    assert seconds(lambda: user(*CALLS[what])) < SECONDS


def test_the_page_of_the_queue_takes_less_than_a_second(user: User) -> None:
    assert seconds(lambda: user.page("/queue")) < SECONDS
