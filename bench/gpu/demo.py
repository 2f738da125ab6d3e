"""`make demo-gpu`: two jobs take turns on the GPU of one machine, under a controller.

    train      trains. Gets a notice and goes on in another box. Gives way to `serve` and comes back, twice. Ends.
    serve      an inference server of higher priority. Comes when it is wanted, sleeps when nobody asks, wakes at a question.

Everything is real: the controller, its API, boxes on this host with the GPU in them, agents, the front, the bill. With
`--standin` the jobs use no GPU and a device that is none stands for it: that shows the road on any host, and says nothing
about speed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from spotsurfer_agent.gpu import suspend_resume
from spotsurfer_wire import clock

from bench.gpu import demonstration, jobs
from bench.gpu.demonstration import Failed
from spotsurfer.agent_runtime import builder
from spotsurfer.demo.environment import Stage
from spotsurfer.model.errors import SpotsurferError
from spotsurfer.web.client import connect

Json = dict[str, Any]
PROGRAMS = Path(__file__).parent / "programs"
PORT, QUESTIONS = 8000, 10
PIECE_BYTES = 1 << 20
LOOK_SECONDS, ANSWER_SECONDS = 0.1, 240.0
SWAP_SECONDS_MAX = 5.0
CONFIG = """\
[controller]
data_dir = "{data}"
tick_seconds = 0.5
hurry_seconds = 0.1
offers_seconds = 5
log_format = "json"
[limits]
gpus_max = 1
stay_seconds = 1
last_report_seconds = 2
[agent]
poll_seconds = 0.25
report_seconds = 1
notice_seconds = 0.25
hurry_seconds = 0.1
drain_margin_seconds = 3
[checkpoint]
threads = {threads}
compression = "none"
[provider.local]
pools = ["local-a/{type}", "local-b/{type}"]
disk_bytes = {disk}
runtimes = "{runtimes}"
[policy]
purchase = "greedy"
[front]
ports = "20700-20709"
[runtime]
path = "{runtime}"
"""
TRAIN = """\
name = "train"
command = {command}
inputs = ["{program}"]
deadline = "6h"
work = "1h"
[resources]
cpu = 1
memory = "{memory}"
gpus = 1
[environment]
{environment}
"""
SERVE = """\
name = "serve"
command = {command}
inputs = ["{program}"]
priority = 10
[resources]
cpu = 1
memory = "{memory}"
gpus = 1
[environment]
{environment}
[[ports]]
name = "answers"
port = {port}
[idle]
suspend_after = "10s"
"""
MACHINE, SMALL_MACHINE = "g6e.4xlarge", "g5.xlarge"  # for the bill; a box has the processors and the GPU of this host


@dataclass
class Road:
    """One controller with its jobs. `marks`: what happened when, seconds since 1970; `took`: how long it took, in
    seconds; `logs`: what was printed so far, by job and stream."""

    options: argparse.Namespace
    stage: Stage
    jobs: Path
    marks: list[tuple[float, str]] = field(default_factory=list)
    logs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def mark(self, what: str, at: float | None = None) -> None:
        """Remember it, and say it."""
        self.marks.append((now() if at is None else at, what))
        print(f"{self.marks[-1][0] - self.marks[0][0]:8.1f} s  {what}", flush=True)

    def submit(self, name: str) -> str:
        """The id of a new job."""
        return str(self.stage.call("submit", str(self.jobs / f"{name}.toml"))["id"])

    def show(self, job: str) -> Json:
        """All about it."""
        found: Json = self.stage.ask(f"/v1/jobs/{job}")
        if found["state"] == "failed" or (found["state"] == "held" and found["held_by"] != "idle"):
            raise Failed(f"{job}: {found['reason']}; it printed {self.printed(job, 'err')[-1500:]!r}")
        return found

    def printed(self, job: str, stream: str) -> str:
        """All that the job printed, under all its machines."""
        data = self.logs.get((job, stream), b"")
        while piece := connect(self.stage.config).data(f"/v1/jobs/{job}/log/{stream}", offset=len(data), limit=PIECE_BYTES):
            data += piece
        self.logs[job, stream] = data
        return data.decode(errors="replace")

    def steps(self, job: str) -> list[tuple[int, float]]:
        """Each step of the training with the time at which it was done."""
        rows = [x.split() for x in self.printed(job, "err").splitlines() if x.startswith("step ") and x.count(" ") == 2]
        return [(int(number), float(at)) for _, number, at in rows]

    def until(self, what: Callable[[], object], told: str) -> None:
        """Wait for it. Raises Failed."""
        demonstration.until(what, told, LOOK_SECONDS)

    def trained(self, job: str, more: int) -> None:
        """Wait until it has made so many steps more."""
        wanted = len(self.steps(job)) + more
        self.until(lambda: self.show(job) and len(self.steps(job)) >= wanted, f"{more} more steps of {job}")

    def next_step(self, job: str, since: float, what: str) -> None:
        """Wait for the first step after the first grant after this time; tell how long it took since then."""

        def granted() -> float | None:
            times = [seconds(a["granted_at"]) for a in self.show(job)["attempts"] if a["granted_at"]]
            return next((t for t in times if t > since), None)

        self.until(granted, f"another machine for {job}")
        at = granted()
        assert at is not None
        self.until(lambda: self.show(job) and any(t > at for _, t in self.steps(job)), f"a step of {job} there")
        first = next(t for _, t in self.steps(job) if t > at)
        self.took[what] = round(first - since, 2)
        self.mark(f"{what}: {first - since:.1f} s", first)

    def ask(self, job: str, number: int) -> str:
        """The server's answer to a question: whoever asks waits while there is no server."""
        self.until(lambda: self.show(job)["ports"] and self.show(job)["ports"][0]["address"], "an address for the server")
        host, port = self.show(job)["ports"][0]["address"].rsplit(":", 1)
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_SECONDS)
            try:
                connection.request("GET", f"/{number}")
                return connection.getresponse().read().decode()
            except (OSError, http.client.HTTPException):  # its program does not listen yet
                if time.monotonic() > end:
                    raise Failed(f"{job} did not answer; it printed {self.printed(job, 'err')[-1500:]!r}") from None
                self.show(job)
                time.sleep(LOOK_SECONDS)
            finally:
                connection.close()

    def answers(self, job: str, since: float, what: str) -> list[str]:
        """Ask the server some questions; tell how long the first answer took."""
        found = [self.ask(job, 0)]
        self.took[what] = round(now() - since, 2)
        self.mark(f"{what}: {self.took[what]:.1f} s")
        return found + [self.ask(job, n) for n in range(1, QUESTIONS)]

    def sleep(self, job: str) -> float:
        """Wait until the controller puts an idle job to sleep; when that was. How busy a pretended GPU is nobody can tell."""
        if self.options.standin:
            self.stage.call("suspend", job)
            return now()
        self.until(lambda: self.show(job)["held_by"] == "idle", f"the sleep of {job}")
        moments = self.stage.ask(f"/v1/jobs/{job}/timeline")["moments"]
        return max(seconds(m["at"]) for m in moments if "idle since" in m["text"])

    def wake(self, job: str) -> None:
        """By its user, if it was put to sleep by them; else the next question does it."""
        if self.options.standin:
            self.stage.call("resume", job)


