"""`python -m bench.inputs`: inputs of three jobs of one machine, fetched once, behind a link of a given rate. Needs root.

It prints one line of JSON: how long it took, and which share of the link the bytes of the inputs had.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spotsurfer_agent.prepare.inputs.cache import Cache
from spotsurfer_agent.prepare.inputs.delivery import Delivery
from spotsurfer_agent.prepare.inputs.sources import Sources
from spotsurfer_wire.messages import Fetch, Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB
from support.link import link
from support.minibox import minibox

JOBS = 3
SHARE_AT_LEAST = 0.8
ONCE = 1.1  # bytes on the wire for each of the inputs: headers and answers are some of them
KEYS = f"jobs/{JOB}/in/lab"


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: once, and fast enough."""
    parser = argparse.ArgumentParser(prog="bench.inputs", description=__doc__)
    parser.add_argument("--bytes", type=int, default=5 * 10**9)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--bits-per-second", type=int, default=10**9)
    given = parser.parse_args(argv)
    told = measured(given.bytes, given.files, given.bits_per_second)
    print(json.dumps(told))
    return int(told["share"] < SHARE_AT_LEAST or told["wire_bytes"] > told["bytes"] * ONCE)


def measured(total: int, files: int, bits_per_second: int) -> dict[str, float]:
    """What came of it."""
    with tempfile.TemporaryDirectory() as top:
        store = Path(top, "store")
        _write(store / KEYS, files, total // files)
        disk = total + total // 10 + (1 << 30)
        with minibox(Path(top, "box"), store, disk_bytes=disk, module="bench.inputs") as machine:
            told: dict[str, float] = json.loads(machine.run("measure", bits_per_second, timeout_seconds=1200).splitlines()[-1])
    return told


def _write(folder: Path, count: int, size: int) -> None:
    """Files that all differ; most of each is a hole, so that the far end costs little."""
    for i in range(count):
        path = folder / f"{i % 20}" / f"{i}.fq.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as f:
            f.write(f"{i:032d}".encode())
            f.truncate(size)


def measure(bits_per_second: str) -> None:
    """On the machine: the jobs' agents begin at the same time."""
    rate = int(bits_per_second)
    with link(rate) as way:
        began = time.monotonic()
        words = [sys.executable, "-m", "bench.inputs", "job"]
        agents = [subprocess.Popen([*words, str(i), json.dumps(way.options)]) for i in range(JOBS)]
        codes = [a.wait(1100) for a in agents]
        seconds = time.monotonic() - began
        assert codes == [0] * JOBS, codes
        files = [p for p in (BASE / "shared/objects").rglob("*") if p.is_file()]
        total = sum(p.stat().st_size for p in files)
        assert {p.stat().st_nlink for p in files} == {JOBS + 1}, "all jobs have the same files"
        told = {"files": len(files), "bytes": total, "seconds": round(seconds, 2), "bits_per_second": rate}
        print(json.dumps({**told, "share": round(total * 8 / seconds / rate, 3), "wire_bytes": way.passed_bytes}))


def job(number: str, options: str) -> None:
    """One agent."""
    base = BASE / f"agent-{number}"
    base.mkdir()
    sources = Sources({"s3://": json.loads(options)})
    delivery = Delivery(base, Cache(BASE / "shared"), sources)
    delivery.ready(Spec(JOB, ["x"], fetches=[Fetch(f"s3://store/{KEYS}/")]), open_store(f"file://{base}/store"))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("measure", "job"):
        globals()[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
