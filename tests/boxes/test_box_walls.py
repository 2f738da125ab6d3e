"""What a box can and can't do: its walls, its limits, its disk, its link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.boxes import Yard, yard

pytestmark = pytest.mark.real

RUNTIME_BYTES = 24 << 20


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Yard]:
    with yard(tmp_path) as y:
        yield y


def test_nothing_of_the_host_can_be_written_or_found(here: Yard) -> None:
    (here.path / "secret").write_text("x")
    box = here.launch(
        f"""
for d in / /etc /usr/bin /var /var/lib /sys /opt; do touch $d/probe 2>/dev/null && echo WROTE $d; done
mount -o remount,rw / 2>/dev/null; touch /etc/probe 2>/dev/null; rm -f /etc/probe
ls {here.path}/secret {here.path}/local 2>/dev/null && echo SAW
for d in /tmp /run /var/tmp /root /home /dev/shm /var/lib/spotsurfer; do touch $d/probe || echo CANT $d; done
echo links: $(ls /sys/class/net) processes: $(ls -d /proc/[0-9]* | wc -l)
cat /proc/self/cgroup | sed 's/.*://' | sort -u | tr '\\n' ' '; echo
ping -c1 -W1 192.0.2.1 >/dev/null 2>&1 && echo OUT; echo done"""
    )
    text = here.wait_console(box.id, "done\n")
    assert not re.search("WROTE|SAW|CANT|OUT", text), text
    assert "links: eth0 lo processes:" in text
    assert int(re.findall(r"processes: (\d+)", text)[0]) < 10
    assert "\n/ \n" in text  # its control groups are the roots of what it sees


def test_limits_are_in_force(tmp_path: Path) -> None:
    with yard(tmp_path, pools=["local-a/t3.nano"]) as here:
        box = here.launch(
            """
g=/sys/fs/cgroup
cat $g/memory/memory.limit_in_bytes $g/memory.max 2>/dev/null; cat $g/cpu/cpu.cfs_quota_us $g/cpu.max 2>/dev/null
python3 -c 'b = bytearray(1 << 30); print("GOT", "IT")'; echo exit $?"""
        )
        text = here.wait_console(box.id, "exit", 30)
        assert str(512 << 20) in text and "200000" in text
        assert "GOT IT" not in text and "exit 137" in text
        assert here.view(box.id).state == "running"


def test_the_disk_is_private_and_goes_with_the_box(here: Yard) -> None:
    script = """
cd /var/lib/spotsurfer; stat -f -c %T .; ls -A; dd if=/dev/zero of=x bs=1M count=100; sync; echo wrote; sleep 1000"""
    first = here.launch(script)
    assert "btrfs" in here.wait_console(first.id, "wrote")
    second = here.launch(script)
    assert "\nx\n" not in here.wait_console(second.id, "wrote")
    assert len([x for x in here.leftovers() if "/loop" in x]) == 2
    for box in (first, second):
        here.provider.terminate(box.id)
        here.wait_gone(box.id)
    here.assert_clean()
    assert not list(here.folder(first.id).glob("disk*"))


def test_a_box_with_an_ext4_disk_may_choose_its_inode_numbers_and_write_nothing_else_of_sys(tmp_path: Path) -> None:
    with yard(tmp_path, disk_kind="ext4") as here:
        box = here.launch("""
