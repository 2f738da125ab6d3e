"""Squares with parsl's executor for many tasks, on blocks that its Slurm provider submits."""

import sys

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import SlurmProvider

PORT, MACHINE = int(sys.argv[1]), sys.argv[2]


@parsl.python_app
def square(number):
    """Takes some seconds."""
    import time

    time.sleep(15)
    return number * number


provider = SlurmProvider(
    init_blocks=3,
    min_blocks=3,
    max_blocks=3,
    cores_per_node=1,
    mem_per_node=1,
    walltime="01:00:00",
    exclusive=False,
    launcher=SimpleLauncher(),
    cmd_timeout=120,
    worker_init=f'export PATH={MACHINE}:$PATH\neval "$(python3 tether/join)"',
)
executor = HighThroughputExecutor(
    label="slurm",
    address="127.0.0.1",
    worker_port=PORT,
    max_workers_per_node=1,
    heartbeat_threshold=3600,
    address_probe_timeout=300,
    provider=provider,
)
with parsl.load(Config(executors=[executor], retries=0, run_dir="runs")):
    print("squares", [future.result() for future in [square(number) for number in range(18)]])
