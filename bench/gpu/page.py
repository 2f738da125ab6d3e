"""`python -m bench.gpu.page`: the tables of docs/gpu.md from bench/results/gpu.json, beside figures of others."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
NONE = ""
TITLES = {
    "cuda": "CUDA C++ (nvcc), a thread writes pinned memory", "pytorch": "PyTorch, three workers, pinned loader",
    "transformer": "GPT-2 of random weights, fine-tuned", "jax_program": "JAX", "cupy": "CuPy", "cupy_program": "CuPy",
    "dataloader": "PyTorch, default DataLoader, workers forked in each epoch",
    "persistent": "PyTorch, DataLoader with `persistent_workers`", "hf_trainer": "GPT-2, Hugging Face's Trainer, two workers",
    "lightning": "PyTorch Lightning, two workers", "compiled": "`torch.compile`, reduce-overhead, its pool of compilers",
    "triton": "a kernel in Triton, NVML watched beside it", "gloo": "DistributedDataParallel, one rank over gloo",
    "one_nccl": "DistributedDataParallel, one rank over NCCL", "malloc_async": "PyTorch on `cudaMallocAsync`",
    "expandable": "PyTorch, `expandable_segments:True`",
    "batching": "inference server, continuous batching", "streams": "CUDA C++: streams, events, host callbacks",
    "server": "inference server between requests", "nccl": "PyTorch on several GPUs, NCCL",
}  # fmt: skip
# Who, what was moved in GB (None = not said), seconds out and back, where it was published.
PUBLISHED: Sequence[tuple[str, float | None, float, float, str]] = (
    ("NVIDIA and CRIU, GTC 2024 poster", None, 21, 18, "the poster"),
    ("CRIUgpu", 56, 77, 39, "its paper, 2025"),
    ("nvsnap", 28, 89, 62, "its README, 2026"),
)
DURABLE_TARGET = 0.8


def measured(rows: Iterable[Row]) -> str:
    """One line a program and size, as it was measured."""
    heads = [
        "job",
        "GPU",
        "GPU memory",
        "image",
        "live: stood still",
        "final: durable",
        "restore",
        "out / back",
        "second save sent",
        "identical",
    ]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for r in rows:
        if not r.get("saves"):
            lines.append(f"| {_title(r)} | | {r.get('size', NONE)} |" + " |" * 6 + f" **no**: {_cause(r)} |")
            continue
        live = f"{r['frozen_seconds']:.1f} s" if r["saves"][0]["kind"] == "live" else NONE
        sent = f"{100 * r['sent_share']:.2g} %" if r.get("sent_share") is not None else NONE
        sent += f", least {100 * r['floor_share']:.2g} %" if r.get("floor_share") is not None else NONE
        same = "yes" if r["identical"] else "**no**"
        speed = f"{r['cuda_out_gb_s']:.1f} / {r['cuda_back_gb_s']:.1f} GB/s"
        sizes = f"{r['gpu_bytes'] / 1e9:.1f} GB | {r['image_bytes'] / 1e9:.1f} GB"
        times = f"{live} | {r['durable_seconds']:.1f} s | {r['restore_seconds']:.1f} s"
        chip = " ".join(r["device"].split()[1:2])
        lines.append(f"| {_title(r)} | {chip} | {sizes} | {times} | {speed} | {sent} | {same} |")
    return "\n".join(lines)


def beside(rows: Iterable[Row]) -> str:
    """The same steps by hand in the same run, where they were taken, with the targets."""
    lines = [
        "| job | memory | out | huge pages of it | back | dump, streamed | ours: live, durable against out + dump |",
        "|" + "---|" * 7,
    ]
    for r in rows:
        hand = r.get("by_hand")
        for v in (hand or {}).get("variants", ()):
            speed = f"{v['gpu_bytes'] / 1e9 / v['out_seconds']:.1f} GB/s"
            share = f"{100 * v['huge_share']:.0f} %"
            lines.append(f"| {_title(r)} | {v['variant']} | {speed} | {share} | {v['back_seconds']:.1f} s | | |")
        if hand:
            speed = f"{hand['gpu_bytes'] / 1e9 / hand['out_seconds']:.1f} GB/s"
            live = f"{r['live_ratio']:.2f}, " if "live_ratio" in r else NONE
            ratios = f"{live}{r['durable_ratio']:.2f} (target of the latter {DURABLE_TARGET})"
            share, dump = f"{100 * hand['huge_share']:.0f} %", f"{hand['dump_seconds']:.1f} s"
            lines.append(f"| {_title(r)} | then | {speed} | {share} | | {dump} | {ratios} |")
            huge = f"{100 * r['saves'][-1]['huge_share']:.0f} %"
            back = f"{r['gpu_bytes'] / 1e9 / r['cuda_back_gb_s']:.1f} s"
            lines.append(f"| {_title(r)} | ours | {r['cuda_out_gb_s']:.1f} GB/s | {huge} | {back} | | |")
    return "\n".join(lines) if len(lines) > 2 else "Not measured yet: `make bench-gpu` does."


def published(rows: Iterable[Row]) -> str:
    """Our largest row beside what others have published, with other chips and stores."""
    lines = ["| | GPU memory | until durable | back | GB/s out, back | source |", "|" + "---|" * 6]
    for who, gb, out, back, source in PUBLISHED:
        size = f"{gb:g} GB" if gb else "not said"
        speed = f"{gb / out:.1f}, {gb / back:.1f}" if gb else NONE
        lines.append(f"| {who} | {size} | {out:g} s | {back:g} s | {speed} | {source} |")
    if ours := [r for r in rows if r.get("identical") and r.get("gpus") == 1]:
        r = max(ours, key=lambda r: r["gpu_bytes"])
        gb, out, back = r["gpu_bytes"] / 1e9, r["durable_seconds"], r["restore_seconds"]
        speed = f"{gb / out:.1f}, {gb / back:.1f}"
        lines.append(f"| spotsurfer, {r['device']} | {gb:.1f} GB | {out:.1f} s | {back:.1f} s | {speed} | `{r['command']}` |")
    return "\n".join(lines)


def _title(r: Row) -> str:
    whole = str(r["name"])
    name = re.split(r"[ ,]", whole)[0]
    return TITLES.get(name, name) + whole[len(name) :]


def _cause(r: Row) -> str:
    found = re.search(r"exit(?:ed|_code)?\D{0,12}(\d+)", r.get("error", ""))
    return f"ended with {found[1]}" if found else (r.get("error", "").strip().splitlines() or ["nothing was measured"])[-1][:80]


TABLES = {"measured": measured, "by hand": beside, "published": published}


def filled(text: str, rows: Sequence[Row]) -> str:
    """The page with its tables made anew. Raises ValueError where one has no place."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: made by `python -m bench.gpu.page` -->", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"the page has no place for the table {name!r}: {begin} … {end}")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table(rows)}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> int:
    """Exit code 1 with `--check`: the page is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.page", description=__doc__)
    parser.add_argument("--rows", type=Path, default=ROOT / "bench/results/gpu.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/gpu.md")
    parser.add_argument("--check", action="store_true", help="change nothing; say whether it is up to date")
    options = parser.parse_args()
    text = options.page.read_text()
    made = filled(text, json.loads(options.rows.read_text()))
    if options.check:
        return 0 if made == text else 1
    options.page.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
