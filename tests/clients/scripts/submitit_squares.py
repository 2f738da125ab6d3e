"""Squares as an array of submitit's Slurm executor."""

import time

import submitit


def square(number: int) -> int:
    """Takes longer than it is from one reclaim to the next."""
    print("the square of", number, flush=True)
    time.sleep(30)
    return number * number


executor = submitit.AutoExecutor(folder="log", cluster="slurm")
executor.update_parameters(timeout_min=20, mem_gb=0.5, cpus_per_task=1, slurm_array_parallelism=4)
jobs = executor.map_array(square, range(6))
print("squares", [job.result() for job in jobs])
for number, job in enumerate(jobs):
    while f"the square of {number}\n" not in (job.stdout() or ""):  # it comes home with the result, a moment before or after
        time.sleep(1)
