"""MEGAHIT is moved down and up by `surf` as its phases want memory, and ends identical, for less than on what it asked for.

`make test-all` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from programs import plain
from programs.entry import Entry
from programs.surf import made, submitted
from spotsurfer_providers.catalog import instance_types
from spotsurfer_wire.oom_freeze_levels import pressed_at
from support.fleet import ENDED, MARKS, Fleet, fleet, with_pools

from spotsurfer.model.money import for_seconds

LONGEST_SECONDS = 2400  # on a host that does other things, too
pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(2 * LONGEST_SECONDS)]
LOOK_SECONDS = 2.0  # between two questions how it is: it is to have the processors
ASKED, *SMALLER = "t3.large", "t3.medium", "t3.small", "t3.micro"  # from 8 GiB down, each half as large
TYPES = (ASKED, *SMALLER)
POLICY = '[policy]\nsize = "surf"\n[size]\nlook_seconds = 10\n'
# Three samples, one after the other. For each it sorts k-mers in memory (`--mem-flag 2`), 0.8 GiB, then works for longer on a
# graph of a tenth of that.
SAMPLES = "1 2 3"
MEGAHIT = Entry(
    name="megahit",
    title="MEGAHIT",
    what="assembles three samples of short reads, each for two k",
    packages=["megahit", "samtools"],
    prepare=f"""
for s in {SAMPLES}; do
  python3 $SOURCES/genome.py $s 16000000 > genome.fa
  wgsim -S $s -e 0.002 -N 740000 -1 150 -2 150 genome.fa 1.fq 2.fq > /dev/null
  for i in 1 2; do awk 'NR%4==1 {{print ">" ++n}} NR%4==2' $i.fq | gzip -1 > sample_$s.$i.fa.gz; done
done
rm genome.fa 1.fq 2.fq
""",
    seconds=440,
    command=[
        *("sh", "-ec"),
        f"for s in {SAMPLES}; do megahit -1 sample_$s.1.fa.gz -2 sample_$s.2.fa.gz -t 1 -o assembly_$s --no-local "
        "--k-list 31,59 --mem-flag 2 -m 3000000000; done",
    ],
    outputs=["assembly_*/final.contigs.fa"],
    why="one thread: with two, undisturbed runs differ among themselves",
    job={"memory_bytes": 5 << 30},
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    config = with_pools([f"local-a/{t}" for t in TYPES], 8 << 30, POLICY)
    # No live saves but before moves: a machine of 1 GiB has little memory for them.
    with fleet(tmp_path_factory.mktemp("m"), 86400, config=config) as running:
        yield running


def test_it_goes_down_and_up_twice_and_ends_identical(world: Fleet) -> None:
    assert not MEGAHIT.missing(), "make test-all installs what it needs"
    folder = world.path / "p"
    inputs = plain.prepare(MEGAHIT, folder)
    with ThreadPoolExecutor(1) as beside:
        alone = beside.submit(plain.undisturbed, MEGAHIT, folder, LONGEST_SECONDS)
        job = submitted(world, MEGAHIT, inputs)
        world.steps[job] = 0
        ended = over(world, job)
        undisturbed = alone.result()
    bill = sum(line["usd_micros"] for line in world.client.get("/v1/costs", job=job)["costs"])
    told(world, job, bill, undisturbed.seconds)
    assert undisturbed.differs(made(world, ended, 0.0)) == ""
    world.assert_one_owner(job)
    downs, ups = turns([a["instance_type"] for a in ended["attempts"] if a["granted_at"]])
    assert min(downs, ups) >= 2, world.explain()
    assert bill < fixed(ASKED, undisturbed.seconds), "all machines as billed, against the one that was asked for"


def over(world: Fleet, job: str) -> dict[str, Any]:
    """The job when it has ended."""
    until = time.monotonic() + LONGEST_SECONDS
    while world.show(job)["state"] not in ENDED and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    return world.wait_end(job)


def turns(kinds: Sequence[str]) -> tuple[int, int]:
    """How often it went to a smaller type, and to a larger one."""
    steps = [TYPES.index(b) - TYPES.index(a) for a, b in pairwise(kinds)]
    return sum(s > 0 for s in steps), sum(s < 0 for s in steps)


def fixed(name: str, seconds: float) -> int:
    """Micro-dollars of a spot machine of this type for all of the undisturbed run, and of nothing else: no boot, no end."""
    return for_seconds(instance_types()[name].spot_usd_micros_per_hour, seconds)


def told(world: Fleet, job: str, bill: int, seconds: float) -> None:
    """The figures of docs/size.md."""
    peak = max(int(w["resident_bytes"]) for w in world.client.get(f"/v1/jobs/{job}/usage")["windows"])
    holding = [t for t in TYPES if pressed_at(instance_types()[t].memory_bytes) > peak]
    for a in world.show(job)["attempts"]:
        print(a["number"], a["instance_type"], a["launched_at"], a["granted_at"], a["released_at"], a["pause_seconds"])
    print(f"peak {peak >> 20} MiB, undisturbed {seconds:.0f} s; ledger {bill} micro-dollars")
    print(*(f"{t} all the time: {fixed(t, seconds)}" for t in holding), sep="\n")
    print(f"{len(world.moments(job, 'near miss'))} near misses")
