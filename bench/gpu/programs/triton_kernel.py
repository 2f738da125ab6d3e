"""A kernel written in Triton, with another one compiled every 50 steps; beside it a process that watches the GPU by NVML."""

import ctypes
import subprocess
import sys
import time

import torch
import triton
import triton.language as tl


@triton.jit
def mix(words, count, step, BLOCK: tl.constexpr, TURN: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    old = tl.load(words + at, mask=there)
    tl.store(words + at, old * 1664525 + at.to(tl.int32) * TURN + step, mask=there)


def watch() -> None:
    """Does not print how busy the GPU is, for that differs from run to run; it ends with an error if a question has none."""
    nvml, handle, used = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_uint * 2)()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    while sys.stdin.readline():
        print("answer", nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(used)), flush=True)


def main() -> None:
    size, steps = float(sys.argv[1]), int(sys.argv[2])
    words = torch.arange(int(size * 2**30 / 4), dtype=torch.int32, device="cuda")
    watcher = subprocess.Popen([sys.executable, __file__, "watch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for i in range(steps + 1):
        mix[(triton.cdiv(words.numel(), 1024),)](words, words.numel(), i, BLOCK=1024, TURN=2 * (i // 50) + 1)
        watcher.stdin.write("?\n")
        watcher.stdin.flush()
        print("step", i, int(words[:: 1 << 16].sum(dtype=torch.int64)), watcher.stdout.readline().strip(), flush=True)
        time.sleep(0.04)
    print("final", int(words.sum(dtype=torch.int64)), flush=True)
    watcher.stdin.close()
    print("watcher ended with", watcher.wait(), flush=True)


if __name__ == "__main__":
    watch() if sys.argv[1] == "watch" else main()
