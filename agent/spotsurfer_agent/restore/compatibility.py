"""What an image needs of the machine that restores it, and how programs are kept to older processors' features."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire import gpu_facts
from spotsurfer_wire.linux import procfs
from spotsurfer_wire.messages import StepRun

from spotsurfer_agent.host import network, root_fs

# ---- Caps: limits on the processor features that programs use, so that they can continue on an older processor
#
# A program looks at the processor once, when it starts, and chooses its routines. If it continues on a processor without one of
# the instructions, it dies. So each library that is known to choose gets a setting that keeps it within a level of the x86-64
# psABI. These are switches, not a wall: code that asks the processor directly uses what is there.

# Flags of /proc/cpuinfo that each level adds (x86-64 psABI, table "Micro-Architecture Levels"); `abm` is lzcnt, `pni` is sse3.
# COMMON adds flags that every server has: they are listed because no switch below turns them off.
COMMON = frozenset(
    [
        "fpu",
        "cx8",
        "cmov",
        "mmx",
        "fxsr",
        "sse",
        "sse2",
        "aes",
        "pclmulqdq",
        "rdrand",
        "rdtscp",
        "fsgsbase",
        "xsaveopt",
        "xsavec",
        "xsaves",
        "erms",
    ]
)
V2 = COMMON | frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
V3 = V2 | frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
# glibc's names (2.33 and newer) of features to switch off (manual, "Hardware Capability Tunables").
_AVX512 = "AVX512F AVX512VL AVX512BW AVX512CD AVX512DQ AVX512ER AVX512PF AVX512_VBMI AVX512_VBMI2 AVX512_VNNI AVX512_BITALG"
_BEYOND_V3 = f"{_AVX512} AVX_VNNI AVX512_BF16 AVX512_FP16 AMX_TILE AMX_INT8 AMX_BF16 VAES VPCLMULQDQ GFNI"
_NUMPY = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
_BEYOND_V2 = f"{_BEYOND_V3} AVX2 AVX FMA F16C BMI1 BMI2 LZCNT MOVBE XSAVE XSAVEC"


@dataclass(frozen=True, slots=True)
class Cap:
    """A level: the instructions that an image may need at most, and the switches that enforce it."""

    name: str
    flags: frozenset[str]
    environment: dict[str, str]


def _glibc(names: str) -> str:
    return "glibc.cpu.hwcaps=" + ",".join(f"-{n}" for n in names.split())


# Variable -> its reader and the documentation:
#   GLIBC_TUNABLES         the C library and its loader: GNU C Library manual, "Hardware Capability Tunables"
#   OPENBLAS_CORETYPE      OpenBLAS, whose kernels are named by processor: its README, "Support for multiple targets"
#   MKL_ENABLE_INSTRUCTIONS  Intel MKL: developer guide, "Instruction Set Specific Dispatching on Intel Architectures"
#   MKL_CBWR               Intel MKL on processors of others, which the variable above does not reach: same guide, "Conditional
#                          Numerical Reproducibility"; COMPATIBLE is its lowest path, AVX2 the one of level 3
#   ONEDNN_MAX_CPU_ISA     oneDNN: developer guide, "CPU Dispatcher Control"
#   NPY_DISABLE_CPU_FEATURES  NumPy: reference, "CPU/SIMD optimizations"; of a name that it does not know it only warns
#   ATEN_CPU_CAPABILITY    PyTorch: notes, "CPU threading and dispatch" (default, avx2, avx512)
#   OPENSSL_ia32cap        OpenSSL: manual page OPENSSL_ia32cap(3); bits of CPUID leaf 1, then of leaf 7, that are taken away
CAPS = {
    "x86-64-v3": Cap(
        "x86-64-v3",
        V3,
        {
            "GLIBC_TUNABLES": _glibc(_BEYOND_V3),
            "OPENBLAS_CORETYPE": "Haswell",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "MKL_CBWR": "AVX2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "NPY_DISABLE_CPU_FEATURES": _NUMPY,
            "ATEN_CPU_CAPABILITY": "avx2",
            "OPENSSL_ia32cap": ":~0x700fc2b0000",
        },
    ),
    "x86-64-v2": Cap(
        "x86-64-v2",
        V2,
        {
            "GLIBC_TUNABLES": _glibc(_BEYOND_V2),
            "OPENBLAS_CORETYPE": "Nehalem",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "MKL_CBWR": "COMPATIBLE",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "NPY_DISABLE_CPU_FEATURES": f"AVX F16C FMA3 AVX2 {_NUMPY}",
            "ATEN_CPU_CAPABILITY": "default",
            "OPENSSL_ia32cap": "~0x3040100000000000:~0x700fc2b0128",
        },
    ),
}
CAPS["portable"] = CAPS["x86-64-v3"]  # on every server of the large clouds since 2013


def cpu_cap_environment(cpu: str) -> dict[str, str]:
    """Variables for programs under this cap; none for "any" or on other processor architectures."""
    cap = CAPS.get(cpu)
    return dict(cap.environment) if cap is not None and platform.machine() == "x86_64" else {}


def in_force(environment: dict[str, str]) -> str:
    """The cap that these variables of a process set; empty for none."""
    return next((c.name for c in CAPS.values() if all(environment.get(k) == v for k, v in c.environment.items())), "")


def capped(facts: dict[str, str], level: str) -> dict[str, str]:
    """Facts of an image or a machine for the comparison, without instructions beyond the cap.

    The register state stays in: it is saved and restored as a whole, used or not.
    """
    cap = CAPS.get(level)
    if cap is None:
        return facts
    own = set(facts.get("cpu instructions", "").split())
    return {**facts, "cpu instructions": " ".join(sorted(own & cap.flags))}


# ---- Facts: what an image needs of the machine that restores it, compared before a restore
#
# Each fact is a line of text. `RULES` below decides by name how it is compared; facts without a rule are for people.

# Instruction sets that a program may have chosen at its start, without those that only the kernel uses.
INSTRUCTIONS = re.compile(
    r"fpu|cx8|cmov|mmx\w*|fxsr\w*|sse\w*|ssse3|pni|sse4_[12]|popcnt|aes|pclmulqdq|avx\w*|fma\w*|f16c|rdrand|rdseed|adx|movbe|bmi[12]"
    r"|abm|lahf_lm|sha_ni|sha512|sm3|sm4|vaes|vpclmulqdq|gfni|clflush\w*|clwb|fsgsbase|erms|fsrm|rtm|hle|cx16|xsave\w*|amx_\w+|movdiri"
    r"|movdir64b|serialize|rdpid|rdtscp|pku|ospke|3dnow\w*|xop|tbm|fma4|misalignsse|wbnoinvd|cldemote|waitpkg|enqcmd|user_shstk"
)
# Parts of the saved register state: their layout must be the same.
REGISTERS = ("fpu", "sse", "avx", "avx512f", "pku", "ospke", "amx_tile", "xsaves", "xsavec", "user_shstk")
NUMBERS = "inode numbers"  # how the disk assigns them, if a program knows a file by its number
ORDER = "order of folders"  # how the disk assigns positions in folders, if a program was listing one
NO_IMAGE = "none: the machine's own root"
HOST = "host name"  # of the job
HIDDEN = ("/dev/", "/proc/", "/sys/", "/run/", "/tmp/", "/var/tmp/", "/memfd:", "/SYSV", "/anon_hugepage")  # noqa: S108


def machine_facts(criu: str, base: str, mounts: Iterable[str], image: str = "") -> dict[str, str]:
    """Facts of this machine. `image` is the digest of the container image that is the job's root."""
    flags = _cpu_flags(Path("/proc/cpuinfo").read_text())
    return {
        "machine": platform.machine(),
        "cpu instructions": " ".join(sorted(f for f in flags if INSTRUCTIONS.fullmatch(f) or platform.machine() != "x86_64")),
        "cpu registers": " ".join(f for f in REGISTERS if f in flags),
        "page size": str(os.sysconf("SC_PAGE_SIZE")),
        "CRIU": criu,
        "cpu check": "our own, CRIU's is off (--cpu-cap=none)",
        "kernel": platform.release(),
        "folder": base,
        "container image": image or NO_IMAGE,
        "mounts": " ".join(sorted(mounts)),
        "kernel's switches in /proc": " ".join(root_fs.proc_of_machine()),
    }


