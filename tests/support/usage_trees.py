"""What kernels say, as files: of v1 as a job of this host was told, of v2 in the layout of the kernel's documentation."""

from __future__ import annotations

from pathlib import Path

V1 = {
    "cpuacct/cpuacct.usage": "14203991533\n",
    "cpuacct/cgroup.procs": "4210\n4211\n4219\n",
    "memory/memory.usage_in_bytes": "640167936\n",
    "memory/memory.stat": (
        "cache 103809024\nrss 400\nshmem 0\nmapped_file 4055040\ninactive_file 1\n"
        "hierarchical_memory_limit 9223372036854771712\ntotal_cache 103809024\ntotal_rss 532676608\ntotal_rss_huge 406847488\n"
        "total_shmem 2097152\ntotal_mapped_file 4055040\ntotal_dirty 0\ntotal_swap 4096\ntotal_inactive_anon 532676608\n"
        "total_active_anon 16384\ntotal_inactive_file 81788928\ntotal_active_file 22020096\ntotal_unevictable 0\n"
    ),
    "proc/pressure/cpu": "some avg10=1.21 avg60=0.90 avg300=0.42 total=3994106281\nfull total=0\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=3153974\nfull total=2\n",
    "proc/pressure/io": "some avg10=0.30 avg60=0.11 avg300=0.02 total=524965798\nfull total=2\n",
    "proc/diskstats": (
        " 254       0 vda 3128 11 200000 900 4100 22 300000 5000 0 10 11 0 0 0 0 0 0\n"
        " 254       1 vda1 3000 11 190000 900 4100 22 300000 5000 0 10 11 0 0 0 0 0 0\n"
        "   7       0 loop0 99 0 5000 9 9 2 5000 50 0 10 11 0 0 0 0 0 0\n"
    ),
    "proc/self/net/dev": (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n"
        "    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n"
        "  eth0: 900000 1000 0 0 0 0 0 0 800000 900 0 0 0 0 0 0\n"
        "ssjob0:   70000 100 0 0 0 0 0 0 110000 90 0 0 0 0 0 0\n"
    ),
}
V2 = {
    "g/cpu.stat": "usage_usec 14203991\nuser_usec 14000000\nsystem_usec 203991\nnice_usec 0\nnr_periods 0\nnr_throttled 0\n",
    "g/cgroup.procs": "4210\n4211\n",
    "g/memory.current": "640167936\n",
    "g/memory.max": "max\n",
    "g/memory.high": "max\n",
    "g/memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "g/memory.swap.current": "8192\n",
    "g/memory.stat": (
        "anon 530579456\nfile 105906176\nkernel 3000000\nshmem 2097152\nfile_mapped 4055040\nswapcached 0\n"
        "inactive_anon 532676608\nactive_anon 16384\ninactive_file 81788928\nactive_file 22020096\n"
    ),
    "g/cpu.pressure": "some avg10=1.21 avg60=0.90 avg300=0.42 total=2000000\nfull total=0\n",
    "g/memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull total=0\n",
    "g/io.pressure": "some avg10=0.30 avg60=0.11 avg300=0.02 total=500000\nfull total=2\n",
    "g/io.stat": "254:0 rbytes=102400000 wbytes=51200 rios=9 wios=8 dbytes=0 dios=0\n7:0 rbytes=1 wbytes=2 rios=1 wios=1\n",
    "proc/self/net/dev": V1["proc/self/net/dev"],
}
FOLDERS = {"v1": {"cpuacct": "cpuacct", "memory": "memory", "freezer": "freezer"}, "v2": {"": "g"}}


def write(folder: Path, version: str, **changes: str) -> dict[str, str]:
    """The tree of a version below `folder`; the control groups in it. `changes` by the last part of a file's path."""
    for name, text in (V1 if version == "v1" else V2).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changes.get(path.name.replace(".", "_"), text))
    return {name: str(folder / where) for name, where in FOLDERS[version].items()}
