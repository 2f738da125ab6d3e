# ruff: noqa: PTH108, PTH110, PTH116, PTH118, PTH123, PTH207, PTH208, SIM115 -- a program as a job would bring it
"""A job that tries to break out, and one that only wants to work: see `wall_scenes`. Standard library only.

Waits for a file `go-N`, does everything, prints a line of JSON: what it is and sees, and what attempts reached ("" = nothing).
Argument: number of the agent's process on the machine.
"""

import ctypes
import errno
import fcntl
import glob
import json
import os
import pty
import pwd
import socket
import stat
import struct
import subprocess
import sys
import time

AGENT = int(sys.argv[1])
BASE = "/var/lib/spotsurfer"
ROOTS_OWN = 0x405FB  # what privileges.ROOT has
libc = ctypes.CDLL(None, use_errno=True)


def connects(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(1.0)
        s.connect(address)
        return f"connected to {address}"


def route(*words):
    subprocess.run(["ip", *words, "dev", "eth0"], capture_output=True, check=False)


def metadata_ipv4():
    route("route", "replace", "169.254.0.0/16", "via", "10.201.0.1")
    return connects(socket.AF_INET, ("169.254.169.254", 80))


def metadata_ipv6():
    route("-6", "route", "add", "default", "via", open("link-local").read())
    return connects(socket.AF_INET6, ("fd00:ec2::254", 80))


def machine_by_link_local():
    address = open("link-local").read()
    return connects(socket.AF_INET6, (address, 80, 0, socket.if_nametoindex("eth0")))


def agent_memory():
    for pid in [str(AGENT), *(x for x in os.listdir("/proc") if x.isdigit())]:
        try:
            if b"SPOTSURFER_PREFIX" in open(f"/proc/{pid}/environ", "rb").read():
                open(f"/proc/{pid}/mem", "rb").close()
                return f"read the memory of {pid}"
        except OSError:
            continue
    return ""


def agent_socket():
    return connects(socket.AF_UNIX, f"{BASE}/job/shim.sock")


def agent_folder():
    for path in (f"{BASE}/agent-state.json", f"{BASE}/job", f"/proc/1/root{BASE}/agent-state.json", "../../agent-state.json"):
        if os.path.exists(path):
            return f"found {path}"
    return ""


def machine_socket():
    return connects(socket.AF_UNIX, "/run/daemon.sock")


def machine_run():
    return open("/run/machine-secret").read()


def disk_by_mknod():
    number = os.stat("/run-disk").st_rdev if os.path.exists("/run-disk") else os.makedev(7, 0)
    try:
        os.mknod("disk", stat.S_IFBLK | 0o600, number)
        return "made " + repr(os.stat("disk"))
    finally:
        if os.path.lexists("disk"):
            os.unlink("disk")


def disk_in_dev():
    found = [p for p in glob.glob("/dev/**", recursive=True) if stat.S_ISBLK(os.lstat(p).st_mode)]
    return f"disks: {found}" if found else ""


def kernel_in_dev():
    names = ("mem", "port", "kmsg", "loop-control", "fuse", "kvm", "net/tun", "mapper/control", "watchdog", "cpu_dma_latency")
    found = [n for n in names if os.path.exists(f"/dev/{n}")]
    return f"devices: {found}" if found else ""


def write_in_dev():
    open("/dev/mine", "w").close()
    return "made a file in /dev"


def mounts():
    if libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0:
        return "mounted a file system"
    if libc.mount(None, b"/", None, 0x1020, None) == 0:
        return "made the root writable"
    return ""


def namespaces():
    return "left for a mount namespace of its own" if os.getuid() == 0 and libc.unshare(0x20000) == 0 else ""


def setuid_program():
    """As `cat` with the setuid bit that belongs to root: what would it be?"""
    told = subprocess.run(["./setuid-cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    lines = dict(line.split(":", 1) for line in told.splitlines())
    if int(lines["Uid"].split()[1]) != os.getuid() or int(lines["CapEff"], 16) & ~ROOTS_OWN:
        return f"became {lines['Uid'].split()} with {lines['CapEff'].strip()}"
    return ""


def kernel_settings():
    """Of /proc, each file that is no process's and may be written to. It is only opened: a write to some ends the machine."""
    of_processes = ("self", "thread-self", "net", "mounts", "pressure")  # whoever asks `pressure` changes nothing
    found = []
    for top in (f"/proc/{x}" for x in os.listdir("/proc") if not x.isdigit() and x not in of_processes):
        for path in [os.path.join(folder, x) for folder, _, files in os.walk(top) for x in files] or [top]:
            try:
                mode = os.stat(path).st_mode
                if stat.S_ISREG(mode) and mode & 0o222:
                    os.close(os.open(path, os.O_WRONLY))
                    found.append(path)
            except OSError:
                continue
    return f"may write {found}" if found else ""


def device_on_disk():
    """One that whoever made the disk put there. It is /dev/null under another name."""
    os.close(os.open("null-on-disk", os.O_RDWR))
    return "opened a device that lies on a disk"


def mounts_with_devices():
    fields = [line.split(" ") for line in open("/proc/self/mountinfo")]
    found = [f[4] for f in fields if "nodev" not in f[5].split(",") and f[4] not in ("/dev", "/dev/pts", "/dev/ptmx")]
    return f"devices may be opened on {found}" if found else ""


def file_by_handle():
    """Files outside of its root, by number: what CAP_DAC_READ_SEARCH allows."""
    handle, mount = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128)), ctypes.c_int()
    if libc.name_to_handle_at(-100, b".", handle, ctypes.byref(mount), 0):
        return ""
    at = os.open(".", os.O_RDONLY)
    return "opened a file by its number" if libc.open_by_handle_at(at, handle, 0) >= 0 else ""


def raw_network():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    return "has a raw socket"


def network_settings():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8922, struct.pack("16si12x", b"eth0", 1400))  # SIOCSIFMTU
    return "changed its network"