@functools.cache
def processor() -> str:
    """This machine's processor for people: its name, and a hash of the compared facts."""
    text = Path("/proc/cpuinfo").read_text()
    name = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")
    facts = machine_facts("", "", ())
    compared = "\n".join(facts[key] for key in ("machine", "cpu instructions", "cpu registers", "page size"))
    return f"{name or platform.machine()} ({hashlib.sha256(compared.encode()).hexdigest()[:8]})"


def plain(base: str, image: str = "") -> dict[str, str]:
    """The facts that matter to a job that starts anew from its files, in the same root."""
    return {
        "machine": platform.machine(),
        "kernel": platform.release(),
        "folder": base,
        "container image": image or NO_IMAGE,
    }


def step(runs: Sequence[StepRun]) -> dict[str, str]:
    """For people: the image's step of the job."""
    return {"step": f"{runs[-1].number + 1}: {runs[-1].name}"} if runs else {}


def host(pids: Iterable[int]) -> dict[str, str]:
    """The job's host name, which all of its processes share."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it ends
            return {HOST: network.hostname_of_process(pid)}
    return {}


def _cpu_flags(text: str) -> set[str]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def files(pids: Iterable[int], base: str, place: Callable[[str], str] = str, written: Sequence[str] = ()) -> dict[str, str]:
    """Facts of the processes: mapped or open files outside of the scratch, and the cap that the processes started with.

    The processes stand still. `place` maps a path of the job to one on this machine. Files below `written` are left out,
    because they keep growing.
    """
    paths: set[str] = set()
    pids = list(pids)
    for pid in pids:
        paths |= _mapped(pid) | _opened(pid)
    hidden = (*HIDDEN, *(folder.rstrip("/") + "/" for folder in (base, *written)))
    found = {f"file {p}": file_fact(place(p)) for p in sorted(paths) if p.startswith("/") and not p.startswith(hidden)}
    caps = {_cap(pid) for pid in pids}
    return found | ({"cpu cap": caps.pop()} if len(caps) == 1 and caps != {""} else {})


def _cap(pid: int) -> str:
    """The cap of this process and its libraries; one process without a cap makes the whole image uncapped."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return ""
    return in_force(dict(w.split("=", 1) for w in words if "=" in w))