def now() -> float:
    """Seconds since 1970, as the jobs and the API tell them."""
    return clock.utc().timestamp()


def seconds(at: str) -> float:
    """Of a moment of the API, since 1970."""
    return datetime.fromisoformat(at).timestamp()


def travel(road: Road) -> Json:
    """All acts. Raises Failed."""
    began = now()
    road.mark("train: submitted")
    train = road.submit("train")
    road.until(lambda: road.show(train) and len(road.steps(train)) >= road.options.first, "the training's first steps")
    road.took["from nothing to the first step"] = round(road.steps(train)[0][1] - began, 2)
    notice = now()
    box = next(a["instance"] for a in road.show(train)["attempts"] if a["state"] == "running")
    road.stage.call("local", "reclaim", box, "--notice", "120s")
    road.mark("the cloud takes the machine of train in two minutes", notice)
    road.next_step(train, notice, "from the notice to the next step")
    road.trained(train, road.options.first)

    wanted = now()
    road.mark("serve: submitted, with a higher priority; there is one GPU")
    serve = road.submit("serve")
    told = road.answers(serve, wanted, "from inference wanted to its first answer, a new server")
    asleep = road.sleep(serve)
    road.mark("serve: nobody asks it, it is put to sleep", asleep)
    road.next_step(train, asleep, "from the server's sleep to the next step of train")
    road.trained(train, road.options.first)

    woken = now()
    road.mark("serve: somebody asks it")
    road.wake(serve)
    again = road.answers(serve, woken, "hot swap: from the question to the answer of the server that was asleep")
    ended = now()
    road.ask(serve, -1)
    road.mark("serve: told to end", ended)
    road.next_step(train, ended, "hot swap back: from the server's end to the next step of train")
    road.until(lambda: all(road.show(j)["state"] == "succeeded" for j in (train, serve)), "the end of both jobs")
    road.mark("both jobs have ended")
    both = {"train": train, "serve": serve}
    costs = {name: road.stage.call("report", job)["attempts"] for name, job in both.items()}
    steps = [at for _, at in road.steps(train)]
    return {
        "output": road.printed(train, "out"),
        "same_answers": told == again,
        "took_seconds": road.took,
        "stood_still_seconds": sorted((round(b - a, 2) for a, b in itertools.pairwise(steps)), reverse=True)[:3],
        "moves": road.show(train)["moves"],
        "bill": {
            name: {
                "machines": len(lines),
                "usd": sum(x["usd_micros"] for x in lines) / 1e6,
                "usd_on_demand": sum(x["usd_micros_on_demand"] for x in lines) / 1e6,
            }
            for name, lines in costs.items()
        },
        "timeline": [(round(at - began, 2), what) for at, what in sorted(road.marks)],
        "moments": sorted(
            (round(seconds(m["at"]) - began, 2), name, m["attempt"] or 0, m["text"])
            for name, job in both.items()
            for m in road.stage.ask(f"/v1/jobs/{job}/timeline")["moments"]
        ),
    }


