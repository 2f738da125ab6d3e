"""Squares as an array of submitit's Slurm executor."""

import time

import submitit


def square(number: int) -> int:
    """Takes some seconds."""
    time.sleep(5)
    return number * number


executor = submitit.AutoExecutor(folder="log", cluster="slurm")
executor.update_parameters(timeout_min=20, mem_gb=0.5, cpus_per_task=1, slurm_array_parallelism=4)
print("squares", [job.result() for job in executor.map_array(square, range(6))])
