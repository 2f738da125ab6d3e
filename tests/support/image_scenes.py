"""What happens on a minibox to a job that brings a container image: each function is one scene, see `minibox`."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.prepare.images.registry import ImageRules
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_wire import messages, object_keys, sealed_objects
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux import syscalls
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import ObjectStore
from support.engine_kit import (
    BASE,
    JOB,
    PROGRAM,
    SMALL,
    STORE,
    CriuEngine,
    W,
    engine,
    keep_output,
    newest,
    output,
    refused,
    request,
    runs,
    turns_pass,
    until,
)
from support.registry import HOST, HTPASSWD, LOGIN, authority, certificate, registry

STORAGE = Path("/run/store/registry")
SHELF = BASE / "images"
TURNS = 200
SPEAKS = 'echo "$(id -u) $(id -g) $(id -G) $PWD $HOME $WAVE $PATH"; cat /etc/hosts /etc/resolv.conf >/dev/null; ls /run'
SPEAKS += "; touch /etc/x 2>/dev/null || echo read-only"


def surfing(image: str = "tool:1", turns: int = TURNS) -> Spec:
    return Spec(JOB, ["python3", "engine_job.py", str(SMALL), str(turns)], image=f"docker://{HOST}/{image}")


def small(image: str = "small:1", job: str = JOB, **changes: object) -> Spec:
    return dataclasses.replace(Spec(job, ["sleep", "1000"], image=f"docker://{HOST}/{image}"), **changes)  # type: ignore[arg-type]


def made(store: ObjectStore | None = None, **rules: Any) -> CriuEngine:
    e = engine(store)
    e.world.images.rules = ImageRules(**{"insecure": (HOST,), "patience_seconds": 1.0, **rules})
    return e


def held() -> list[str]:
    """Names on the shelf but for its lock."""
    return sorted(p.name for p in SHELF.iterdir() if p.name != ".lock")


def unpin() -> None:
    open_store(STORE).delete([object_keys.image_key(JOB)])


# ---------------------------------------------------------------- surfing


def first() -> None:
    """The job starts in its image and is saved twice."""
    e = made()
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))
    with registry(STORAGE):
        e.start(surfing())
    turns_pass(e, 5)
    assert Path(f"/proc/{e.pids()[0]}/root/etc/mark").read_text() == "image one\n"
    live = e.save(request(1, final=False))
    runs(e)
    e.save(request(2, final=True, base=live.checkpoint, commit=lambda i: keep_output(e, i.log)))
    facts = newest(open_store(STORE)).facts
    library = next(x for name, x in facts.items() if name.startswith("file ") and "libc.so" in name)
    assert "build-id" in library, "looked up in the image's tree"
    assert facts["container image"] == held_digest()
    e.kill()


def last() -> None:
    """It goes on in a box that never had the image, although the tag means another one by now, and ends as if alone."""
    store = open_store(STORE)
    e, image = made(store), newest(store)
    with registry(STORAGE):
        e.restore(image, surfing())
    runs(e)
    assert Path(f"/proc/{e.pids()[0]}/root/etc/mark").read_text() == "image one\n"
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert e.status().exit_code == 7, output(e, "err")
    keep_output(e, dict(e.status().log or {}))
    told = Path("/run/store/log-out").read_text().split("\n")
    assert told[1:] == [f"turn {i}" for i in range(TURNS)] + ["end", ""], told
    e.kill()


def held_digest() -> str:
    return "sha256:" + held()[0]


def refusals() -> None:
    """Another digest, or the machine's own root, is refused before anything is fetched; both values are named."""
    store = open_store(STORE)
    e, image = made(store), newest(store)
    other = dataclasses.replace(image, facts={**image.facts, "container image": "sha256:" + 64 * "0"})
    told = refused("refused", lambda: e.restore(other, surfing()))
    pinned = str(image.facts["container image"])
    assert 64 * "0" in told and pinned in told, told
    told = refused("refused", lambda: e.restore(image, dataclasses.replace(surfing(), image="")))
    assert "machine's own root" in told and pinned in told, told
    assert not SHELF.exists(), "nothing was fetched"