def _mapped(pid: int) -> set[str]:
    try:
        names = [m.name for m in procfs.mappings(procfs.text(pid, "maps"))]
    except OSError:
        return set()
    return {name for name in names if name.startswith("/") and not name.endswith(" (deleted)")}


def _opened(pid: int) -> set[str]:
    found = set()
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            name = str(fd.readlink())
            if name.startswith("/") and not name.endswith(" (deleted)"):
                found.add(name)
    except OSError:
        return found
    return found


def file_fact(path: str) -> str:
    """Size and build-id of a file, or that it is missing."""
    try:
        st = Path(path).stat()
        if not os.path.isfile(path):  # noqa: PTH113
            return "a folder" if os.path.isdir(path) else "special"  # noqa: PTH112
        return f"{st.st_size} bytes{build_id(path)}"
    except OSError:
        return "absent"


def build_id(path: str) -> str:
    """ ", build-id …" of an ELF file (64 bit); empty for others."""
    try:
        with Path(path).open("rb") as f:
            head = f.read(64)
            if head[:5] != b"\x7fELF\x02":
                return ""
            offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
            f.seek(offset)
            table = f.read(size * min(count, 64))
            for at in range(0, len(table) - 55, size):
                kind, begin, length = (
                    struct.unpack_from(fmt, table, at + o)[0] for fmt, o in (("<I", 0), ("<Q", 8), ("<Q", 32))
                )
                if kind == 4:
                    f.seek(begin)
                    if found := _note(f.read(min(length, 65536))):
                        return f", build-id {found}"
    except (OSError, struct.error):
        return ""
    return ""


def _note(data: bytes) -> str:
    at = 0
    while at + 12 <= len(data):
        names, length, kind = struct.unpack_from("<III", data, at)
        body = at + 12 + (names + 3) // 4 * 4
        if kind == 3 and data[at + 12 : at + 15] == b"GNU":
            return data[body : body + length].hex()
        at = body + (length + 3) // 4 * 4
    return ""


def _same(theirs: str, ours: str) -> bool:
    return theirs == ours


def _same_mounts(theirs: str, ours: str) -> bool:
    """Compare mounts; older images lack those for the names of host and machine."""
    later = {root_fs.HOSTS, root_fs.MACHINE_ID}
    return set(ours.split()) - later == set(theirs.split()) - later and _within(theirs, ours)


def _within(theirs: str, ours: str) -> bool:
    return set(theirs.split()) <= set(ours.split())


def _not_older(theirs: str, ours: str) -> bool:
    return _version(theirs) <= _version(ours)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in re.findall(r"\d+", text))


RULES: dict[str, Callable[[str, str], bool]] = {
    "machine": _same,
    "cpu instructions": _within,
    "cpu registers": _same,
    "page size": _same,
    "CRIU": _not_older,
    "folder": _same,
    "container image": _same,
    "mounts": _same_mounts,
    "kernel's switches in /proc": _within,
    NUMBERS: _same,
    ORDER: _same,
    gpu_facts.CHIP: _same,
    gpu_facts.COUNT: _same,
    gpu_facts.DRIVER: _same,  # its library is mapped by name and build-id
}


def refusal(image: dict[str, str], here: dict[str, str], place: Callable[[str], str] | None = str) -> str | None:
    """Why an image with the facts `image` can't be restored on a machine with the facts `here`: one sentence, or None.

    `place` maps a path of the job to one on this machine. None = the job's root is not here yet, so files are not checked.
    """
    level = image.get("cpu cap", "")
    image, here = capped(image, level), capped(here, level)
    for name, value in image.items():
        rule, ours = RULES.get(name), here.get(name) or "unknown"
        if name.startswith("file ") and place is not None:
            rule, ours = _same, here.get(name) or file_fact(place(name[5:]))
        if rule is not None and not rule(value, ours):
            if rule is _within:
                lacking = " ".join(sorted(set(value.split()) - set(ours.split())))
                return f"this machine can't continue the image: {name} that it needs are missing here: {lacking}"
            return f"this machine can't continue the image: {name} was {value!r} where it was made and is {ours!r} here"
    return None
