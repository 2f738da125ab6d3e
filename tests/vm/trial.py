"""What is tried on guests: groups of trials, each on a freshly booted machine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from vm.checkout import PLACE

# A guest is ten to thirty times slower than its host, and the host has other things to do.
PATIENCE = 10
SECONDS = 1800.0  # that one trial may take
# As the Makefile's TEST_ENVIRONMENT: nobody asks a cloud who this machine is. TMPDIR: on the disk, not in memory.
ENVIRONMENT = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "NO_GCE_CHECK": "true",
    "GOOGLE_APPLICATION_CREDENTIALS": "/dev/null",
    "SPOTSURFER_RUNTIME__PATH": f"{PLACE}/build/runtime",
    "SPOTSURFER_TESTS_PATIENCE": str(PATIENCE),
    "SEED": "guest",  # there is no git to ask
    "TMPDIR": "/var/tmp",
    "PATH": f"{PLACE}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


@dataclass(frozen=True)
class Trial:
    """One line of the table: shell text that must end with 0 in the guest, in the folder of the checkout."""

    what: str
    command: str
    seconds: float = SECONDS

    @property
    def text(self) -> str:
        """The command with what it needs around it."""
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in ENVIRONMENT.items())
        return f"cd {PLACE} && export {variables} && {self.command}"


@dataclass(frozen=True)
class Group:
    """Trials that one guest runs one after the other."""

    name: str
    suite: str  # of Debian
    trials: tuple[Trial, ...]
    memory_mebibytes: int = 6144  # tests take some for machines with 4 GiB


def tests(what: str, *ids: str) -> Trial:
    """Tests of this project, run in the guest."""
    options = f"-p no:cacheprovider -q --timeout={SECONDS:.0f}"
    return Trial(what, f"python -m pytest {options} {' '.join(shlex.quote(f'tests/{i}') for i in ids)}")


MISS = "boxes/test_near_miss.py::"
MEMORY = "agent/test_memory_guard.py::"
LAB = Group(
    "lab",
    "bookworm",
    (
        Trial("`spotsurfer doctor` finds the machine fit", "spotsurfer doctor"),
        Trial(
            "in a scope of systemd: usage, near miss, and a kill for memory that is no end",
            "PYTHONPATH=tests python -m vm.guarded",
        ),
        tests("a job is frozen before memory ends", f"{MEMORY}test_it_is_frozen_before_the_kernel_kills[words0]"),
        tests("… saved, and goes on as if nothing had been", f"{MEMORY}test_it_goes_on_elsewhere_as_if_nothing_had_been"),
        tests(
            "a near miss saves the job and moves it to a larger machine", f"{MISS}test_it_ends_identical_on_a_larger_machine"
        ),
        tests(
            "out of memory, without a checkpoint: it begins again on a larger machine",
            f"{MISS}test_one_without_checkpoints_is_killed_and_begins_again_where_there_is_more",
        ),
        tests(
            "out of memory, with a checkpoint: it goes on from it on a larger machine",
            f"{MISS}test_one_with_a_checkpoint_that_is_killed_goes_on_from_it",
        ),
        tests("the limits of a box are in force", "boxes/test_box_walls.py::test_limits_are_in_force"),
        tests("a job that tries to break out gets nowhere", "agent/test_walls.py"),
        Trial(
            "README's first job is saved, moved, and ends identical",
            f"cd $(mktemp -d) && bash {PLACE}/tests/vm/first_job.sh {PLACE}",
        ),
        Trial("no unit of systemd has failed", 'systemctl --failed; test -z "$(systemctl --failed --quiet --plain)"'),
    ),
)
GROUPS = {g.name: g for g in (LAB,)}
