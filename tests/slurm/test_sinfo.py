"""What programs ask `sinfo` about partitions."""

from __future__ import annotations

import subprocess


def test_toils_question_has_six_words_in_each_line(environment: dict[str, str]) -> None:
    """It chooses a partition by time and priority (`toil.batchSystems.slurm`), and gives up choosing if one word is missing."""
    words = ["sinfo", "-a", "-o", "%P %G %l %p %c %m"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    head, *lines = done.stdout.splitlines()
    assert head == "PARTITION GRES TIMELIMIT PRIO_TIER CPUS MEMORY"
    assert [line.split(" ")[:4] for line in lines] == [["main*", "(null)", "infinite", "1"]]
    assert all(len(line.split(" ")) == 6 for line in lines)