# ---------------------------------------------------------------- once a machine, and what goes wrong


def once() -> None:
    """What is here is not asked for again; a job that was told a tag once keeps what it meant."""
    e = made()
    with registry(STORAGE):
        e.start(small())
    e.kill()
    e.start(small())  # nobody would answer
    until(lambda: e.status().state is W.RUNNING)
    e.kill()
    assert len(held()) == 1


def speaks(*wanted: str) -> None:
    """User, groups, folder, environment and entry point of the image; its root can't be written."""
    e = made()
    with registry(STORAGE):
        for spec, line in (
            (small("spoken:1", command=[]), wanted[0]),
            (small("spoken:1", command=[], user="0:77", folder="deep", environment={"WAVE": "small"}), wanted[1]),
            (small("spoken:1", command=["sh", "-c", SPEAKS], entry_point=[], outputs=["x"]), wanted[2]),
        ):
            e.start(spec)
            until(lambda: e.status().state is W.EXITED)
            told = output(e).decode().splitlines()
            assert told == [line, "secrets", "read-only"], (told, line, output(e, "err"))
            e.kill()
    assert "'nobody-here' does not exist in the image" in refused("user", lambda: e.start(small(user="nobody-here")))


def trouble() -> None:
    """One sentence each, and nothing is left of what failed."""
    told = fails("store", small())
    assert f"the registry {HOST} can't be reached" in told, told
    with registry(STORAGE):
        for image in ("nothing:1", "small:nothing", f"small@sha256:{64 * '0'}"):
            told = fails("image", small(image))
            assert f"has no image {HOST}/{image}" in told, told
        told = fails("image", small("arm:1"))
        assert "linux/arm64" in told and "linux/amd64" in told, told
        told = fails("image", small(), insecure=())
        assert "speaks no TLS" in told, told
        full()
        damaged()
    denied()


def fails(kind: str, spec: Spec, **rules: Any) -> str:
    e = made(**rules)
    told = refused(kind, lambda: e.start(spec))
    assert not SHELF.exists() or held() == [], held()
    assert "\n" not in told and len(told) < 400, told
    unpin()
    return told


def full() -> None:
    filler = BASE / "filler"
    for spare in (4 << 20, 30 << 20):  # too little for what is sent; enough for that, but not for the tree
        st = os.statvfs(BASE)
        with filler.open("wb") as f:
            os.posix_fallocate(f.fileno(), 0, st.f_bavail * st.f_frsize - spare)
        told = fails("refused", small("tool:1"))
        assert "disk is full" in told and "larger disk" in told, told
        filler.unlink()
        os.sync()


def damaged() -> None:
    layer = max(STORAGE.rglob("data"), key=lambda p: p.stat().st_size)
    whole = layer.read_bytes()
    layer.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    told = fails("image", small("tool:1"))
    assert "is damaged in the registry" in told, told
    layer.write_bytes(whole)


def denied() -> None:
    """Without credentials, with wrong ones, with right ones that travel sealed."""
    users = BASE / "htpasswd"
    users.write_text(HTPASSWD)
    store, keys = open_store(STORE), Keys.derive(b"", JOB)
    with registry(STORAGE, htpasswd=users):
        for login in (None, "c3VyZmVyOm5v", LOGIN):
            store.delete([object_keys.secrets_key(JOB)])
            if login is not None:
                auth = f'{{"auths": {{"{HOST}": {{"auth": "{login}"}}}}}}'.encode()
                store.create(
                    object_keys.secrets_key(JOB), sealed_objects.seal_secrets({sealed_objects.REGISTRY_AUTH: auth}, keys, JOB)
                )
            if login != LOGIN:
                told = fails("image", small())
                assert f"the registry {HOST} does not give" in told and "registry_auth" in told, told
        e = made()
        e.start(small())
        left = [p for p in BASE.rglob("*") if p.is_file() and not p.is_relative_to(SHELF) and LOGIN.encode() in p.read_bytes()]
        assert left == []
        e.kill()


