"""Threads that are held stand still, the spared one works, and all go on afterwards."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.linux.ptrace import CantHold, Holder, thread_of
from support.tree import ROOT

COUNT = 4


class Program:
    """`threads.c`, with what its threads count."""

    def __init__(self, folder: Path) -> None:
        binary, self._page = folder / "threads", folder / "page"
        subprocess.run(["gcc", "-O1", "-pthread", "-o", str(binary), str(ROOT / "tests/support/threads.c")], check=True)
        self.process = subprocess.Popen([str(binary), str(self._page), str(COUNT)])
        end = time.monotonic() + 20
        while not (self._page.exists() and self._page.stat().st_size and all(self.threads())):
            assert time.monotonic() < end
            time.sleep(0.01)

    def counts(self) -> tuple[int, ...]:
        return struct.unpack_from(f"{COUNT}q", self._page.read_bytes())

    def threads(self) -> tuple[int, ...]:
        return struct.unpack_from(f"{COUNT}q", self._page.read_bytes(), 8 * COUNT)

    def ran(self, seconds: float = 0.3) -> list[int]:
        """Which threads ran in that time."""
        before = self.counts()
        time.sleep(seconds)
        return [i for i, (a, b) in enumerate(zip(before, self.counts(), strict=True)) if a != b]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_all_threads_but_the_spared_one_stand_still_and_go_on(program: Program) -> None:
    holder = Holder()
    pid = program.process.pid
    assert program.ran(1.0) == [0, 1, 2, 3]
    holder.hold([pid], {program.threads()[2]})
    assert program.ran() == [2]
    assert holder.held == set(program.threads()) - {program.threads()[2]}
    holder.hold([pid], {program.threads()[2]})  # once more changes nothing
    assert program.ran() == [2]
    holder.release()
    assert program.ran(1.0) == [0, 1, 2, 3]
    holder.release()


def test_a_held_program_can_be_killed_and_a_signal_waits(program: Program) -> None:
    holder = Holder()
    pid = program.process.pid
    holder.hold([pid], ())
    os.kill(pid, signal.SIGUSR1)  # would end it
    assert program.ran() == []
    assert program.process.poll() is None
    holder.release()
    # 0: the tracer, which is its parent too here, heard of the end first. By itself it never ends.
    assert program.process.wait(10) in (-signal.SIGUSR1, 0)


def test_who_is_traced_already_is_not_held_and_none_of_the_others(program: Program) -> None:
    first, second = Holder(), Holder()
    pid = program.process.pid
    first.hold([pid], set(program.threads()) - {program.threads()[3]})
    with pytest.raises(CantHold, match="can't be held still"):
        second.hold([pid], ())
    assert second.held == frozenset()
    first.release()
    assert program.ran(1.0) == [0, 1, 2, 3]


def test_a_process_that_is_gone_is_nothing_to_hold(program: Program) -> None:
    program.process.kill()
    program.process.wait()
    holder = Holder()
    holder.hold([program.process.pid], ())
    assert holder.held == frozenset()


def test_a_thread_is_found_by_its_number(program: Program) -> None:
    pid = program.process.pid
    assert thread_of(pid, program.threads()[1]) == program.threads()[1]
    assert thread_of(pid, 1) is None


@pytest.mark.real
def test_threads_of_a_frozen_group_are_held_before_their_next_instruction(program: Program) -> None:
    group = JobCgroup.below_own(f"held-{os.getpid()}")
    group.create()
    pid, holder = program.process.pid, Holder()
    try:
        for entry in group.entries():
            Path(entry).write_text(str(pid))
        holder.hold([pid], {program.threads()[2]})
        group.ask_to_freeze()
        holder.release()  # handed over: the group keeps them
        assert program.ran() == []
        before = program.counts()
        holder.hold([pid], {program.threads()[2]}, thaw=group.thaw)
        assert program.ran() == [2]
        after = program.counts()
        assert [before[i] == after[i] for i in (0, 1, 3)] == [True] * 3
    finally:
        holder.release()
        group.thaw()
        program.process.kill()
        program.process.wait()
        group.remove()
