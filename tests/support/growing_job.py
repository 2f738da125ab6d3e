"""Takes memory block by block, as fast as it can or at a rate, then says what is in it: MEBIBYTES [MEBIBYTES_PER_SECOND].

With `read` as the third word the memory is filled by the kernel, as a program that reads a file fills it.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

BLOCK = 4 << 20


def main() -> None:
    most, rate = int(sys.argv[1]) << 20, float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    source = Path("block")
    if reads := sys.argv[3:] == ["read"]:
        source.write_bytes(bytes(range(256)) * (BLOCK // 256))
    blocks: list[bytes] = []
    began = time.monotonic()
    while len(blocks) * BLOCK < most:
        blocks.append(source.read_bytes() if reads else bytes([len(blocks) % 256]) * BLOCK)
        if len(blocks) % 16 == 0:
            print(len(blocks), flush=True)
            mebibytes = len(blocks) * (BLOCK >> 20)
            print(f"{mebibytes / (time.monotonic() - began):.0f} MiB/s", file=sys.stderr, flush=True)
        if rate and (early := began + len(blocks) * 4 / rate - time.monotonic()) > 0:
            time.sleep(early)
    digest = hashlib.blake2b()
    for block in blocks:
        digest.update(block)
    print(digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
