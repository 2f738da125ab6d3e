"""A bench: Verilog simulations as one array on six boxes with four licences, while boxes are taken away.

All results are right, no more licences are out than there are, and machines are used. One is busy while a simulation on it
has its licence, and it is paid from its launch to its end. Each simulation has a machine for itself, so both can be compared.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import MARKS, Fleet, Json, fleet, with_kept
from support.licence_server import CLIENT, PORT, LicenceServer

from spotsurfer.model.errors import SpotsurferError

SIMULATIONS = int(os.environ.get("VERILOG_SIMULATIONS", "300"))
LICENCES, BOXES, CPUS = 4, 6, 2
# A simulation gets its stimuli from an instrument, one each so many seconds: on this host's processors four at a time would
# else measure the processors.
STIMULI, PAUSE = 100, 0.2
USE_MIN = 0.85  # of what is paid for
SECONDS = 120 + STIMULI * PAUSE * SIMULATIONS
TAKEN_EVERY = 120.0  # seconds between two boxes that are taken away: each lives some eight minutes
pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(SECONDS + 300)]
DESIGN = """\
module mixer(input clk, input [31:0] in, output reg [31:0] out);
  initial out = 1;
  always @(posedge clk) out <= {out[30:0], out[31] ^ out[21] ^ out[1] ^ out[0]} + in;
endmodule
module tb;
  reg clk = 0;
  reg [31:0] in;
  wire [31:0] out;
  integer stdin = 32'h8000_0000;
  mixer dut(clk, in, out);
  initial begin
    while ($fscanf(stdin, "%d", in) == 1) begin
      #1 clk = 1;
      #1 clk = 0;
    end
    $display("%h", out);
    $finish;
  end
endmodule
"""
INSTRUMENT = f"""\
import sys, time
for i in range({STIMULI}):
    time.sleep({PAUSE})
    print(int(sys.argv[1]) * 2654435761 * (i + 1) % (1 << 31), flush=True)
