"""A real job that waits for nothing is told as stuck, and one that only prints now and then is not."""

from __future__ import annotations

import time
from pathlib import Path

from support.fleet import MARKS, fleet

pytestmark = MARKS
STUCK_SECONDS = 30.0
WAITS = "import time; time.sleep(55); end = time.monotonic() + 25\nwhile time.monotonic() < end: pass\ntime.sleep(600)"
PRINTS = "import time\nfor i in range(60): print(i, flush=True); time.sleep(5)"


def test_who_is_stuck_and_who_is_not(tmp_path: Path) -> None:
    with fleet(tmp_path, 86400) as world:
        waits = world.submit(text=WAITS, stuck_seconds=STUCK_SECONDS, outputs=[])
        prints = world.submit(text=PRINTS, stuck_seconds=STUCK_SECONDS, outputs=[])
        world.wait_state(waits, "running")
        world.wait_state(prints, "running")
        world.wait(lambda: world.show(waits)["phase"] == "stuck", "it is stuck", 70)
        (told,) = world.moments(waits, "stuck")
        assert "it used no processor, disk, network and printed nothing" in told["text"]
        world.wait(lambda: world.show(waits)["phase"] == "running", "it works again", 60)
        time.sleep(1)
        assert [m["data"]["stuck"] for m in world.moments(waits, "stuck")] == [True, False], "each is told once"
        assert world.moments(prints, "stuck") == [], "what prints makes progress"
        for job in (waits, prints):
            world.client.post(f"/v1/jobs/{job}/cancel")
            world.wait_end(job)
