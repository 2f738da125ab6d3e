"""The demonstration's world: real input reads, scenario and job files, and the controller's process."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from spotsurfer.model.errors import HostUnfit, SpotsurferError
from spotsurfer.web.client import connect

# ---- Input: 40-fold reads that wgsim draws from the genome of *E. coli* 536 (NC_008253).

GENOME = Path("/usr/share/doc/bowtie/examples/genomes/NC_008253.fna.gz")
PAIRS = 660_000  # of 150 bases: 40 times the 4.9 million of the genome
LENGTH = 150
SEED = 7
PACKAGES = {"megahit": "megahit", "wgsim": "samtools"}


def check() -> None:
    """Raises HostUnfit if a program or the genome is missing."""
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise HostUnfit(f"{program} is missing: run `make demo`, or apt-get install {package}")
    if genome() is None:
        raise HostUnfit("the E. coli genome is missing: run `make demo`, or apt-get install bowtie-examples")


def genome() -> Path | None:
    """The path at which Debian's bowtie-examples install the genome."""
    if GENOME.is_file():
        return GENOME
    found = sorted(Path("/usr/share").glob("**/NC_008253.fna.gz"))
    return found[0] if found else None


def make(folder: Path) -> list[Path]:
    """Make both read files once; the bytes are always the same."""
    files = [folder / "reads_1.fq.gz", folder / "reads_2.fq.gz"]
    if all(f.is_file() for f in files):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    source = genome()
    assert source is not None
    plain = folder / "genome.fna"
    with gzip.open(source) as compressed, plain.open("wb") as out:
        shutil.copyfileobj(compressed, out)
    drawn = [folder / "1.fq", folder / "2.fq"]
    size = ["-N", str(PAIRS), "-1", str(LENGTH), "-2", str(LENGTH), "-S", str(SEED)]
    subprocess.run(
        ["wgsim", *size, str(plain), *map(str, drawn)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for made, final in zip(drawn, files, strict=True):
        part = final.with_suffix(".part")
        # Without a name or time inside, so that the bytes are the same each time.
        with made.open("rb") as reads, part.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed:
            shutil.copyfileobj(reads, packed, 1 << 20)
        part.replace(final)
        made.unlink()
    plain.unlink()
    return files


# ---- Command, and the files that a user and an operator would write.

# One thread: with two, undisturbed runs of MEGAHIT 1.2.9 differ from each other, and nothing could be compared. The command
# skips MEGAHIT's local assembly step, so that the whole fits into minutes.
COMMAND = ["megahit", "-1", "reads_1.fq.gz", "-2", "reads_2.fq.gz", "-t", "1", "-o", "assembly"]
COMMAND += ["--no-local", "--k-min", "21", "--k-max", "141", "--k-step", "10"]
RESULT = "assembly/final.contigs.fa"
INTERVAL_SECONDS = 10
TYPE = "m6i.large"

CONFIG = """\
[controller]
data_dir = "{data_dir}"
tick_seconds = 0.5
offers_seconds = 2
log_format = "json"

[limits]
instances_max = 4
budget_usd = "1.00"
lease_seconds = 12
lease_margin_seconds = 4
listing_lag_seconds = 5
cooldown_seconds = 5

[agent]
poll_seconds = 0.5
report_seconds = 2
notice_seconds = 0.5
drain_margin_seconds = 3

[provider]
name = "local"
[provider.local]
scenario = "{scenario}"
pools = ["local-a/{type}", "local-b/{type}"]

[policy]
name = "cheapest"
[policy.cheapest]
stay_seconds = 15

[runtime]
path = "{runtime}"
"""

JOB = """\
name = "assembly"
command = {command}
inputs = ["reads_1.fq.gz", "reads_2.fq.gz"]
outputs = ["{result}"]
market = "spot-first"
checkpoint_interval = "{interval}s"

[resources]
cpu = 1
memory = "4G"
"""


def write(folder: Path, reads: Path, runtime: Path, plot: str) -> tuple[Path, Path]:
    """Write configuration and job file; the job file lies beside the reads, because its inputs are relative to it.

    `runtime` is the folder of the agent's runtime, which outlives the demonstration's data.
    `plot`: what the simulated cloud does, in TOML.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scenario, config, job = folder / "scenario.toml", folder / "spotsurfer.toml", reads / "assembly.toml"
    scenario.write_text(plot)
    config.write_text(CONFIG.format(data_dir=folder / "data", scenario=scenario, type=TYPE, runtime=runtime))
    job.write_text(JOB.format(command=COMMAND, result=RESULT, interval=INTERVAL_SECONDS).replace("'", '"'))
    return config, job


# ---- Processes: the controller, and a user's commands, as real programs.

START_SECONDS = 30
STOP_SECONDS = 20
SELF = [sys.executable, "-m", "spotsurfer"]


class Stage:
    """One configuration; knows the controller process that it started."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.config = config
        self._folder = folder
        self._log = folder / "controller.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {**os.environ, "SPOTSURFER_CONFIG": str(config)}

    @property
    def pid(self) -> int:
        """The controller's process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the controller and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*SELF, "serve"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            asked = subprocess.run([*SELF, "list", "--json"], env=self._environment, capture_output=True, check=False)
            if asked.returncode == 0:
                return
            time.sleep(0.2)
        said = self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise HostUnfit(f"the controller did not start: {said[-1]}")

    def kill(self) -> None:
        """Kill the controller as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the controller as an operator would."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def call(self, *words: str) -> Any:
        """The answer of `spotsurfer WORDS --json`; raises SpotsurferError with its message."""
        done = subprocess.run([*SELF, *words, "--json"], env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SpotsurferError(f"spotsurfer {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def ask(self, path: str) -> Any:
        """A question to the controller's API."""
        return connect(self.config).get(path)

    def clean(self) -> Any:
        """End every box of this configuration and remove what is left of them."""
        return self.call("local", "clean", "--all")
