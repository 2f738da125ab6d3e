"""A job with secrets on miniboxes; run by `python -m support.secret_scenes`."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_wire import manifest, object_keys, sealed_objects
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, STORE, CriuEngine, W, output, refused, request, turns_pass

KEY = "5a" * 32
FORMS = {"API_TOKEN": sealed_objects.SECRET_VARIABLE, "db.password": sealed_objects.SECRET_FILE}
PROGRAM = """
import hashlib, os, sys, time
kept = open("/run/secrets/db.password", "rb")
memory = os.urandom(4 << 20) + kept.read() + os.urandom(4 << 20)  # noise stays as it is in the store: it can be searched
try: open("/run/secrets/db.password", "wb"); print("wrote it", flush=True)
except OSError: pass
mode = oct(os.stat("/run/secrets/db.password").st_mode & 0o7777)
i = 0
while True:
    kept.seek(0)
    parts = os.environb[b"API_TOKEN"], open("/run/secrets/db.password", "rb").read(), kept.read()
    print("turn", i, *(hashlib.sha256(p).hexdigest()[:16] for p in parts), end=" ")
    print(mode, os.getuid(), os.listdir("/run/secrets"), flush=True)
    i += 1
    time.sleep(0.02)
"""


def spec() -> Spec:
    return Spec(JOB, ["/usr/bin/python3", "-c", PROGRAM], user="nobody", secrets=FORMS)


def engine(encrypts: bool) -> CriuEngine:
    keys = Keys.of_hex(KEY, JOB, encrypts)
    tools = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))
    made = CriuEngine(BASE, JOB, open_store(STORE), tools, Origin(StoreAccess(STORE), key=KEY), keys)
    assert made.preflight() == []
    return made


def newest() -> Manifest:
    store = open_store(STORE)
    data = store.get([x.key for x in store.list(object_keys.checkpoints_prefix(JOB)) if x.key.endswith("MANIFEST")][-1])
    assert data is not None
    return manifest.decode(data, Keys.of_hex(KEY, JOB), JOB)


def values() -> dict[str, bytes]:
    """Outside of everything that the test looks through."""
    return {name: bytes.fromhex(os.environ["CANARY_" + name[:2]]) for name in FORMS}


def printed(e: CriuEngine) -> list[str]:
    turns_pass(e, 5)
    lines = output(e).decode().splitlines()
    assert "wrote it" not in lines
    return [x.split(maxsplit=2)[2] for x in lines if x.startswith("turn")]


def expected() -> str:
    token, password = (hashlib.sha256(v).hexdigest()[:16] for v in values().values())
    return f"{token} {password} {password} 0o400 65534 ['db.password']"


def begins(encrypts: str) -> None:
    """Start, save live, save for the last time."""
    e = engine(encrypts == "yes")
    open_store(STORE).create(object_keys.secrets_key(JOB), sealed_objects.seal_secrets(values(), Keys.of_hex(KEY, JOB), JOB))
    e.start(spec())
    assert set(printed(e)) == {expected()}
    limits = [Path(f"/proc/{p}/limits").read_text() for p in e.pids()]
    assert all("Max core file size        0 " in x for x in limits), "a core file would hold them, too"
    assert not Path("/run/secrets").exists(), "the machine itself does not have them"
    live = e.save(request(1, final=False))
    assert set(printed(e)) == {expected()}
    e.save(request(2, final=True, base=live.checkpoint))
    e.kill()


def goes_on(encrypts: str) -> None:
    """They are there again, also for the descriptor that was open; and after a restore that had to be done again."""
    e, image = engine(encrypts == "yes"), newest()
    for _ in range(2):
        e.restore(image, spec())
        assert set(printed(e)) == {expected()}
        e.kill()


def lost() -> None:
    """Without its secrets, or with ones that were sealed for another job, a job does not run; nothing of them is said."""
    store, keys = open_store(STORE), Keys.of_hex(KEY, JOB)
    e = engine(True)
    key = object_keys.secrets_key(JOB)
    for data in (None, sealed_objects.seal_secrets(values(), keys, "j2"), b"SSX1"):
        if data is not None:
            store.put(key, data)
        why = "is not in the store" if data is None else "do not open"
        assert why in refused("secrets", lambda: e.start(spec()))
        assert e.status().state is W.ABSENT
    store.put(key, sealed_objects.seal_secrets(values(), keys, JOB))
    e.start(spec())
    printed(e)
    e.save(request(1, final=True))
    e.kill()
    image = newest()
    store.put(key, sealed_objects.seal_secrets({**values(), "db.password": b"shorter"}, keys, JOB))
    told = refused("restore", lambda: e.restore(image, spec()))
    assert "run/secrets/db.password" in told, told
    store.put(key, b"SSX1" + bytes(40))
    assert "do not open" in refused("secrets", lambda: e.restore(image, spec()))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
