"""Small programs that hold something: what can't be saved, and its harmless relatives. Each says "ready" and sleeps."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

HEAD = """
import os, socket, sys, time, ctypes, mmap, struct
libc = ctypes.CDLL(None, use_errno=True)
def done(r): assert r >= 0, os.strerror(ctypes.get_errno()); return r
"""
TAIL = "\nprint('ready', flush=True)\ntime.sleep(1000)\n"


class Lacking(Exception):
    """This kernel was built without it."""


@dataclass(frozen=True)
class Thing:
    """`told`: part of the sentence, or "" where nothing may be said. `criu`: whether CRIU by itself refuses to dump it."""

    name: str
    code: str
    told: str = ""
    criu: bool = False


def in_a_child(deed: str) -> str:
    """A child has done it before the program is ready, and lives on."""
    return f"r,w=os.pipe()\nif os.fork()==0:\n  {deed}; os.write(w, b'.'); time.sleep(1000)\nos.close(w); os.read(r, 1)"


def daemon(deed: str) -> str:
    """A child, after its deed, starts a daemon: forks twice, with a new session between. The first process takes orphans in."""
    return (
        f"done(libc.prctl(36, 1, 0, 0, 0)); r,w=os.pipe()\nif os.fork()==0:\n  {deed}\n  child=os.fork()\n"
        "  if not child:\n    os.setsid(); leader=os.getpid()\n    if os.fork(): os._exit(0)\n"
        "    while os.getppid()==leader: time.sleep(0.01)\n    os.write(w, b'.'); time.sleep(1000)\n"
        "  os.waitpid(child, 0); time.sleep(1000)\nos.close(w); os.read(r, 1)"
    )


RING = "params = ctypes.create_string_buffer(120); done(libc.syscall(425, 4, params))"
THINGS = (
    Thing("nothing", ""),
    Thing("usual descriptors", "import select, signal\nk=select.epoll(); r,w=os.pipe(); k.register(r); e=libc.eventfd(0,0); "
          "t=libc.timerfd_create(1,0); n=libc.inotify_init(); a,b=socket.socketpair(); m=os.memfd_create('x')"),
    Thing("harmless devices", "x=[open('/dev/'+n,'rb') for n in ('zero','full','random','urandom','null')]"),
    Thing("io_uring", RING, "holds, as descriptor 3, an io_uring", True),
    Thing("userfaultfd", "done(libc.syscall(323, 0))", "a userfaultfd", True),
    Thing("performance counter", "attr=ctypes.create_string_buffer(struct.pack('<IIQ',1,128,0),128); "
          "done(libc.syscall(298, attr, 0, -1, -1, 0))", "a performance counter", True),
    Thing("a device with state", "x=open('/dev/loop-control')", "the device /dev/loop-control open (descriptor 3)", True),
    Thing("the kernel's log", "x=open('/dev/kmsg')", "the device /dev/kmsg open (descriptor 3)"),
    Thing("secret memory", "f=done(libc.syscall(447, 0)); os.ftruncate(f, 4096); m=mmap.mmap(f, 4096); os.close(f)",
          "memory that the kernel shows to nobody else", True),
    Thing("no code of the kernel", "r,w=os.pipe()\nif os.fork()==0:\n"
          "  x=next(x for x in open('/proc/self/maps') if '[vdso]' in x)\n"
          "  at,end=(int(n,16) for n in x.split()[0].split('-'))\n"
          "  done(libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(end-at))); os.write(w,b'.'); libc.pause()\n"
          "os.close(w); os.read(r,1)", "has unmapped the kernel's clock code"),
    Thing("vsock", "s=socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)", "a socket of family AF_VSOCK", True),
    Thing("kernel crypto", "s=socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)", "a socket of family AF_ALG", True),
    Thing("packet socket", "s=socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)"),
    Thing("raw socket", "s=socket.socket(socket.AF_INET, socket.SOCK_RAW, 89)"),
    Thing("mapped huge pages", "libc.mmap.restype=ctypes.c_long; done(libc.mmap(None, 1 << 21, 3, 0x44022, -1, 0))",
          "has mapped huge pages (/anon_hugepage)"),
    Thing("a memfd of huge pages", "f=os.memfd_create('pool', 4); os.ftruncate(f, 1 << 21)",
          "has huge pages (/memfd:pool, descriptor 3)"),
    Thing("a System V segment of huge pages", "i=done(libc.shmget(0, 1 << 21, 0o15600)); libc.shmat.restype=ctypes.c_void_p; "
          "a=libc.shmat(i, None, 0); libc.shmctl(i, 0, None)", "has mapped huge pages (/SYSV00000000)"),
    Thing("multipath", "s=socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
          "a socket of family MPTCP, which can't be saved: make it use plain TCP (Go programs: GODEBUG=multipathtcp=0)", True),
    Thing("plain sockets", "s=[socket.create_server(('127.0.0.1',0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]; "
          "c=socket.create_connection(s[0].getsockname()); a=s[0].accept()"),
    Thing("unaccepted", "s=socket.socket(socket.AF_UNIX); s.bind('\\0here-%d' % os.getpid()); s.listen(); "
          "c=socket.socket(socket.AF_UNIX); c.connect(s.getsockname())"),
    Thing("unaccepted, with data", "s=socket.socket(socket.AF_UNIX); s.bind('\\0here-%d' % os.getpid()); s.listen(); "
          "c=socket.socket(socket.AF_UNIX); c.connect(s.getsockname()); c.send(b'x')",
          "was written to over its Unix socket @here-", True),
    Thing("unaccepted, closed", "s=socket.socket(socket.AF_UNIX); s.bind('\\0here-%d' % os.getpid()); s.listen(); "
          "c=socket.socket(socket.AF_UNIX); c.connect(s.getsockname()); c.close()",
          "was written to over its Unix socket @here-", True),
    Thing("unaccepted, TCP", "s=socket.create_server(('127.0.0.1',0)); c=socket.create_connection(s.getsockname()); "
          "c.send(b'x')"),
    Thing("own child", "a,b=socket.socketpair()\nif os.fork()==0:\n  a.close(); time.sleep(1000)\nb.close()"),
    Thing("nested process numbers", "done(libc.unshare(0x20000000))\nif os.fork()==0: time.sleep(1000)",
          "a namespace of its own for process numbers", True),
    Thing("nested mounts", in_a_child("done(libc.unshare(0x20000))"),
          "a namespace of its own for mounts"),
    Thing("nested users", in_a_child("done(libc.unshare(0x10000000))"),
          "a namespace of its own for users", True),
    Thing("nested network", in_a_child("done(libc.unshare(0x40000000))"),
          "a namespace of its own for network"),
    Thing("System V segment of the machine", "i=done(libc.shmget(0, 4096, 0o1600)); libc.shmat.restype=ctypes.c_void_p; "
          "a=libc.shmat(i, None, 0); libc.shmctl(i, 0, None)", "System V segment", True),
    Thing("a file outside", "x=open('/mnt/outside','w')", "/mnt/outside open for writing (descriptor 3)"),
    Thing("a file outside, read", "x=open('/etc/passwd')"),
    Thing("a deleted file", "x=open('/mnt/gone','w'); os.unlink('/mnt/gone')"),
    Thing("a large deleted file",
          "x=open('/mnt/gone','w'); os.unlink('/mnt/gone'); os.posix_fallocate(x.fileno(), 0, 600 << 20)",
          "holds the deleted file /mnt/gone open (descriptor 3), which takes 600 MiB", True),
    Thing("a large file with a name", "x=open('/tmp/kept','w'); os.posix_fallocate(x.fileno(), 0, 600 << 20)"),
    Thing("message queue", "q=done(libc.mq_open(b'/hp', 0o102, 0o600, None)); libc.mq_unlink(b'/hp')",
          "has the POSIX message queue /hp", True),
    Thing("a second name for its memory", "stack=ctypes.create_string_buffer(1 << 16); done(libc.clone(ctypes.cast(libc.pause, "
          "ctypes.c_void_p), ctypes.c_void_p(ctypes.addressof(stack) + (1 << 16) - 64), 0x100 | 17, None))",
          "shares its memory (clone with CLONE_VM) with process", True),
    Thing("a shared working folder", "if not done(libc.syscall(56, 0x200 | 17, 0, 0, 0, 0)): time.sleep(1000)",
          "shares its working folder (clone with CLONE_FS) with process", True),
    Thing("shared descriptors", "if not done(libc.syscall(56, 0x400 | 17, 0, 0, 0, 0)): time.sleep(1000)"),
    Thing("a long vfork", "done(libc.syscall(56, 0x4100 | 17, 0, 0, 0, 0))",
          "was started by vfork and has neither called exec nor ended, so process", True),
    Thing("a datagram held back", "s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(17, 1, 1); "
          "s.sendto(b'x', ('127.0.0.1', 9))", "has begun a datagram and not sent it yet (descriptor 3"),
    Thing("a trap that waits", "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [5]); os.kill(os.getpid(), 5)",
          "blocks a SIGTRAP that was sent to it", True),
    Thing("a deleted file that is watched", "x=open('/mnt/gone','w'); n=done(libc.inotify_init()); "
          "done(libc.inotify_add_watch(n, b'/mnt/gone', 2)); os.unlink('/mnt/gone')",
          "watches /mnt/gone (inotify, descriptor 4)"),
    Thing("its terminal once more", "os.setsid() if os.getsid(0) != os.getpid() else 0; a,b=os.openpty(); "
          "os.close(os.open(os.ttyname(b), 2)); t=open('/dev/tty')"),
    Thing("the terminal of another",
          "import pty; p,a=pty.fork()\nif not p: t=open('/dev/tty'); os.write(1, b'x'); time.sleep(1000)\nos.read(a, 1)",
          "holds its terminal open as /dev/tty (descriptor 3)", True),
    Thing("a daemon", daemon("pass")),
    Thing("a daemon under a supervisor", daemon("done(libc.prctl(36, 1, 0, 0, 0))"), "whose leader is gone, and process"),
    Thing("traced", in_a_child("done(libc.ptrace(0x4206, os.getppid(), 0, 0))"),
          "is traced by process", True),
)  # fmt: skip


def start(code: str) -> subprocess.Popen[str]:
    """A process in a session of its own that holds the thing."""
    p = subprocess.Popen(
        [sys.executable, "-c", HEAD + code + TAIL],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert p.stdout is not None
    if p.stdout.readline() != "ready\n":
        p.kill()
        error = p.communicate()[1]
        raise (Lacking if "Address family not supported" in error else AssertionError)(error)
    return p
