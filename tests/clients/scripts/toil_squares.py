"""Squares and their sum as a Toil workflow."""

import time

from toil.common import Toil
from toil.job import Job

NEEDS = {"cores": 1, "memory": "500M", "disk": "100M"}


def square(_, number):
    """Takes longer than it is from one reclaim to the next."""
    time.sleep(30)
    return number * number


def total(_, found):
    """The end of the workflow."""
    return sum(found)


def fan(job):
    """Makes the others."""
    found = [job.addChildJobFn(square, number, **NEEDS).rv() for number in range(4)]
    return job.addFollowOnJobFn(total, found, **NEEDS).rv()


if __name__ == "__main__":
    with Toil(Job.Runner.getDefaultArgumentParser().parse_args()) as toil:
        print("sum", toil.start(Job.wrapJobFn(fan, **NEEDS)))
