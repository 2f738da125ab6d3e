"""What a fresh machine does not have, a box does not have; and nothing of the host can be written from inside."""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local.box import rootfs
from spotsurfer_providers.local.settings import LocalSettings
from support.boxes import Yard, yard

pytestmark = pytest.mark.real
OWN = ("/tmp", "/var/tmp", "/root", "/home", "/run", "/dev/shm")

# Tries to make a file at every mount, in every folder below the root, and to open every device and switch for writing. What
# worked is printed with the file system that it worked on.
TRY = r"""
import os, stat
def mounted(path):
    best = ("", "?", "")
    for line in open("/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        if (path + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
            best = (point, right.split()[0], right.split()[1])
    return " ".join(best)
points = {line.split()[4] for line in open("/proc/self/mountinfo")}
for top, folders, _ in os.walk("/", onerror=lambda e: None):
    if top.count("/") > 3 or top.startswith("/proc/"): folders[:] = []
    points.add(top)
for point in sorted(points):
    if not os.path.isdir(point) or point.startswith("/proc"): continue
    name = os.path.join(point, "probe-of-a-box")
    try: os.close(os.open(name, os.O_CREAT | os.O_WRONLY)); os.unlink(name)
    except OSError: continue
    print("MADE", point, "ON", mounted(point), flush=True)
for name in sorted(os.listdir("/dev")):
    path = "/dev/" + name
    if stat.S_ISBLK(os.stat(path).st_mode) if os.path.exists(path) else False: print("DISK", path, flush=True)
for name in ("sysrq-trigger", "sys/kernel/core_pattern", "sys/kernel/panic", "sys/vm/drop_caches", "sys/vm/swappiness",
             "sys/kernel/sysrq", "sys/fs/file-max", "sys/kernel/pid_max", "irq/default_smp_affinity"):
    try: os.close(os.open("/proc/" + name, os.O_WRONLY)); print("SWITCH", name, flush=True)
    except OSError: pass
for name in ("sys/net/ipv4/ip_forward", "sys/kernel/shmmax", "sys/kernel/msgmax", "sys/fs/mqueue/msg_max"):
    try: os.close(os.open("/proc/" + name, os.O_WRONLY))
    except OSError as e: print("OWN CANT", name, e, flush=True)
for name in ("random", "urandom", "null", "zero", "full", "tty", "ptmx"):
    if not os.path.exists("/dev/" + name): print("LACKS", name, flush=True)
import pty
a, b = os.openpty(); print("terminal", os.ttyname(b))
print("done", flush=True)
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Yard]:
    with yard(tmp_path) as y:
        yield y


def test_whatever_is_tried_nothing_of_the_host_is_written(here: Yard) -> None:
    box = here.launch(f"/usr/bin/python3 - <<'EOF'\n{TRY}\nEOF\nmkdir -p /tmp/x /var/lib/spotsurfer/x && echo WORKS")
    text = here.wait_console(box.id, "WORKS", 60)
    made = re.findall(r"^MADE (\S+) ON (\S+) (\S+) (\S+)$", text, re.MULTILINE)
    disk = next(source for _, point, kind, source in made if (point, kind) == ("/var/lib/spotsurfer", "btrfs"))
    private = {point for _, point, kind, source in made if kind == "tmpfs" or source == disk}
    groups = {point for _, point, kind, _ in made if kind in ("cgroup", "cgroup2")}  # its own part of them
    assert {point for _, point, _, _ in made} - private - groups == set(), made
    assert set(OWN) <= private
    assert re.findall(r"^DISK (\S+)$", text, re.MULTILINE) == [disk], "its own disk, and no other's"
    assert not re.search("SWITCH|OWN CANT|LACKS", text), text
    assert "terminal /dev/pts/0" in text


def test_what_lives_on_the_host_is_not_there(here: Yard) -> None:
    mark = f"of-the-host-{secrets.token_hex(8)}"
    left = [Path(folder, mark) for folder in OWN if Path(folder).is_dir()]
    try:
        for path in left:
            path.write_text("x")
        box = here.launch(
            f"for d in {' '.join(OWN)}; do ls -A $d | grep {mark} && echo SAW $d; done; echo HOME=$HOME; echo done"
        )
        text = here.wait_console(box.id, "done\n")
    finally:
        for path in left:
            path.unlink()
    assert "SAW" not in text, text
    assert "HOME=/root" in text


def test_devices_are_those_of_any_machine_and_the_hosts_graphics(tmp_path: Path) -> None:
    found = {d.name for d in rootfs.of_host()}
    assert {"null", "zero", "full", "random", "urandom", "tty", "ptmx"} <= found
    assert not [n for n in found if n.startswith(("loop", "sd", "vd", "nvme", "mem", "kmsg"))]
    assert {p.name for p in Path("/dev").glob("nvidia*") if p.is_char_device()} <= found


def test_no_two_boxes_and_no_host_have_the_same_uptime(here: Yard) -> None:
    assert LocalSettings().clock_offset_seconds_max > 86400
    boxes = [here.launch("echo up $(cut -d. -f1 /proc/uptime)") for _ in range(2)]
    ups = [int(re.findall(r"up (\d+)", here.wait_console(b.id, "up "))[0]) for b in boxes]
    host = float(subprocess.run(["cut", "-d ", "-f1", "/proc/uptime"], capture_output=True, text=True, check=True).stdout)
    assert min(abs(ups[0] - ups[1]), abs(ups[0] - host), abs(ups[1] - host)) > 10, (ups, host)
