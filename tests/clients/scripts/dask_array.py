"""An array computation of dask on workers that dask-jobqueue submits, and the same computation without workers."""

import os
import sys
import time

import dask
import dask.array as da
from dask.distributed import Client
from dask_jobqueue import SLURMCluster

PORT, MACHINE_PYTHON = int(sys.argv[1]), sys.argv[2]


def slow(block):
    """Takes some seconds."""
    time.sleep(20)
    return block


x = da.random.default_rng(1).random((800, 800), chunks=(200, 800))
y = (x.T.dot(x) / 800).rechunk((100, 400)).map_blocks(slow, dtype=float).sum(axis=0)

with dask.config.set({"distributed.comm.timeouts.connect": "300s", "distributed.scheduler.worker-ttl": None}):
    cluster = SLURMCluster(
        cores=1,
        memory="900MB",
        nanny=False,
        walltime="01:00:00",
        death_timeout=300,
        log_directory="log",
        local_directory="work",
        python=MACHINE_PYTHON,
        scheduler_options={"host": "127.0.0.1", "port": PORT, "dashboard": False},
        worker_extra_args=["--host", "127.0.0.1", "--worker-port", "$SPOTSURFER_TETHER_PORT", "--no-dashboard"],
        job_script_prologue=['eval "$(python3 tether/join)"', "export DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT=300s"],
    )
    cluster.scale(jobs=3)
    with cluster, Client(cluster) as client:
        client.wait_for_workers(3, timeout=600)
        before = set(client.scheduler_info(n_workers=-1)["workers"])
        found = client.compute(y, retries=0).result()
        lost = before - set(client.scheduler_info(n_workers=-1)["workers"])
        print("workers", len(before), "lost", len(lost), flush=True)
    with dask.config.set(scheduler="synchronous"):
        time.sleep = lambda _: None
        print("identical" if y.compute().tobytes() == found.tobytes() else "different", os.getpid())
