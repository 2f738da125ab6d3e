"""What goes into the runtime and what stays out. Data only: to add a tool to the instances, add it here."""

from __future__ import annotations

ARCHITECTURE = "amd64"
PYTHON = "3.14"
SUITE = "unstable"  # the only Debian suite with a CRIU of at least 4.2
CRIU_VERSION_MIN = (4, 2)

# The packages that are asked for; what they need is found from their dependencies.
SEEDS = (
    f"python{PYTHON}",
    "criu",
    "iproute2",
    "nftables",
    "btrfs-progs",
    "tini-static",
    "libgcc-s1",
    "libstdc++6",
    "skopeo",
    "umoci",
    "ca-certificates",
)

# Dependencies that only a package's installation scripts or its human user need; none of their files would be kept.
NOT_FOLLOWED = frozenset(
    {
        "debconf",
        "cdebconf",
        "netbase",
        "media-types",
        "tzdata",
        "readline-common",
        "libtirpc-common",
        "openssl",
        "golang-github-containers-common",
        "golang-github-containers-image",
    }
)

# Same versions as the controller's environment has, so that one test suite speaks for both ends.
WHEELS = (
    "blake3", "cffi", "cryptography", "cuda-bindings", "cuda-pathfinder", "lz4", "numpy", "nvidia-ml-py", "obstore", "xxhash",
    "zstandard",
)  # fmt: skip
NEEDED_BY_WHEELS = frozenset({"cffi", "cuda-pathfinder"})  # of the above, those that the agent itself does not import
WHEEL_PLATFORMS = (
    "manylinux_2_34_x86_64",
    "manylinux_2_31_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)

LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = f"{LIBRARIES}/ld-linux-x86-64.so.2"
INTERPRETER = f"usr/bin/python{PYTHON}"
STANDARD_LIBRARY = f"usr/lib/python{PYTHON}"

# Name on the instance -> file in the prefix. Each gets a starter in bin/; tini-static needs none: it is static.
TOOLS = {
    "criu": "usr/sbin/criu",
    "ip": "usr/bin/ip",
    "tc": "usr/sbin/tc",
    "nft": "usr/sbin/nft",
    "btrfs": "usr/bin/btrfs",
    "skopeo": "usr/bin/skopeo",
    "umoci": "usr/bin/umoci",
}
STATIC_TOOLS = {"tini-static": "usr/bin/tini-static"}

# Libraries that programs open by name at run time, so that no ELF header mentions them.
OPENED_AT_RUN_TIME = (f"{LIBRARIES}/libgcc_s.so.1",)

# Folders that are kept whole: the authorities that registries of container images are trusted by.
KEPT_FOLDERS = ("usr/share/ca-certificates/mozilla",)

# Of the standard library: nothing here is of use on a machine without a person. Shell patterns, relative to it.
LEFT_OUT = (
    "config-*/*",
    "curses/*",
    "ensurepip/*",
    "idlelib/*",
    "pydoc_data/*",
    "sqlite3/*",
    "test/*",
    "tkinter/*",
    "turtle*",
    "turtledemo/*",
    "venv/*",
    "_pyrepl/*",
    "lib-dynload/_curses*",
    "lib-dynload/_dbm*",
    "lib-dynload/_gdbm*",
    "lib-dynload/_sqlite3*",
    "lib-dynload/_test*",
    "lib-dynload/_xxtestfuzz*",
    "lib-dynload/readline*",
    "lib-dynload/xx*",
    "sitecustomize.py",
    "__pycache__/*",
    "*/__pycache__/*",
    "EXTERNALLY-MANAGED",
    "LICENSE.txt",
)

# Of the wheels: what serves type checkers, package managers and other interpreters than ours. Shell patterns.
LEFT_OUT_OF_WHEELS = (
    "*.pyi",
    "*/py.typed",
    "*.dist-info/RECORD",
    "*.dist-info/WHEEL",
    "*.dist-info/sboms/*",
    "*/tests/*",
    "*.pxd",
    "*.pxi",
    "cuda/bindings/_v2/*.so",
    "cuda/bindings/_internal/cu*.so",
    "cuda/bindings/_internal/nv*.so",
    "cuda/bindings/_internal/runtime*",
    "cuda/bindings/cudla*",
    "cuda/bindings/cufile*",
    "cuda/bindings/cycu*",
    "cuda/bindings/cynv*",
    "cuda/bindings/cyruntime*",
    "cuda/bindings/nv*",
    "cuda/bindings/runtime*",
    "numpy/_core/include/*",
    "numpy/_core/lib/*",
    "numpy/f2py/*",
    "zstandard/_cffi.*",
    "zstandard/backend_cffi.py",
)
