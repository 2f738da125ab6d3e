"""Debian's real Slurm on this host's loopback, for as long as a block: one node of four processors, with accounting.

All of it lies in one folder and listens on free ports; nothing of the host's own Slurm, MariaDB or munge is touched.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("slurm-wlm", "slurmdbd", "mariadb-server", "munge")
START_SECONDS = 60.0
CONFIG = """
ClusterName=cluster
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=100000
PriorityType=priority/multifactor
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass={folder}/munge.socket
AccountingStoragePort={dbd}
AccountingStoreFlags=job_comment
Licenses=vcs:2
ReturnToService=2
MinJobAge=600
FirstJobId=810000
KillWait=3
SlurmdParameters=config_overrides
DefMemPerNode=1024
JobCompType=jobcomp/none
NodeName=node-1 NodeAddr=127.0.0.1 CPUs=4 RealMemory=4096 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
DBD_CONFIG = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StoragePort=0
StorageUser=root
StorageLoc=slurm_acct_db
"""


@dataclass(frozen=True, slots=True)
class RealSlurm:
    """A running one. `environment`: what its programs need to find it."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One of its programs."""
        return subprocess.run(words, env=os.environ | self.environment, capture_output=True, text=True, timeout=60, check=False)


def missing() -> list[str]:
    """Programs that this host lacks; `apt-get install` of PACKAGES brings them."""
    there = [*map(shutil.which, ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd"))]
    return [
        name for name, path in zip(("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd"), there, strict=True) if not path
    ]


@contextlib.contextmanager
def real_slurm(folder: Path) -> Iterator[RealSlurm]:
    """One that has started, in an empty folder with a short path; it is stopped and its processes are gone afterwards."""
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    names = {"folder": folder, "ctld": _free_port(), "slurmd": _free_port(), "dbd": _free_port()}
    (folder / "slurm.conf").write_text(CONFIG.format(**names))
    (folder / "slurmdbd.conf").write_text(DBD_CONFIG.format(**names))
    (folder / "slurmdbd.conf").chmod(0o600)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    folder.chmod(0o755)
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    slurm = RealSlurm(folder, environment)
    with contextlib.ExitStack() as stack:

        def start(*words: str | Path, env: dict[str, str] | None = None) -> None:
            log = stack.enter_context((folder / f"{Path(words[0]).name}.out").open("w"))
            stack.callback(_stop, subprocess.Popen([*map(str, words)], stdout=log, stderr=log, env=os.environ | (env or {})))

        place = ["--socket", folder / "munge.socket", "--key-file", folder / "munge.key", "--pid-file", folder / "munged.pid"]
        start("munged", "--foreground", "--force", *place, "--log-file", folder / "m.log", "--seed-file", folder / "m.seed")
        _until("munged", (folder / "munge.socket").exists)
        _start_database(folder, start)
        dbd = {"MYSQL_UNIX_PORT": str(folder / "mysql.socket")} | environment
        start("slurmdbd", "-D", env=dbd)
        _until(
            "slurmdbd", lambda: "cluster" in slurm.run("sacctmgr", "-i", "-n", "list", "stats").stdout or _answers(names["dbd"])
        )
        slurm.run("sacctmgr", "-i", "add", "cluster", "cluster")
        slurm.run("sacctmgr", "-i", "add", "account", "lab", "Description=lab", "Organization=lab")
        slurm.run("sacctmgr", "-i", "add", "user", "root", "Account=lab")
        start("slurmctld", "-D", env=environment)
        start("slurmd", "-D", "-N", "node-1", env=environment)
        _until("slurmd", lambda: slurm.run("sinfo", "-h", "-o", "%t").stdout.strip() == "idle")
        yield slurm


def _start_database(folder: Path, start: Callable[..., None]) -> None:
    data = folder / "mysql"
    owner = ["--user=mysql"] if os.geteuid() == 0 else []
    data.mkdir()
    if owner:
        os.chown(data, pwd.getpwnam("mysql").pw_uid, -1)
        os.chown(folder, pwd.getpwnam("mysql").pw_uid, -1)  # of its socket
    begin = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"]
    words = [*begin, "--auth-root-authentication-method=socket", *owner]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    sock = folder / "mysql.socket"
    start(
        "mariadbd",
        "--no-defaults",
        f"--datadir={data}",
        f"--socket={sock}",
        "--skip-networking",
        f"--pid-file={folder}/my.pid",
        *owner,
    )
    _until("mariadbd", sock.exists)
    if owner:
        os.chown(folder, 0, -1)


def _answers(port: object) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(str(port))), 1):
        return True
    return False


def _until(what: str, there: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not there():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} does not start")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
