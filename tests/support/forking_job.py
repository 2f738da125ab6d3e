"""Workers that change pages, fork all the while, and check all of their memory in both processes after each turn.

Arguments: bytes of memory of each worker, number of workers. Ends with exit code 1 as soon as a single byte is wrong.
"""

import os
import random
import sys
import zlib

SIZE, WORKERS = int(sys.argv[1]), int(sys.argv[2])


def work(name):
    chance = random.Random(name)
    memory = bytearray(chance.randbytes(1 << 20) * (SIZE >> 20))
    for at in range(0, SIZE, 4096):
        memory[at : at + 8] = (at ^ name << 40).to_bytes(8, "little")
    memory[SIZE // 2 : SIZE // 2 + SIZE // 8] = bytes(SIZE // 8)  # pages that are there and empty
    total, turn = zlib.crc32(memory), 0
    while True:
        if zlib.crc32(memory) != total:
            os._exit(1)
        for _ in range(64):
            at = chance.randrange(SIZE >> 12) << 12
            memory[at + 8 : at + 16] = chance.randbytes(8)
        total = zlib.crc32(memory)
        child = os.fork()
        if child == 0:
            os._exit(0 if zlib.crc32(memory) == total else 1)
        if os.waitpid(child, 0)[1]:
            os._exit(1)
        turn += 1
        print("worker", name, "turn", turn, flush=True)


for name in range(WORKERS):
    if os.fork() == 0:
        work(name)
os.wait()
sys.exit(1)