"""
RUN = "python3 lic.py take || exit 75; python3 instrument.py $1 | vvp -n sim.vvp; python3 lic.py return\n"


def right(seeds: int) -> list[str]:
    """What each simulation prints, by a model of the design."""
    seed = np.arange(1, seeds + 1, dtype=np.uint64)
    out = np.ones(seeds, dtype=np.uint32)
    for i in range(STIMULI):
        stimulus = (seed * np.uint64(2654435761 * (i + 1)) % np.uint64(1 << 31)).astype(np.uint32)
        bit = (out >> np.uint32(31)) ^ (out >> np.uint32(21)) ^ (out >> np.uint32(1)) ^ out
        out = ((out << np.uint32(1)) | (bit & np.uint32(1))) + stimulus
    return [f"{int(x):08x}" for x in out]


def submit(world: Fleet, folder: Path) -> list[str]:
    (folder / "tb.v").write_text(DESIGN)
    subprocess.run(["iverilog", "-o", "sim.vvp", "tb.v"], cwd=folder, check=True)
    files = {"run.sh": RUN.encode(), "lic.py": CLIENT.encode(), "instrument.py": INSTRUMENT.encode()}
    files |= {"sim.vvp": (folder / "sim.vvp").read_bytes()}
    job = str(world.client.post("/v1/ids", {"name": "sim"})["job"])
    for name, data in files.items():
        world.client.upload(f"/v1/jobs/{job}/inputs/{name}", iter([data]), len(data))
    spec = {
        "name": "sim",
        "array": f"1-{SIMULATIONS}",
        "command": ["sh", "run.sh", "{task}"],
        "inputs": list(files),
        "cpus": CPUS,
        "memory_bytes": 1 << 28,
        "licences": {"sim": 1},
        "before_freeze": ["python3", "lic.py", "return"],
        "before_thaw": ["python3", "lic.py", "take"],
    }
    world.client.put(f"/v1/jobs/{job}", {"spec": spec, "modes": dict.fromkeys(files, 0o644)})
    return [f"{job}-{task}" for task in range(1, SIMULATIONS + 1)]


class Cloud(threading.Thread):
    """Takes boxes away: half of them with a notice. Of what goes without one, the server misses the heartbeat."""

    def __init__(self, world: Fleet, server: LicenceServer) -> None:
        super().__init__(daemon=True)
        self._world, self._server, self._rand = world, server, random.Random(1)
        self.over, self.taken = threading.Event(), 0

    def run(self) -> None:
        while not self.over.wait(TAKEN_EVERY):
            with suppress(SpotsurferError, LookupError):
                jobs = self._world.client.get("/v1/jobs", ended=False)["jobs"]
                there = [(j["id"], a["instance"]) for j in jobs for a in j["attempts"] if a["state"] == "running"]
                job, box = self._rand.choice(there)
                notice = self._rand.choice([0, 15])
                manual_control.reclaim(self._world.data, box, notice)
                self.taken += 1
                if not notice:
                    self._server.answer("return", job, "silent")


def used(server: LicenceServer) -> float:
    """Seconds that licences were out, all together: so long simulations ran."""
    pairs = zip(server.at, server.at[1:], strict=False)
    return sum(out * (after - at) for (at, out), (after, _) in pairs)


def warm_starts(world: Fleet, jobs: list[Json]) -> list[float]:
    """Seconds from the plan until the command ran, of first attempts on machines that other jobs had before."""
    found, boxes = [], set[str]()
    for job in sorted(jobs, key=lambda j: str(j["attempts"][0]["planned_at"])):
        first = job["attempts"][0]
        warm = first["instance"] in boxes
        boxes.add(first["instance"])
        runs = [m for m in world.moments(job["id"]) if m["kind"] == "attempt" and m["data"]["to"] == "running"]
        if warm and runs and runs[0]["attempt"] == first["number"]:
            at = datetime.fromisoformat(runs[0]["at"]) - datetime.fromisoformat(first["planned_at"])
            found.append(at.total_seconds())
    return sorted(found)


def test_many_simulations(tmp_path: Path) -> None:
    with LicenceServer(tmp_path / "licences.sock", LICENCES) as server:
        own = f'[licences]\nsim = {LICENCES}\n[provider.local]\nsockets = {{{{ {PORT} = "{server.path}" }}}}'
        with fleet(tmp_path / "fleet", 600, with_kept(BOXES).replace("[provider.local]", own)) as world:
            began = time.monotonic()
            tasks = submit(world, tmp_path)
            cloud = Cloud(world, server)
            cloud.start()

            def ended() -> list[Json] | None:
                time.sleep(2)  # each look lists all of them
                jobs: list[Json] = world.client.get("/v1/jobs")["jobs"]
                over = [j for j in jobs if j["state"] in ("succeeded", "failed", "cancelled")]
                return over if len(over) == SIMULATIONS else None

            jobs = world.wait(ended, "the end of all simulations", SECONDS)
            seconds = time.monotonic() - began
            cloud.over.set()
            cloud.join(30)
            assert {j["state"] for j in jobs} == {"succeeded"}
            assert [world.output(task).split()[-2] for task in tasks] == right(SIMULATIONS)
            costs = world.client.get("/v1/costs")["costs"]
            machines = sum(line["seconds"] for line in costs)
            starts = warm_starts(world, jobs)
    use = used(server) / machines
    print(
        f"{SIMULATIONS} simulations in {seconds:.0f} s, {cloud.taken} boxes were taken away, {len(costs)} tries; "
        f"{server.most} licences of {LICENCES} were out at most; "
        f"simulations ran {used(server):.0f} s, machines {machines:.0f} s: {100 * use:.0f} % use; "
        f"{len(starts)} warm starts, half of them within {starts[len(starts) // 2]:.1f} s, nine of ten within "
        f"{starts[len(starts) * 9 // 10]:.1f} s"
    )
    assert server.most <= LICENCES
    assert not [x for x in server.asked if x[3] == "no" and x[2] == "-"], "nothing was begun without a licence"
    assert use >= USE_MIN
