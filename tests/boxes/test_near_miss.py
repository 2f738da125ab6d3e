"""A job grows past the memory of its machine: frozen, saved, continued on a larger one, and never killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fleet import CONFIG, MARKS, Fleet, fleet

pytestmark = MARKS
SMALL, LARGE = "t3.micro", "t3.small"  # 1 and 2 GiB
POOLS = 'pools = ["local-a/{small}", "local-b/{large}"]\n'
# Takes a mebibyte a step, and looks at the end whether all of it is what it was.
GROWS = """\
import hashlib, sys, time
steps, pause = int(sys.argv[1]), float(sys.argv[2])
h, blocks, doubles = b"begin", [], open("child.txt", "w")
for i in range(steps):
    for _ in range(200): h = hashlib.sha256(h).digest()
    blocks.append(h * 32768)
    doubles.write(f"{2 * i}\\n")
    print(i, h.hex(), flush=True)
    time.sleep(pause)
doubles.close()
assert all(b == b[:32] * 32768 for b in blocks)
open("result.txt", "w").write(blocks[-1][:32].hex() + "\\n")
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    config = CONFIG[: CONFIG.index("pools = ")] + POOLS.format(small=SMALL, large=LARGE)
    # No live saves: they need memory, too, and a machine of 1 GiB has little.
    with fleet(tmp_path_factory.mktemp("growing"), 86400, config=config.replace("= 1073741824", "= 4294967296")) as made:
        yield made


def test_it_ends_identical_on_a_larger_machine(world: Fleet) -> None:
    job = world.submit(1300, pause=0.02, text=GROWS)
    ended = world.wait_end(job, 240)
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0)
    ran = [a["instance_type"] for a in ended["attempts"] if a["granted_at"]]
    assert ran == [SMALL, LARGE]
    missed = world.moments(job, "near miss")
    assert len(missed) == 1
    assert missed[0]["data"]["machine_bytes"] == 1 << 30
    assert missed[0]["data"]["used_bytes"] < 1 << 30
    world.assert_identical(job)
    world.assert_one_owner(job)
    windows = world.client.get(f"/v1/jobs/{job}/usage")["windows"]
    assert max(w["resident_bytes"] for w in windows) > 1250 << 20  # a look a second: the last mebibytes may be missed
    assert {w["attempt"] for w in windows} == {1, max(a["number"] for a in ended["attempts"] if a["granted_at"])}
    grew = [w["growth_bytes_per_second"] for w in windows if w["attempt"] == 1]  # on the other its memory was brought first
    assert 10 << 20 < max(grew) < 400 << 20
