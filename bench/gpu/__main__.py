"""`python -m bench.gpu`: jobs on this machine's GPUs are saved, their machine is thrown away, and they go on in another one.

Each machine has namespaces, a disk in memory and an agent's engines of its own; the store is a folder in memory. A row is
written for each program and size: see docs/gpu.md. Needs root, NVIDIA GPUs with driver 580 or later, and the agent's runtime.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu import jobs
from bench.gpu.box import Place, played

HERE = Path(__file__).parent
# JAX takes three quarters of each GPU otherwise, more than the machine's memory has room for; and each process would choose by
# measuring how it multiplies, so that two undisturbed runs may differ.
JAX = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}


class Program(NamedTuple):
    """A row's job: a file of `programs/`, more words for it, and its environment."""

    file: str
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


PROGRAMS = {
    "pytorch": Program("pytorch.py"),
    "dataloader": Program("dataloader.py"),
    "persistent": Program("dataloader.py", ("persistent",)),
    "hf_trainer": Program("hf_trainer.py"),
    "lightning": Program("lightning_fit.py"),
    "compiled": Program("compiled.py"),
    "triton": Program("triton_kernel.py"),
    "gloo": Program("one_rank.py", ("gloo",)),
    "one_nccl": Program("one_rank.py", ("nccl",)),
    "transformer": Program("transformer.py"),
    "jax_program": Program("jax_program.py", (), JAX),
    "cupy_program": Program("cupy_program.py"),
    "malloc_async": Program("allocators.py", (), {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "expandable": Program("allocators.py", (), {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "server": Program("server.py"),
    "batching": Program("batching.py"),
    "streams": Program("streams.cu"),
    "nccl": Program("nccl.py", (), {"SPOTSURFER_NCCL": "sockets"}),
}
HERE_ALONE = re.compile(r" --(?:(?:python|runtime|out|work) \S+|verbose)")  # words of a command that say nothing elsewhere
Row = dict[str, Any]


def main() -> int:
    """Exit code 0: all that was asked for came back identical."""
    options = _parser().parse_args()
    options.runtime = options.runtime.resolve()
    Path("/var/lib/spotsurfer").mkdir(exist_ok=True)
    if not options.standin:
        Path("/sys/kernel/mm/transparent_hugepage/enabled").write_text("always" if options.huge else "madvise")
    rows: list[Row] = []
    for run in options.runs:
        name, size, *flags = [*run.split(":"), ""][:3]
        options.hold = "hold" in flags
        began = time.monotonic()
        try:
            rows.append(_row(name, float(size or 1), options))
        except Exception as e:  # the next program may work
            rows.append({"name": name, "size": size, "error": str(e)[-1500:], "identical": False})
        rows[-1]["took_seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps({k: v for k, v in rows[-1].items() if k not in ("saves", "brought")}), flush=True)
        options.out.write_text(json.dumps(rows, indent=1))
    return 0 if all(r["identical"] for r in rows) else 1


def _row(name: str, size: float, options: argparse.Namespace) -> Row:
    plan = _plan(name, size, options)
    work = options.work
    shutil.rmtree(work, ignore_errors=True)
    (work / "store").mkdir(parents=True)
    hand = _machine("by hand", plan, options) if options.by_hand else None
    saved = _machine("save", plan, options)
    restored = _machine("restore", plan, options)
    shutil.rmtree(work / "store")
    (work / "store").mkdir()
    plain = _machine("undisturbed", plan, options)
    whole = saved["out"][: len(plain["out"])] if not restored["out"] else saved["out"] + restored["out"]
    same = restored["code"] in (0, 7) and whole == plain["out"]
    final, second = saved["saves"][-1], next(iter(saved["saves"][1:]), None)
    gpu_bytes = max(s["gpu_bytes"] for s in saved["saves"])
    live = saved["saves"][0]
    return {
        "name": name, "gpus": len(restored["facts"]["GPU uuids"].split()),
        "gpu_bytes": gpu_bytes, "image_bytes": final["image_bytes"],
        "frozen_seconds": live["frozen_seconds"], "durable_seconds": final["durable_seconds"],
        "restore_seconds": restored["seconds"], "first_output_seconds": restored["first_output_seconds"],
        "cuda_out_gb_s": gpu_bytes / 1e9 / (final["device_out_seconds"] - final["lock"]),
        "cuda_back_gb_s": gpu_bytes / 1e9 / restored["back"],
        "sent_share": second["new_bytes"] / second["image_bytes"] if second else None,
        "floor_share": saved["floor"], "brought": restored["brought"],
        "identical": same, "command": f"python -m bench.gpu {HERE_ALONE.sub('', ' '.join(sys.argv[1:]))}", "date": options.date,
        "device": _device(restored, options), "driver": restored["facts"]["GPU driver"], "engine": saved["rung"],
        **({} if hand is None else _beside(hand, live, final)),
        "saves": saved["saves"], "differs": None if same else _differs(whole, plain["out"], restored),
    }  # fmt: skip


def _device(restored: Row, options: argparse.Namespace) -> str:
    return "a stand-in, no GPU" if options.standin else str(restored["facts"]["GPU"])


def _beside(hand: Row, live: Row, final: Row) -> Row:
    """Ours against the sum of the copy and the streamed dump by hand, in the same run."""
    whole = hand["out_seconds"] + hand["dump_seconds"]
    ratios = {"durable_ratio": final["durable_seconds"] / whole}
    if live["kind"] == "live":
        ratios["live_ratio"] = live["frozen_seconds"] / whole
    return {"by_hand": hand, **ratios}


def _differs(ours: str, theirs: str, restored: Row) -> Row:
    a, b = ours.splitlines(), theirs.splitlines()
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return {"line": at, "ours": a[at : at + 2], "theirs": b[at : at + 2], "code": restored["code"], "err": restored["err"]}


def _plan(name: str, size: float, options: argparse.Namespace) -> Row:
    if options.standin:
        return _with(jobs.standin(int(size * 2**30), options.steps), options)
    if name == "cuda":  # the tests' own program, which counts bytes and shorter turns
        return _with(jobs.compiled(int(size * 2**30), options.steps * 3, "pinned"), options)
    program = PROGRAMS[name]
    source, words = HERE / "programs" / program.file, [str(size), str(options.steps), *program.words]
    if source.suffix == ".cu":
        job = jobs.built(source, words)
    else:
        job = {"command": [options.python, source.name, *words], "files": [str(source)], "environment": {}}
    return _with({**job, "environment": dict(program.environment)}, options)


def _with(job: Row, options: argparse.Namespace) -> Row:
    return job | {
        "saves": options.saves.split(","),
        "first": options.first, "between": options.between, "threads": options.threads, "compression": options.compression,
        "memory_bytes": options.memory_gb << 30, "swap": options.swap, "by_hand": options.by_hand,
        "print_workers": options.print_workers, "hold": options.hold, "compact": options.compact, "standin": options.standin,
    }  # fmt: skip


def _machine(scene: str, plan: Row, options: argparse.Namespace) -> Row:
    """One scene on a machine of its own."""
    module, words = ("bench.gpu.byhand", ()) if scene == "by hand" else ("bench.gpu.scenes", (scene,))
    return played(Place(options.runtime, options.work, options.limit, options.verbose), scene, module, *words, json.dumps(plan))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="PROGRAM[:GB[:hold]]",
        help=f"{', '.join(PROGRAMS)}, cuda; how much GPU memory; other threads held",
    )
    parser.add_argument(
        "--runtime", type=Path, default=Path("build/runtime/current"), help="the agent's, unpacked (default %(default)s)"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("/dev/shm/bench-gpu"), help="folder of the store (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("bench/results/gpu.json"))
    parser.add_argument("--python", default=shutil.which("python3") or "python3", help="of the jobs")
    parser.add_argument("--saves", default="live,live,final")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--first", type=int, default=20, help="the first save comes after this step")
    parser.add_argument("--between", type=int, default=30, help="steps between two saves")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument(
        "--print-workers", action=argparse.BooleanOptionalAction, default=True, help="processes that make fingerprints"
    )
    parser.add_argument("--compression", default="none")
    parser.add_argument("--memory-gb", type=int, default=0, help="that a save may hold; 0: half of what is free")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one machine")
    parser.add_argument("--huge", action=argparse.BooleanOptionalAction, default=True, help="transparent huge pages everywhere")
    parser.add_argument("--swap", action="store_true", help="what was on one GPU comes back on another")
    parser.add_argument("--by-hand", default="", metavar="LIST", help="first without the agent: plain,again,compacted,touched")
    parser.add_argument("--compact", action="store_true", help="the kernel makes huge blocks before GPU memory comes out")
    parser.add_argument("--standin", action="store_true", help="the tests' stand-in takes the driver's and the program's place")
    parser.add_argument(
        "--date", default=time.strftime("%Y-%m-%d", time.gmtime()), help="of the rows (default today, %(default)s)"
    )
    parser.add_argument("--verbose", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