cd /var/lib/spotsurfer; stat -f -c %T .; d=/sys/fs/ext4/$(basename $(findmnt -no SOURCE .))
echo 4000 > $d/inode_goal && touch x && echo number $(stat -c %i x)
echo 1 > $d/max_writeback_mb_bump || echo other refused
for g in /sys/fs/ext4/*/inode_goal; do [ $g = $d/inode_goal ] || ( echo 4000 > $g ) && echo of $g; done; echo end""")
        text = here.wait_console(box.id, "end")
        assert "ext2/ext3" in text and "number 4000" in text and "other refused" in text
        assert len(re.findall("^of ", text, re.MULTILINE)) == 1


def test_clocks_can_differ_from_box_to_box(tmp_path: Path) -> None:
    with yard(tmp_path, clock_offset_seconds_max=10**8) as here:
        boxes = [here.launch("echo up $(cut -d. -f1 /proc/uptime)") for _ in range(2)]
        ups = [int(re.findall(r"up (\d+)", here.wait_console(b.id, "up "))[0]) for b in boxes]
        host = float(Path("/proc/uptime").read_text().split()[0])
        offsets = [r["clock_offset_seconds"] for b in boxes for r in manual_control.list_boxes(here.path) if r["id"] == b.id]
        assert [abs(up - host - offset) < 30 for up, offset in zip(ups, offsets, strict=True)] == [True, True]
        assert abs(ups[0] - ups[1]) > 60


def test_a_full_disk_is_the_boxes_own_trouble(tmp_path: Path) -> None:
    with yard(tmp_path, disk_bytes=256 << 20) as here:
        box = here.launch("dd if=/dev/zero of=/var/lib/spotsurfer/x bs=1M count=400; echo exit $?; sleep 1000")
        assert "exit 1" in here.wait_console(box.id, "exit")
        assert here.view(box.id).state == "running"


def test_the_gateway_serves_the_store(here: Yard) -> None:
    box = here.launch(
        """
u=http://10.77.0.1:9000/store
put() { curl -s -o /dev/null -w "$1 %{http_code}\\n" -T /etc/hostname "$@"; }
put $u/jobs/job-a/out/000003/x; put $u/jobs/job-b/out/000003/x; put -H 'If-None-Match: *' $u/jobs/job-a/out/000003/x
put $u/live/job-a.000003
put $u/live/job-a.000004; put $u/jobs/job-a/SPEC.json; echo done"""
    )
    text = here.wait_console(box.id, "done")
    codes = [int(x) for x in re.findall(r" (\d{3})$", text, re.MULTILINE)]
    assert codes == [200, 403, 412, 200, 403, 403]
    assert (here.store / "jobs/job-a/out/000003/x").read_text() == Path("/etc/hostname").read_text()


def test_a_box_without_a_job_has_no_gateway(here: Yard) -> None:
    box = here.launch("curl -s http://10.77.0.1:9000/store; echo exit $?", tags={})
    assert "exit 7" in here.wait_console(box.id, "exit")


def test_the_links_rate_can_be_set_cut_and_mended(here: Yard) -> None:
    folder = here.store / "runtime"
    folder.mkdir()
    (folder / "blob").write_bytes(bytes(RUNTIME_BYTES))
    u = "http://10.77.0.1:9000/store"
    box = here.launch(
        f"""
get() {{ curl -s -m 20 -o /dev/null -w "$1 %{{speed_download}} %{{exitcode}}\\n" {u}/runtime/blob; }}
get fast; echo ready-1; read < /run/go; get slow
curl -s -o /dev/null -w "up %{{speed_upload}}\\n" -T <(head -c 10000000 /dev/zero) {u}/jobs/job-a/up
echo ready-2; read < /run/go; curl -s -m 1 {u}/runtime/blob -o /dev/null; echo cut $?
echo ready-3; read < /run/go; get again""".replace("get fast", "mkfifo /run/go; get fast")
    )

    def go_on(ready: str) -> None:
        here.wait_console(box.id, ready, 30)

    def release() -> None:
        Path(f"/proc/{here.inner_pid(box.id)}/root/run/go").write_text("\n")

    go_on("ready-1")
    manual_control.set_link_rate(here.path, box.id, 100_000_000)
    release()
    go_on("ready-2")
    manual_control.set_link_up(here.path, box.id, False)
    release()
    go_on("ready-3")
    manual_control.set_link_up(here.path, box.id, True)
    manual_control.set_link_rate(here.path, box.id, None)
    release()
    here.wait_console(box.id, "again", 30)
    rates = {k: float(v) for k, v in re.findall(r"(fast|slow|up|again) (\d+)", here.console(box.id))}
    assert 0.6 * 12.5e6 < rates["slow"] < 1.3 * 12.5e6, rates
    assert 0.6 * 12.5e6 < rates["up"] < 1.4 * 12.5e6, rates
    assert min(rates["fast"], rates["again"]) > 2 * rates["slow"], rates
    assert "cut 28" in here.console(box.id)
