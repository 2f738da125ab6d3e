"""A job whose threads each wait in one system call, which nobody makes again for them, until a file says that they may end.

It prints what each call came back with: its name, and its result or the name of its error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import threading
import time
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
POLL, NANOSLEEP, SEMTIMEDOP, MSGRCV, FUTEX, SIGTIMEDWAIT, CLOCK_NANOSLEEP = 7, 35, 220, 70, 202, 128, 230
EPOLL_WAIT, EPOLL_PWAIT, IO_SETUP, IO_GETEVENTS, SELECT, PAUSE, RECVFROM, ACCEPT, READ = 232, 281, 206, 208, 23, 34, 45, 43, 0
SHORT = 5  # seconds, of waits that may end by themselves
said: list[str] = []


def call(name: str, number: int, *arguments: object) -> None:
    """In a thread of its own, to its end."""

    def body() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        numbers = [ctypes.c_void_p(x) if isinstance(x, int) else x for x in arguments]
        result = libc.syscall(ctypes.c_long(number), *numbers)
        print(name, result if result >= 0 else errno.errorcode[ctypes.get_errno()], flush=True)

    threading.Thread(target=body, daemon=True, name=name).start()


def timespec(seconds: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("qq", seconds, 0), 16)


def pipes() -> tuple[int, int]:
    read, write = os.pipe()
    ends.append(write)
    return read, write


ends: list[int] = []
listener = socket.create_server(("127.0.0.1", 0))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SHORT, 0))
near, far = socket.socketpair()
near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SHORT, 0))
inotify = libc.inotify_init1(0)
libc.inotify_add_watch(inotify, b".", 0x100)
semaphores = libc.semget(0, 1, 0o1600)
queue = libc.msgget(0, 0o1600)
word, message = ctypes.c_int(0), ctypes.create_string_buffer(64)
context, events = ctypes.c_ulong(0), ctypes.create_string_buffer(64)
libc.syscall(ctypes.c_long(IO_SETUP), ctypes.c_uint(1), ctypes.byref(context))
take = struct.pack("Hhh", 0, -1, 0)
usr1 = ctypes.create_string_buffer(struct.pack("Q", 1 << (signal.SIGUSR1 - 1)), 8)
kept: list[object] = []


def poll(name: str, milliseconds: int) -> None:
    fds = ctypes.create_string_buffer(struct.pack("ihh", pipes()[0], select.POLLIN, 0), 8)
    kept.append(fds)
    call(name, POLL, ctypes.byref(fds), 1, milliseconds)


def epoll(name: str, number: int, milliseconds: int) -> None:
    e = select.epoll()
    e.register(pipes()[0], select.EPOLLIN)
    kept.append(e)
    found = ctypes.create_string_buffer(12)
    kept.append(found)
    call(name, number, e.fileno(), ctypes.byref(found), 1, milliseconds, None, 8)


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
poll("poll", -1)
poll("poll-short", SHORT * 1000)
epoll("epoll_wait", EPOLL_WAIT, -1)
epoll("epoll_wait-short", EPOLL_WAIT, SHORT * 1000)
epoll("epoll_pwait", EPOLL_PWAIT, -1)
call("semtimedop", SEMTIMEDOP, semaphores, take, 1, None)
call("msgrcv", MSGRCV, queue, ctypes.byref(message), 32, 0, 0)
call("futex", FUTEX, ctypes.byref(word), 128, 0, None)
kept += [short := timespec(SHORT), rest := timespec(0)]
call("futex-short", FUTEX, ctypes.byref(word), 128, 0, ctypes.byref(short))
call("nanosleep", NANOSLEEP, ctypes.byref(short), None)
call("nanosleep-rest", NANOSLEEP, ctypes.byref(short), ctypes.byref(rest))
call("clock_nanosleep", CLOCK_NANOSLEEP, 1, 0, ctypes.byref(short), None)
call("sigtimedwait", SIGTIMEDWAIT, usr1, None, None, 8)
call("io_getevents", IO_GETEVENTS, context.value, 1, 1, ctypes.byref(events), ctypes.byref(short))
call("recv-short", RECVFROM, near.fileno(), ctypes.byref(message), 1, 0, None, None)
call("accept-short", ACCEPT, listener.fileno(), None, None)
call("read-inotify", READ, inotify, ctypes.byref(message), 64)
print("all wait", flush=True)
while not Path("end").exists():
    time.sleep(0.05)
for fd in ends:
    os.write(fd, b"x")
libc.semop(semaphores, struct.pack("Hhh", 0, 1, 0), 1)
libc.msgsnd(queue, struct.pack("q8s", 1, b"x"), ctypes.c_size_t(8), 0)
word.value = 1
libc.syscall(ctypes.c_long(FUTEX), ctypes.byref(word), 129, 99)
far.send(b"x")
os.kill(os.getpid(), signal.SIGUSR1)
ours = socket.create_connection(listener.getsockname())
for t in threading.enumerate():
    if t is not threading.current_thread():
        t.join()
libc.semctl(semaphores, 0, 0)
libc.msgctl(queue, 0, 0)
print("over", flush=True)
