"""What the pretended cloud will do, and the files that a user and an operator would write."""

from __future__ import annotations

from pathlib import Path

# One thread: with two, undisturbed runs of MEGAHIT 1.2.9 differ among themselves, and nothing could be compared. Without its
# local assembly step, so that the whole fits into minutes.
COMMAND = ["megahit", "-1", "reads_1.fq.gz", "-2", "reads_2.fq.gz", "-t", "1", "-o", "assembly"]
COMMAND += ["--no-local", "--k-min", "21", "--k-max", "141", "--k-step", "10"]
RESULT = "assembly/final.contigs.fa"
INTERVAL_SECONDS = 10
TYPE = "m6i.large"

# The n-th spot machine meets its fate so many seconds after its launch. Between the first reclaim and the loss the user
# asks for a move; with the last reclaim spot is sold out for a while, so the job falls back to on-demand, then returns.
SCENARIO = """\
[[reclaim]]
launch = 1
after_seconds = 22
notice_seconds = 30

[[reclaim]]
launch = 3
after_seconds = 35
notice_seconds = 0

[[reclaim]]
launch = 4
after_seconds = 22
notice_seconds = 30

[[outage]]
market = "spot"
at_reclaim = 3
seconds = 20
"""

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


def write(folder: Path, reads: Path, runtime: Path) -> tuple[Path, Path]:
    """Configuration and job file; the job file lies beside the reads, as its inputs are relative to it.

    `runtime` is the folder of the agent's runtime, which outlives the demonstration's data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scenario, config, job = folder / "scenario.toml", folder / "spotsurfer.toml", reads / "assembly.toml"
    scenario.write_text(SCENARIO)
    config.write_text(CONFIG.format(data_dir=folder / "data", scenario=scenario, type=TYPE, runtime=runtime))
    job.write_text(JOB.format(command=COMMAND, result=RESULT, interval=INTERVAL_SECONDS).replace("'", '"'))
    return config, job
