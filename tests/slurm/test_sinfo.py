"""What programs ask `sinfo` about partitions."""

from __future__ import annotations

import subprocess
from pathlib import Path

from slurm.ours import programs
from slurm.played import Server


def test_toils_question_has_six_words_in_each_line(tmp_path: Path) -> None:
    """It chooses a partition by time and priority (`toil.batchSystems.slurm`), and gives up choosing if one word is missing."""
    server = Server(tmp_path / "api.sock")
    try:
        words = ["sinfo", "-a", "-o", "%P %G %l %p %c %m"]
        done = subprocess.run(
            words, env=programs(tmp_path / "bin", tmp_path / "api.sock"), capture_output=True, text=True, check=True
        )
    finally:
        server.close()
    head, *lines = done.stdout.splitlines()
    assert head == "PARTITION GRES TIMELIMIT PRIO_TIER CPUS MEMORY"
    assert [line.split(" ")[:4] for line in lines] == [["main*", "(null)", "infinite", "1"]]
    assert all(len(line.split(" ")) == 6 for line in lines)
