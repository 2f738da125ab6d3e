"""pool.py TASKS LENGTH: hash chains in a pool of processes, with a queue, a lock and shared memory between them."""

# ruff: noqa: PTH123

import hashlib
import multiprocessing as mp
import sys
from multiprocessing import shared_memory
from typing import Any


def chain(task: tuple[int, int, str]) -> tuple[int, str]:
    number, length, name = task
    board = shared_memory.SharedMemory(name)
    assert board.buf is not None
    h = str(number).encode()
    for _ in range(length):
        h = hashlib.sha256(h).digest()
    board.buf[number * 32 : number * 32 + 32] = h
    board.close()
    return number, h.hex()


def listen(queue: "mp.Queue[str | None]", total: Any) -> None:
    with open("heard.txt", "w", buffering=1) as out:
        for line in iter(queue.get, None):
            with total.get_lock():
                total.value += 1
            out.write(line + "\n")


if __name__ == "__main__":
    tasks, length = int(sys.argv[1]), int(sys.argv[2])
    board = shared_memory.SharedMemory(create=True, size=tasks * 32)
    assert board.buf is not None
    queue: "mp.Queue[str | None]" = mp.Queue()
    total = mp.Value("i", 0)
    listener = mp.Process(target=listen, args=(queue, total))
    listener.start()
    with mp.Pool(3) as pool:
        for number, text in pool.imap(chain, [(n, length, board.name) for n in range(tasks)]):
            print(number, text, flush=True)
            queue.put(f"{number} {text[:8]}")
    queue.put(None)
    listener.join()
    print(total.value, hashlib.sha256(board.buf).hexdigest())
    board.close()
    board.unlink()
