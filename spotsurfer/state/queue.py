"""The gates that a queued job passes before it may have its first machine, by the column `job.waits_for`."""

from __future__ import annotations

NEVER = "what it waits for can't come any more"
DEPENDENCY, BEGIN, ARRAY = "dependency", "begin", "array"  # "" = it may have a machine
WAITS_WORDS = {
    DEPENDENCY: "it waits for other jobs to end",
    BEGIN: "it may not begin yet",
    ARRAY: "as many tasks of its array run as may",
}
