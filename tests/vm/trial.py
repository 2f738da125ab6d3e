"""What is tried on guests: groups of trials, each on a freshly booted machine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

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
    "SPOTSURFER_TESTS_PATIENCE": str(PATIENCE),
    "SEED": "guest",  # there is no git to ask
    "TMPDIR": "/var/tmp",
    "PYTHONPATH": "tests:.",
}
TOOLS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Trial:
    """One line of the table: shell text that must end with 0 in the folder of a checkout."""

    what: str
    command: str
    seconds: float = SECONDS

    def text(self, at: Path) -> str:
        """The command with what it needs around it, for a checkout there."""
        here = {"SPOTSURFER_RUNTIME__PATH": f"{at}/build/runtime", "PATH": f"{at}/.venv/bin:{TOOLS}"}
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in {**ENVIRONMENT, **here}.items())
        return f"cd {at} && export {variables} && {self.command}"


@dataclass(frozen=True)
class Group:
    """Trials that run one after the other, in one guest, or on this host where they boot guests themselves."""

    name: str
    suite: str  # of Debian
    trials: tuple[Trial, ...]
    root: str = "ext4"
    memory_mebibytes: int = 6144  # tests take some for machines with 4 GiB
    within: bool = True  # a guest that we boot


def tests(what: str, *ids: str) -> Trial:
    """Tests of this project, run in the guest."""
    options = f"-p no:cacheprovider -q --timeout={SECONDS:.0f}"
    return Trial(what, f"python -m pytest {options} {' '.join(shlex.quote(f'tests/{i}') for i in ids)}")


MISS = "boxes/test_near_miss.py::"
MEMORY = "agent/test_memory_guard.py::"
FIT = Trial("`spotsurfer doctor` finds the machine fit", "spotsurfer doctor")
WELL = Trial("no unit of systemd has failed", 'systemctl --failed; test -z "$(systemctl --failed --quiet --plain)"')
# So large that it runs longer than a save and the start of a second box take.
FIRST_JOB = Trial("README's first job is saved, moved, and ends identical", "bash tests/vm/first_job.sh 1000000")
LAB = Group(
    "lab",
    "bookworm",
    (
        FIT,
        Trial(
            "in a scope of systemd: usage, near miss, and a kill for memory that is no end",
            "python -m vm.guarded",
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
        FIRST_JOB,
        WELL,
    ),
)
# What depends on the file system that the machine's root is, and on the release.
DISK = (
    FIT,
    Trial("a job on its root is saved live and for good, restored twice, and ends identical", "sh tests/vm/on_root.sh"),
    FIRST_JOB,
    WELL,
)
XFS, BTRFS, TRIXIE = (
    Group(name, suite, DISK, root, memory_mebibytes=4096)
    for name, suite, root in (("xfs", "bookworm", "xfs"), ("btrfs", "bookworm", "btrfs"), ("trixie", "trixie", "ext4"))
)
MACHINES = Group(
    "machines",
    "bookworm",
    tuple(
        tests(what, f"vm/machines.py::test_{test}")
        for what, test in (
            ("cloud-init starts a job, which is saved live and ends identical; no unit has failed", "a_start[m6i.large]"),
            ("the same on Debian 13", "a_start[c6i.large]"),
            ("a planned move to a second machine; it ends identical", "a_planned_move"),
            ("after a notice the job goes on from its final save on another machine", "a_notice"),
            ("a machine vanishes: the job goes on from its last live save on another one", "a_machine_that_vanishes"),
            ("a machine with a running job is booted again", "a_reboot"),
            ("an image of a newer processor is refused on an older one before it is fetched", "an_older_processor"),
        )
    ),
    memory_mebibytes=2048,
    within=False,
)
GROUPS = {g.name: g for g in (LAB, XFS, BTRFS, TRIXIE, MACHINES)}