def load_module():
    libc.delete_module(b"no_such_module", 0)
    return "" if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else "may remove modules of the kernel"


ATTEMPTS = (
    metadata_ipv4, metadata_ipv6, machine_by_link_local, agent_memory, agent_socket, agent_folder, machine_socket, machine_run,
    disk_by_mknod, disk_in_dev, kernel_in_dev, write_in_dev, mounts, namespaces, setuid_program, kernel_settings,
    device_on_disk, mounts_with_devices, file_by_handle, raw_network, network_settings, load_module,
)  # fmt: skip


def tried(attempt):
    try:
        return attempt()
    except OSError:
        return ""


# ---------------------------------------------------------------- what a job may expect


def names():
    assert pwd.getpwuid(os.getuid()).pw_name == os.environ["USER"]


def ports():
    for family, address in ((socket.AF_INET, ("0.0.0.0", 80)), (socket.AF_INET6, ("::1", 81))):
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(address)
            s.listen()


def folders():
    for where in (".", os.environ["HOME"], "/tmp", "/var/tmp", "/dev/shm", os.environ["SPOTSURFER_HINTS"]):
        path = os.path.join(where, f"mine-{os.getpid()}")
        with open(path, "w") as f:
            f.write("x")
        os.unlink(path)


def devices():
    assert open("/dev/zero", "rb").read(4) == bytes(4)
    assert len(open("/dev/urandom", "rb").read(4)) == 4
    for name in ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/2"):
        with open(name, "w") as f:
            f.write("")
    master, slave = pty.openpty()
    assert os.ttyname(slave).startswith("/dev/pts/")
    os.close(master)
    os.close(slave)
    subprocess.run(["sh", "-c", "echo said > /dev/stderr"], check=True)


def locks():
    import multiprocessing

    with multiprocessing.Lock():  # a POSIX semaphore
        pass


WORK = (names, ports, folders, devices, locks)


def worked(what):
    try:
        what()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return ""


def identity():
    names = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {name: " ".join(lines[name].split()) for name in names}


def mount_flags():
    fields = [line.split(" ") for line in open("/proc/self/mountinfo")]
    return {f[4]: sorted({"ro", "nosuid", "nodev", "noexec"} & set(f[5].split(","))) for f in fields}


held = [open("/dev/null", "r+b", buffering=0), open("/dev/urandom", "rb", buffering=0)]
turn = 0
while True:
    while not os.path.exists(f"go-{turn}"):
        time.sleep(0.05)
    told = {"identity": identity(), "mounts": mount_flags(), "work": {w.__name__: worked(w) for w in WORK}}
    print(json.dumps({**told, "attempts": {a.__name__: tried(a) for a in ATTEMPTS}}), flush=True)
    held[0].write(held[1].read(1))
    turn += 1
