"""Secrets on their way: sealed for one job, opened by its agents, found nowhere else."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from spotsurfer_agent.prepare import environment
from spotsurfer_wire import object_keys, sealed_objects
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.messages import Spec
from support.dict_store import DictStore
from support.minibox import minibox

KEYS = Keys.derive(b"k" * 32, "j1")
VALUES = {"TOKEN": b"t0ken", "key.pem": b"\0\xffbinary\n", sealed_objects.REGISTRY_AUTH: b"{}"}


# ---------------------------------------------------------------- the seal


def test_what_was_sealed_opens_for_its_job_alone() -> None:
    data = sealed_objects.seal_secrets(VALUES, KEYS, "j1")
    assert sealed_objects.unseal_secrets(data, KEYS, "j1") == VALUES
    assert sealed_objects.seal_secrets(VALUES, KEYS, "j1") != data
    fork = Keys.derive(b"k" * 32, "j2")
    for keys, job in ((KEYS, "j2"), (fork, "j1"), (Keys.derive(b"", "j1"), "j1")):
        with pytest.raises(sealed_objects.SecretsLost, match="do not open"):
            sealed_objects.unseal_secrets(data, keys, job)


def test_every_changed_or_missing_bit_is_noticed() -> None:
    data = sealed_objects.seal_secrets(VALUES, KEYS, "j1")
    harmed = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]
    for bad in (*harmed, data[:-1], data[:10], b"", data + b"x"):
        with pytest.raises(sealed_objects.SecretsLost):
            sealed_objects.unseal_secrets(bad, KEYS, "j1")


def test_the_key_of_secrets_serves_nothing_else() -> None:
    assert len({KEYS.name, KEYS.seal, KEYS.cipher, KEYS.secrets}) == 4
    for value in (KEYS.secrets, VALUES["TOKEN"]):
        assert value not in sealed_objects.seal_secrets(VALUES, KEYS, "j1")
        assert repr(value) not in repr(KEYS)


# ---------------------------------------------------------------- the bag


def _stored(values: dict[str, bytes]) -> DictStore:
    store = DictStore()
    store.put(object_keys.secrets_key("j1"), sealed_objects.seal_secrets(values, KEYS, "j1"))
    return store


def test_each_in_its_form_and_nothing_that_is_not_named() -> None:
    spec = Spec("j1", ["true"], secrets={"TOKEN": sealed_objects.SECRET_VARIABLE, "key.pem": sealed_objects.SECRET_FILE})
    bag = environment.fetch_secret_bag(_stored(VALUES), KEYS, spec)
    assert bag.environment == {"TOKEN": "t0ken"}
    assert {n: base64.b64decode(v) for n, v in bag.files.items()} == {"key.pem": VALUES["key.pem"]}
    assert "t0ken" not in repr(bag)


def test_a_variable_may_hold_any_bytes() -> None:
    spec = Spec("j1", ["true"], secrets={"TOKEN": sealed_objects.SECRET_VARIABLE})
    bag = environment.fetch_secret_bag(_stored({"TOKEN": b"\xff\xfe"}), KEYS, spec)
    assert os.fsencode(bag.environment["TOKEN"]) == b"\xff\xfe"


def test_one_that_is_missing_is_named() -> None:
    spec = Spec("j1", ["true"], secrets={"TOKEN": sealed_objects.SECRET_VARIABLE, "OTHER": sealed_objects.SECRET_VARIABLE})
    with pytest.raises(sealed_objects.SecretsLost, match="secret OTHER of j1"):
        environment.fetch_secret_bag(_stored(VALUES), KEYS, spec)
    assert environment.fetch_secret_bag(DictStore(), KEYS, Spec("j1", ["true"])) == environment.SecretBag(), (
        "a job without is asked nothing"
    )


def test_who_holds_them_leaves_no_core_file() -> None:
    code = "import ctypes; from spotsurfer_wire.linux import syscalls as s; s.leave_no_core();"
    code += " print(ctypes.CDLL(None).prctl(3))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0", "PR_GET_DUMPABLE"


# ---------------------------------------------------------------- a job with secrets


def _canaries(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    found = [f"canary-{secrets.token_hex(24)}".encode() for _ in range(2)]
    for name, value in zip(("AP", "db"), found, strict=True):
        monkeypatch.setenv(f"CANARY_{name}", value.hex())
    return found


def _holds(place: Path, value: bytes) -> bool:
    """Whether these bytes, or their text in base64, lie anywhere in a file or below a folder."""
    words = [value, *(base64.b64encode(value[i:])[4:-8] for i in range(3))]
    patterns = [x for word in words for x in ("-e", word.decode())]
    done = subprocess.run(["grep", "-raqF", *patterns, str(place)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 0


@pytest.mark.real
@pytest.mark.parametrize("encrypts", ["yes", pytest.param("no", marks=pytest.mark.slow)])
def test_canaries_lie_only_in_the_image_of_the_memory_which_is_encrypted(tmp_path, monkeypatch, encrypts) -> None:
    canaries, store = _canaries(monkeypatch), tmp_path / "store"
    for scene in ("begins", "goes_on"):
        with minibox(tmp_path / scene, store, module="support.secret_scenes") as machine:
            machine.run(scene, encrypts)
            for value in canaries:
                assert not _holds(tmp_path / scene, value), "on the machine's disk, among them all files of the agent"
    in_store = [_holds(store, value) for value in canaries]
    assert in_store == [encrypts == "no"] * 2, "the second is the proof that the search finds what is there"


@pytest.mark.real
def test_secrets_that_do_not_open(tmp_path, monkeypatch) -> None:
    _canaries(monkeypatch)
    with minibox(tmp_path / "box", tmp_path / "store", module="support.secret_scenes") as machine:
        machine.run("lost")