def trusted() -> None:
    """A registry that signed for itself is not trusted, until its certificate is among the machine's authorities."""
    syscalls.mount("tmpfs", "/etc/ssl/certs", "tmpfs")
    tls = certificate(BASE / "tls")
    with registry(STORAGE, tls=tls):
        told = fails("image", small(), insecure=())
        assert f"the certificate of the registry {HOST} is not trusted" in told, told
        assert "authorities of [images]" in told, told
        shutil.copy(tls / "cert.pem", "/etc/ssl/certs/ours.pem")
        e = made(insecure=())
        e.start(small())
    e.kill()


def signed() -> None:
    """A registry whose certificate a private authority has signed: trusted by that one, by no other, by its own name."""
    syscalls.mount("tmpfs", "/etc/ssl/certs", "tmpfs")
    ours = authority(BASE / "ours", "IP:127.0.0.1")
    other, elsewhere = authority(BASE / "other", "IP:127.0.0.1"), authority(BASE / "elsewhere", "IP:127.0.0.2")
    with registry(STORAGE, tls=ours):
        for wrong in ("", (other / "ca.pem").read_text()):
            told = fails("image", small(), insecure=(), authorities=wrong)
            assert f"the certificate of the registry {HOST} is not trusted: name its authority" in told, told
        e = made(insecure=(), authorities=(other / "ca.pem").read_text() + (ours / "ca.pem").read_text())
        e.start(small())
        e.kill()
    unpin()
    shutil.rmtree(SHELF)
    with registry(STORAGE, tls=elsewhere):
        told = fails("image", small(), insecure=(), authorities=(elsewhere / "ca.pem").read_text())
        assert f"the certificate of the registry {HOST} is not for that name" in told, told


def killed() -> None:
    """Whoever unpacks may die at any step: what is on the shelf is whole, and the next one begins anew."""
    e = made()
    with registry(STORAGE):
        for stage in ("asking for the image", "fetching the image", "unpacking the image"):
            for delay in (0.0, 0.05, 0.3):
                _dies(e, stage, delay)
                assert all(name.startswith(".") or (SHELF / name / "image.json").exists() for name in held()), held()
        e.start(small("tool:1"))
        assert len(held()) == 1
        e.kill()


def _dies(e: CriuEngine, stage: str, delay: float) -> None:
    pid = os.fork()
    if pid == 0:

        def progress(now: str) -> None:
            if now == stage:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, max(delay, 0.001))

        e.world.prepare(small("tool:1"), progress)
        os._exit(0)
    os.waitpid(pid, 0)


def room() -> None:
    """What was not used for longest goes when the limit is reached; what is needed now stays."""
    with registry(STORAGE):
        for image in ("small:1", "spoken:1"):
            e = made(cache_bytes=1)
            e.start(small(image))
            e.kill()
            unpin()
        assert len(held()) == 1, held()
        e = made(cache_bytes=1 << 40)
        e.start(small("small:1"))
        e.kill()
        assert len(held()) == 2, held()


LOADS = """
import ctypes, os, time
there = ctypes.CDLL("libdriver.so.1")
there.zlibVersion.restype = ctypes.c_char_p
for i in range(10**6):
    print("turn", i, there.zlibVersion().decode(), os.environ["VENDOR"], os.path.exists("/opt/vendor/tool"), flush=True)
    time.sleep(0.02)
"""