def written(options: argparse.Namespace) -> tuple[Path, dict[str, list[str]]]:
    """The configuration, and beside it both jobs; and their commands."""
    folder: Path = options.work
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    runtimes = _runtimes(options)
    shutil.rmtree(runtimes, ignore_errors=True)
    runtimes.mkdir(parents=True)
    built = builder.find(options.runtime)
    if built is None:
        raise Failed(f"{options.runtime} has no runtime of this agent: `make runtime` builds it")
    (runtimes / built.sha256).symlink_to((options.runtime / "current").resolve())
    config = folder / "spotsurfer.toml"
    config.write_text(
        CONFIG.format(
            data=folder / "data", runtimes=runtimes, runtime=options.runtime.resolve(), threads=options.threads,
            type=SMALL_MACHINE if options.standin else MACHINE, disk=int((8 + 4 * options.gb) * 2**30),
        )
    )  # fmt: skip
    train, serve = ("without_gpu.py", "without_gpu.py") if options.standin else ("pytorch.py", "serve.py")
    jobs_of = {"train": (TRAIN, train, str(options.steps)), "serve": (SERVE, serve, str(PORT))}
    own = {} if options.standin else jobs.environment()
    commands = {}
    for name, (text, program, word) in jobs_of.items():
        commands[name] = [options.python, program, str(options.gb), word]
        shutil.copy(PROGRAMS / program, folder)
        (folder / f"{name}.toml").write_text(
            text.format(
                command=json.dumps(commands[name]), program=program, memory=f"{int(4 + 3 * options.gb)}G", port=PORT,
                environment="\n".join(f"{k} = {json.dumps(v)}" for k, v in own.items()),
            )
        )  # fmt: skip
    return config, commands


