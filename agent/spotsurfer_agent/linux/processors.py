"""How many processes of ours work on a job's memory side by side, if the machine has processors to spare."""

from __future__ import annotations

import os

THREADS_EACH = 4  # processors of the machine for each process, and its threads: more in one interpreter wait for each other


def worker_count(memory_bytes: int, worth_bytes: int, count_max: int) -> int:
    """None for less memory than `worth_bytes` or fewer processors than two workers need; `count_max` at most."""
    count = len(os.sched_getaffinity(0)) // THREADS_EACH
    return min(count, count_max) if count > 1 and memory_bytes >= worth_bytes else 0
