"""Boxes with a root of their own: what leans on the host fails there, in words; what does not lives and moves as anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.boxes import yard
from support.fleet import CONFIG, MARKS, Fleet, fleet
from support.roottree import debian_tree

pytestmark = [*MARKS, pytest.mark.slow]
# As the usual program of these tests, in the shell that every system has: each line hangs on all before it.
SHELL = """\
h=begin i=0
while [ $i -lt 150 ]; do
  h=$(printf %s "$h" | sha256sum | cut -d' ' -f1); echo "$i $h" | tee -a result.txt; i=$((i + 1)); sleep 0.1
done
"""


@pytest.fixture(scope="module")
def tree() -> Path:
    return debian_tree()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Iterator[Fleet]:
    config = CONFIG.replace("[provider.local]\n", f'[provider.local]\nroot = "{tree}"\n')
    with fleet(tmp_path_factory.mktemp("root"), config=config) as made:
        yield made


def submit(world: Fleet, *command: str) -> str:
    job = str(world.client.post("/v1/ids", {"name": "rooted"})["job"])
    spec = {"name": "rooted", "command": list(command), "outputs": ["*.txt"], "memory_bytes": 1 << 28}
    world.client.put(f"/v1/jobs/{job}", {"spec": spec, "modes": {}})
    world.steps[job] = 0
    return job


def chain() -> list[str]:
    import hashlib

    h, lines = "begin", []
    for i in range(150):
        h = hashlib.sha256(h.encode()).hexdigest()
        lines.append(f"{i} {h}")
    return lines


def test_nothing_of_the_host_is_there(tmp_path: Path, tree: Path) -> None:
    (tmp_path / "of-the-host").write_text("x")
    with yard(tmp_path, root=str(tree)) as here:
        box = here.launch(
            f"""
ls {tmp_path} /usr/bin/python3 2>/dev/null && echo SAW
for d in / /etc /usr/bin /opt; do touch $d/probe 2>/dev/null && echo WROTE $d; done
for d in /tmp /run /root /home /var/tmp /dev/shm /var/lib/spotsurfer; do touch $d/probe || echo CANT $d; done
echo root has $(wc -l </proc/self/mountinfo) mounts; echo done"""
        )
        text = here.wait_console(box.id, "done\n")
        assert not any(word in text for word in ("SAW", "WROTE", "CANT")), text
        assert "host" not in (tree / "etc/hostname").read_text()
    left = [p for p in tree.rglob("probe")]
    assert left == []


def test_a_job_that_leans_on_a_program_of_the_host_is_told_so(world: Fleet) -> None:
    assert Path("/usr/bin/python3").exists()
    job = submit(world, "/usr/bin/python3", "-c", "print(1)")
    ended = world.wait_end(job)
    assert (ended["state"], ended["exit_code"]) == ("failed", 127)
    assert "a program was not found on the machine" in ended["reason"], ended["reason"]
    assert "/usr/bin/python3" in world.client.data(f"/v1/jobs/{job}/log/err", offset=0, limit=1 << 20).decode()


def test_a_job_moves_between_two_of_them(world: Fleet) -> None:
    job = submit(world, "/bin/sh", "-c", SHELL)
    world.wait_line(job, 20)
    world.client.post(f"/v1/jobs/{job}/move", {})
    world.wait(lambda: world.show(job)["moves"] == 1 and world.attempt(job, "running", 2), "the move", 60)
    world.wait(lambda: any(m["attempt"] == 2 for m in world.moments(job, "saved")), "a checkpoint there")
    manual_control.reclaim(world.data, world.box(job, 2), 0)
    ended = world.wait_end(job)
    assert (ended["exit_code"], ended["moves"]) == (0, 2), world.explain()
    assert world.output(job).splitlines() == chain()
    assert b"".join(world.client.download(f"/v1/jobs/{job}/outputs/result.txt")).decode().splitlines() == chain()


def test_an_image_from_the_hosts_root_is_refused_there_with_both_values(tmp_path: Path, tree: Path) -> None:
    with fleet(tmp_path) as world:
        job = world.submit(600)
        world.wait(lambda: world.moments(job, "saved"), "a checkpoint")
        world.kill_controller()
        world.config.write_text(world.config.read_text().replace("[provider.local]\n", f'[provider.local]\nroot = "{tree}"\n'))
        world.start()
        world.client.post(f"/v1/jobs/{job}/move", {})
        told = world.wait(
            lambda: [m["text"] for m in world.moments(job) if "can't continue the image" in m["text"]], "a refusal", 60
        )
        assert "file /usr/bin/python3" in told[0] and "absent" in told[0], told
        assert not [a for a in world.show(job)["attempts"] if a["number"] > 1 and a["state"] == "running"]
        world.client.post(f"/v1/jobs/{job}/cancel")
        world.wait_end(job)