def undisturbed(command: list[str], folder: Path) -> str:
    """What the training prints if nothing happens to it."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"the undisturbed run ended with {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


@contextlib.contextmanager
def pretended_gpu(on: bool) -> Iterator[None]:
    """This process and those that it starts see a device of a GPU, which is /dev/null; the rest of the host does not."""
    if on and "SPOTSURFER_DEMO_GPU" not in os.environ:
        os.environ["SPOTSURFER_DEMO_GPU"] = "pretended"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-m", "bench.gpu.demo", *sys.argv[1:]])
    if on:
        with tempfile.TemporaryDirectory() as at:
            subprocess.run(["mount", "-t", "tmpfs", "dev", at], check=True)
            subprocess.run(["cp", "-a", "--one-file-system", "/dev/.", at], check=True)
            for number in range(64):  # the kernel makes these only in its own /dev
                if not (path := Path(at, f"loop{number}")).exists():
                    os.mknod(path, 0o60660, os.makedev(7, number))
            os.mknod(Path(at, "nvidia0"), 0o20666, os.makedev(1, 3))
            for name in ("pts", "shm"):
                subprocess.run(["mount", "--rbind", f"/dev/{name}", f"{at}/{name}"], check=True)
            subprocess.run(["mount", "--move", at, "/dev"], check=True)
    yield


def show(found: Mapping[str, Any]) -> None:
    """For people."""
    print(f"\n{found['gb']:g} GB on a GPU ({found['device']}), store in {found['store']}")
    for what, took in found["took_seconds"].items():
        print(f"  {took:8.2f} s  {what}")
    for name, bill in found["bill"].items():
        print(f"  {bill['usd']:8.4f} USD  {name}: {bill['machines']} machines; on-demand {bill['usd_on_demand']:.4f} USD")
    same = "identical to an undisturbed run" if found["identical"] else "NOT identical to an undisturbed run"
    answers = "the same as" if found["same_answers"] else "NOT those of"
    print(f"what train printed is {same}; the server's answers after its sleep are {answers} before")


def main() -> int:
    """Exit code 0: identical."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with pretended_gpu(options.standin):
        try:
            found = demonstrated(options)
        except (Failed, SpotsurferError) as e:
            print(f"the demonstration failed: {e}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted; no box is left", file=sys.stderr)
            return 130
        finally:
            if not options.keep:
                shutil.rmtree(options.work, ignore_errors=True)
                shutil.rmtree(_runtimes(options), ignore_errors=True)
    show(found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["identical"] and found["same_answers"] else 1


def demonstrated(options: argparse.Namespace) -> Json:
    """All figures; leaves no process or box behind. Raises Failed, SpotsurferError."""
    config, commands = written(options)
    stage = Stage(config, options.work)
    try:
        with suspend_resume.huge_pages_everywhere(options.work):  # a box can't do it for itself
            stage.start()
            found = travel(Road(options, stage, options.work))
    finally:
        stage.stop()
        stage.clean()
    found["identical"] = found.pop("output") == undisturbed(commands["train"], options.work) != ""
    found |= {"gb": options.gb, "device": demonstration.device(options.standin), "store": str(options.work)}
    return found | {"command": f"python -m bench.gpu.demo --gb {options.gb:g} --steps {options.steps}"}


def _runtimes(options: argparse.Namespace) -> Path:
    """A folder for boxes to find the runtime in; they have no /dev/shm of the host's."""
    return Path(options.out.resolve().parent, "demo-gpu-runtimes")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.demo", description=__doc__)
    parser.add_argument("--gb", type=float, default=4.0, help="GPU memory of each job (default %(default)s)")
    parser.add_argument("--steps", type=int, default=900, help="of the training")
    parser.add_argument("--first", type=int, default=60, help="steps of the training before something happens to it")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--python", default=shutil.which("python3") or "python3", help="of the jobs")
    parser.add_argument(
        "--runtime", type=Path, default=Path(os.environ.get("SPOTSURFER_RUNTIME__PATH", "build/runtime")),
        help="where the agent's runtime was built (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, default=Path("/dev/shm/demo-gpu"), help="folder of everything, in memory (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("build/demo-gpu.json"))
    parser.add_argument("--keep", action="store_true", help="leave that folder, to look at logs")
    parser.add_argument("--standin", action="store_true", help="without a GPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
