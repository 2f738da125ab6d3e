"""What programs may choose of the processor at their start, so that they can go on on an older one.

A program looks at the processor once, when it starts, and takes the routines that suit it; continued where an instruction is
missing, it dies. So each library that is known to choose is told not to go beyond a level of the x86-64 psABI. This is a list
of switches, not a wall: code that asks the processor by itself takes what is there.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

# Flags of /proc/cpuinfo that each level adds (x86-64 psABI, table "Micro-Architecture Levels"); `abm` is lzcnt, `pni` is sse3.
# Beside the levels, what every server has: named because no switch below turns it off.
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
# What glibc 2.33 and newer call a feature that has to be switched off (manual, "Hardware Capability Tunables").
_AVX512 = [
    "AVX512F",
    "AVX512VL",
    "AVX512BW",
    "AVX512CD",
    "AVX512DQ",
    "AVX512ER",
    "AVX512PF",
    "AVX512_VBMI",
    "AVX512_VBMI2",
    "AVX512_VNNI",
    "AVX512_BITALG",
]
_BEYOND_V3 = [
    *_AVX512,
    "AVX_VNNI",
    "AVX512_BF16",
    "AVX512_FP16",
    "AMX_TILE",
    "AMX_INT8",
    "AMX_BF16",
    "VAES",
    "VPCLMULQDQ",
    "GFNI",
]
_NUMPY = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
_BEYOND_V2 = [*_BEYOND_V3, "AVX2", "AVX", "FMA", "F16C", "BMI1", "BMI2", "LZCNT", "MOVBE", "XSAVE", "XSAVEC"]


@dataclass(frozen=True, slots=True)
class Cap:
    """A level: the instructions that an image may need at most, and the switches that see to it."""

    name: str
    flags: frozenset[str]
    environment: dict[str, str]


def _glibc(names: list[str]) -> str:
    return "glibc.cpu.hwcaps=" + ",".join(f"-{n}" for n in names)


# Variable -> who reads it and where that is written down:
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


def environment(cpu: str) -> dict[str, str]:
    """Variables for programs under this cap; none for "any", and none on other processors."""
    cap = CAPS.get(cpu)
    return dict(cap.environment) if cap is not None and platform.machine() == "x86_64" else {}


def in_force(environment: dict[str, str]) -> str:
    """The cap that these variables of a process amount to; empty for none."""
    return next((c.name for c in CAPS.values() if all(environment.get(k) == v for k, v in c.environment.items())), "")


def capped(facts: dict[str, str], level: str) -> dict[str, str]:
    """Facts of an image or a machine as they are to be compared: instructions beyond the cap do not count.

    The register state does: it is saved and brought back as a whole, used or not.
    """
    cap = CAPS.get(level)
    if cap is None:
        return facts
    own = set(facts.get("cpu instructions", "").split())
    return {**facts, "cpu instructions": " ".join(sorted(own & cap.flags))}
