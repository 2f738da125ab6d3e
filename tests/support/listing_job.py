# ruff: noqa: SIM115, PTH102, PTH104, PTH108, PTH123 -- plain calls, as in the programs that it stands for
"""A job that lists a folder as far as the file `calls` allows, and must see each name once. Argument: how many there are."""

import ctypes
import os
import struct
import sys
import time

count = int(sys.argv[1])
os.mkdir("many")
os.mkdir("other")
for number in range(count + count // 4):
    open(f"other/{number}" if number % 3 == 0 else f"many/{number}", "w").close()
for number in range(0, count + count // 4, 3):  # these come late into the folder, though they are as old as their neighbours
    os.rename(f"other/{number}", f"many/{number}")
for number in range(count, count + count // 4):
    os.unlink(f"many/{number}")
os.link("many/1", "many/a-link")
os.mkdir("many/sub")
open("many/sub/file", "w").close()
seen, libc, fd = [], ctypes.CDLL(None), os.open("many", os.O_RDONLY)
buffer = ctypes.create_string_buffer(512)  # libc's own readdir takes 32 KiB at once
calls = 0
while (got := libc.syscall(217, fd, buffer, len(buffer))) > 0:
    at = 0
    while at < got:
        length = struct.unpack_from("=H", buffer, at + 16)[0]
        seen.append(buffer.raw[at + 19 : at + length].split(b"\0")[0].decode())
        at += length
    calls += 1
    print(f"{calls:03}", flush=True)
    while calls >= int(open("calls").read() or 0):
        time.sleep(0.01)
seen = [name for name in seen if name not in (".", "..")]
wanted = {str(number) for number in range(count)} | {"a-link", "sub"}
assert len(seen) == len(set(seen)), f"{len(seen) - len(set(seen))} names twice"
assert set(seen) == wanted, f"{len(wanted - set(seen))} names are missing"
