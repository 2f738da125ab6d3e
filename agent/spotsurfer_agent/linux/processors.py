"""How many processes or threads of ours work on a job's memory side by side, if the machine has processors to spare."""

from __future__ import annotations

import os

THREADS_EACH = 4  # processors of the machine for each process, and its threads: more in one interpreter wait for each other


def worker_count(memory_bytes: int, worth_bytes: int, count_max: int, processors_each: int = THREADS_EACH) -> int:
    """At most `count_max`. 0 if there is less memory than `worth_bytes`, or if there are too few processors for two of them."""
    count = lane_count(0, count_max, processors_each)
    return count if count > 1 and memory_bytes >= worth_bytes else 0


def lane_count(least: int, most: int, processors_each: int) -> int:
    """One for every `processors_each` processors, within these bounds."""
    return max(least, min(most, len(os.sched_getaffinity(0)) // processors_each))
