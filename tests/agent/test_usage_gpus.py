"""Use of GPUs: absent where there are none, never an error, never a wait; against a stand-in of NVIDIA's library."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from spotsurfer_agent.host.usage import FRESH_SECONDS, Gpus, GpuSample, look_at_gpus


class Nvml:
    """Two cards: one busy, one that does not tell its power."""

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUtilizationRates(self, card: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=80 if card == 0 else 20)

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:
        if card == 1:
            raise RuntimeError("Not Supported")
        return 350_000

    def nvmlDeviceGetMemoryInfo(self, card: int) -> SimpleNamespace:
        return SimpleNamespace(used=(card + 1) << 30)


SEEN = GpuSample(0.5, 3 << 30, 350.0)


def test_cards_are_summed_and_what_one_does_not_tell_is_nothing() -> None:
    assert look_at_gpus(Nvml(), [0, 1]) == SEEN


def test_a_card_that_does_not_tell_whether_it_works_leaves_the_whole_unknown() -> None:
    class Mig(Nvml):
        def nvmlDeviceGetUtilizationRates(self, card: int) -> SimpleNamespace:
            if card == 1:
                raise RuntimeError("Not Supported")
            return super().nvmlDeviceGetUtilizationRates(card)

    assert look_at_gpus(Mig(), [0, 1]) == GpuSample(None, 3 << 30, 350.0)


def test_without_a_gpu_nothing_is_loaded(tmp_path: Path) -> None:
    def load() -> object:
        raise AssertionError("loaded")

    gpus = Gpus(tmp_path, load)
    assert gpus.newest() == ()
    assert gpus._thread is None


def test_with_one_its_last_word_counts_while_it_is_fresh(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    late, library = [0.0], Nvml()
    gpus = Gpus(tmp_path, lambda: library, lambda: late[0])
    until_seen(gpus)
    assert gpus.newest() == (SEEN,)
    late[0] = 10 * FRESH_SECONDS
    assert gpus.newest() in ((), (SEEN,))


def until_seen(gpus: Gpus) -> None:
    end = time.monotonic() + 10
    while not gpus.newest():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("error", [None, ModuleNotFoundError("pynvml"), OSError("no driver"), RuntimeError("lost")])
def test_a_library_that_fails_is_a_machine_without(tmp_path: Path, error: Exception | None) -> None:
    (tmp_path / "nvidiactl").touch()

    def load() -> object:
        if error is None:
            return None
        raise error

    gpus = Gpus(tmp_path, load)
    gpus.newest()
    assert gpus._thread is not None
    gpus._thread.join(10)
    assert gpus.newest() == ()
