"""Container images in job files: keys, what is wrong with them, credentials."""

from __future__ import annotations

import json

import pytest
from spotsurfer_wire.sealed_objects import REGISTRY_AUTH

from spotsurfer.jobspec.parse import read_jobfile
from spotsurfer.model.errors import InputMissing, JobFileError

AUTH = json.dumps({"auths": {"reg.example": {"auth": "eDp5"}}})


def read(folder, text):
    path = folder / "job.toml"
    path.write_text(text)
    return read_jobfile(path)


def test_an_image_brings_its_own_command(tmp_path):
    spec = read(tmp_path, 'image = "docker://reg.example/tools/bwa:0.7"\n').spec
    assert (spec.image, spec.command, spec.entry_point) == ("docker://reg.example/tools/bwa:0.7", (), None)
    spec = read(tmp_path, 'image = "docker://x/y:1"\ncommand = "run it"\nentry_point = []\nuser = "1000:1000"\n').spec
    assert (spec.command, spec.entry_point, spec.user) == (("run", "it"), (), "1000:1000")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('image = "bwa:0.7"', "line 1: image is 'bwa:0.7', expected docker://"),
        ('command = "x"\nentry_point = ["sh"]', "line 2: entry_point speaks of a container image, but the job has none"),
        ('command = "x"\nregistry_auth = "file:x"', "registry_auth speaks of a container image"),
        ('image = "docker://x/y"\nregistry_auth = "auth.json"', "expected file:PATH or env:NAME"),
        ('image = "docker://x/y"\nuser = "a b"', "expected a user of the image"),
        ('command = "x"\nuser = "1000:1000"', "expected a user of the machine"),
        ('image = "docker://x/y"\ndevices = ["gpu"]', "expected a name like 'nvidia.com/gpu=all'"),
        ('command = "x"\ndevices = ["nvidia.com/gpu=all"]', "devices speaks of a container image"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(tmp_path, text, told):
    with pytest.raises(JobFileError) as e:
        read(tmp_path, text)
    assert told in str(e.value)


def test_credentials_travel_among_the_secrets_and_never_in_the_specification(tmp_path, monkeypatch):
    (tmp_path / "auth.json").write_text(AUTH)
    request = read(tmp_path, 'image = "docker://reg.example/y"\nregistry_auth = "file:auth.json"')
    assert request.secrets == {REGISTRY_AUTH: AUTH.encode()}
    assert "eDp5" not in repr(request)
    monkeypatch.setenv("AUTH", AUTH)
    assert (
        read(tmp_path, 'image = "docker://reg.example/y"\nregistry_auth = "env:AUTH"').secrets[REGISTRY_AUTH] == AUTH.encode()
    )
    with pytest.raises(InputMissing, match=r"registry_auth names .*gone\.json, which can't be read"):
        read(tmp_path, 'image = "docker://reg.example/y"\nregistry_auth = "file:gone.json"')


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"auths": {}}', '{"auths": {"x": {}}, "credsStore": "desktop"}', "\udcff"])
def test_what_holds_no_credentials_is_refused(tmp_path, text):
    (tmp_path / "auth.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(JobFileError, match=r"is no containers-auth\.json"):
        read(tmp_path, 'image = "docker://reg.example/y"\nregistry_auth = "file:auth.json"')