def devices() -> None:
    """A device's libraries come from the machine, as its vendor describes them, and are found by the names programs know."""
    folder = BASE / "vendor"
    folder.mkdir()
    library = folder / "libdriver.so.550.1"
    shutil.copy(Path("/lib/x86_64-linux-gnu/libz.so.1").resolve(), library)
    (folder / "libdriver.so.1").symlink_to(library.name)
    (folder / "tool").write_text("tool")
    mounts = [
        {"hostPath": str(library), "containerPath": "/usr/lib/x86_64-linux-gnu/libdriver.so.550.1", "options": ["ro", "bind"]},
        {"hostPath": str(folder / "tool"), "containerPath": "/opt/vendor/tool"},
        {"hostPath": str(folder / "absent"), "containerPath": "/opt/vendor/absent"},
    ]
    everywhere = {"env": ["VENDOR=here"], "mounts": mounts}
    one = {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}
    Path("/run/cdi").mkdir()
    Path("/run/cdi/vendor.json").write_text(
        json.dumps({"cdiVersion": "0.5.0", "kind": "vendor.com/gpu", "devices": [one], "containerEdits": everywhere})
    )
    e = made()
    spec = small("tool:1", command=["python3", "-c", LOADS], devices=["vendor.com/gpu=all"])
    with registry(STORAGE):
        e.start(spec)
    turns_pass(e, 5)
    assert output(e).decode().splitlines()[0].split()[3:] == ["here", "True"]
    e.save(request(1, final=True))
    e.kill()
    e.restore(newest(open_store(STORE)), spec)
    turns_pass(e, 5)
    e.kill()
    told = refused("refused", lambda: e.start(small("tool:1", devices=["vendor.com/gpu=7"])))
    assert "no device vendor.com/gpu=7 (it has vendor.com/gpu=all)" in told, told


TELLS = (
    "i=0; while :; do i=$((i+1)); "
    "echo turn $i $TOKEN $(cat /run/secrets/key) $(cat /run/mine /proc/sys/kernel/hostname /etc/hosts); sleep 0.02; done"
)


def given() -> None:
    """Secrets are there as in any job, beside a /run of its own that travels along; names are looked up in files of ours."""
    values = {"TOKEN": b"t0ken", "key": b"k3y"}
    open_store(STORE).create(object_keys.secrets_key(JOB), sealed_objects.seal_secrets(values, Keys.derive(b"", JOB), JOB))
    spec = small(command=["sh", "-c", f"echo own > /run/mine; {TELLS}"], secrets={"TOKEN": "environment", "key": "file"})
    e = made()
    with registry(STORAGE):
        e.start(spec)
    turns_pass(e, 60)  # some lines, which are longer than others'
    e.save(request(1, final=True))
    e.kill()
    e.restore(newest(open_store(STORE)), spec)
    turns_pass(e, 60)
    told = {x.split(maxsplit=2)[2] for x in output(e).decode().splitlines()[1:-1]}
    assert told == {"t0ken k3y own j1 10.201.0.2 j1 127.0.0.1 localhost ::1 localhost"}, told
    e.kill()


COUNTS = 'i=$(cat saved || echo 0); trap "echo \\$i > saved" USR1; while :; do i=$((i+1)); echo turn $i; sleep 0.02; done'


def saves_itself() -> None:
    """A program that saves itself goes on in the image that it began in, and in no other."""
    app = messages.SelfSave(signal="USR1", done_file="saved")
    spec = small(command=["sh", "-c", COUNTS], engine="app", app=app)
    e = JobEngine(BASE, JOB, open_store(STORE), Tools.find(Path(os.environ["SPOTSURFER_PREFIX"])), Origin(StoreAccess(STORE)))
    e.world.images.rules = ImageRules(insecure=(HOST,))
    with registry(STORAGE):
        e.start(spec)
    turns_pass(e, 20)
    e.save(request(1, final=True))
    image = newest(open_store(STORE))
    other = dataclasses.replace(image, facts={**image.facts, "container image": "sha256:" + 64 * "0"})
    assert 64 * "0" in refused("refused", lambda: e.restore(other, spec))
    e.restore(image, spec)
    turns_pass(e, 3)
    first = next(x for x in output(e).decode().splitlines() if x.startswith("turn"))
    assert int(first.split()[1]) > 10, first  # it went on, it did not begin anew
    assert not Path(f"/proc/{e.pids()[0]}/root/usr/bin/python3").exists(), "the machine has one, the image has none"
    e.kill()


TROUBLE = (trouble, trusted, signed, killed, room)
SCENES: dict[str, Callable[..., None]] = {
    x.__name__: x for x in (first, last, refusals, once, speaks, *TROUBLE, devices, given, saves_itself)
}  # fmt: skip

if __name__ == "__main__":
    SCENES[sys.argv[1]](*sys.argv[2:])
