"""What the token of one attempt may touch: by an evaluator of conditions that we did not write, not by reading them."""

from __future__ import annotations

import json
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
from google.auth.exceptions import RefreshError
from spotsurfer_providers.gcp.error_codes import translated
from spotsurfer_providers.gcp.store_access import Chain, boundary
from spotsurfer_wire import clock, object_keys
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from spotsurfer_wire.store.port import RightsUnreachable, StoreDenied
from support import gcp
from support.gce import identity
from support.gce.errors import Refused
from support.gce.identity import Identity
from support.gce.server import CONTROLLER, TestGce
from support.gce.storage import BUCKET, PART_BYTES_MIN

from spotsurfer.model.errors import Invalid, ProviderDenied, ProviderError, Throttled

URL = "gs://store/fleet"
OBJECT = "storage.googleapis.com/Object"
JOB, ATTEMPT = "asm-abc123", 2


class Token:
    """A token of the job's account, cut down by a boundary."""

    def __init__(self, *inputs: str, url: str = URL, job: str = JOB, attempt: int = ATTEMPT, home: str = "") -> None:
        self.identity, rules = Identity(), boundary(url, job, attempt, inputs, home)["accessBoundary"]["accessBoundaryRules"]
        identity.check(rules)
        self.who = self.identity.who(f"Bearer {self.identity.issue('job', rules)}")

    def may(self, verb: str, address: str, kind: str = OBJECT) -> bool:
        """Of an object at bucket/key, or of a bucket."""
        bucket, slash, key = address.partition("/")
        name = f"//storage.googleapis.com/projects/_/buckets/{bucket}" + (f"/objects/{key}" if slash else "")
        return self.identity.may(self.who, f"storage.objects.{verb}", name, kind)


def test_the_rights_are_those_of_the_attempt_key_by_key() -> None:
    """Whatever `rights_of_attempt` says of a key. Who may replace an object may remove it, too: Google has one right."""
    token, rights = Token(), object_keys.rights_of_attempt(JOB, ATTEMPT)
    home = object_keys.job_prefix(JOB)
    inside = (
        "SPEC.json", "SECRETS", "chunks/ab/x", "head/00000003.json", "desired/000002.json", "condemned.json", "order.json",
        "checkpoints/000002-000001/MANIFEST", "checkpoints/000002-000001/PROVEN", "checkpoints/000002-000001/PROTECTED",
        "log/000002/out-0-1", "log/000001/out-0-1", "out/000002/result", "out/000001/result", "partial/000001-000002/LIST",
        "intents/000002-000001", "intents/000001-000001", "in/desired/x", "out/000002/desired/x",
    )  # fmt: skip
    outside = (
        object_keys.live_key(JOB, 2), object_keys.live_key(JOB, 3), "live/other.000002", "jobs/other/SPEC.json",
        f"jobs/{JOB}x/SPEC.json", object_keys.handout_key(JOB, 2), "runtime/x", "controller/00000001.json", "pulse",
    )  # fmt: skip
    for key in (*(home + name for name in inside), *outside):
        told = {verb: token.may(verb, f"store/fleet/{key}") for verb in ("get", "create", "delete")}
        replaces = rights.may_overwrite(key) or rights.may_remove(key)
        assert told == {"get": rights.may_read(key), "create": rights.may_create(key) or replaces, "delete": replaces}, key
    assert not any(token.may("get", f"{other}/fleet/{home}SPEC.json") for other in ("store2", "stor"))
    assert token.may("list", "store") and not token.may("list", "other")


@pytest.mark.parametrize(
    ("address", "inside", "outside"),
    [
        ("gs://lab/reads.fq", "lab/reads.fq", "lab/reads.fq.gz"),
        ("gs://lab/run1/", "lab/run1/x/y", "lab/run2/x"),
        ("gs://lab/run*/x[12].fq", "lab/run7/x1.fq", "lab/other"),
        ('gs://lab/a"b\\c.fq', 'lab/a"b\\c.fq', "lab/a"),
        ("gs://lab/\N{GRINNING FACE}é.fq", "lab/\N{GRINNING FACE}é.fq", "lab/e.fq"),
    ],
)
def test_inputs_are_read_and_nothing_else(address: str, inside: str, outside: str) -> None:
    token = Token(address, "https://example.org/x", "s3://other/y")
    assert token.may("get", inside) and not token.may("get", outside)
    assert not token.may("create", inside) and not token.may("delete", inside)
    assert token.may("list", "lab") and not token.may("list", "other") and not token.may("get", "other/y")


def test_a_job_that_works_in_a_folder_reads_what_jobs_of_that_folder_were_sent() -> None:
    scope = object_keys.home_scope("ada", "/home/ada/wf")
    token, key = Token(home=scope), object_keys.home_file_key(scope, "a" * 64)
    assert token.may("get", f"store/fleet/{key}")
    assert not any(token.may(verb, f"store/fleet/{key}") for verb in ("create", "delete"))
    assert not token.may("get", f"store/fleet/{object_keys.home_file_key('0' * 32, 'a' * 64)}")


def test_many_inputs_are_summed_up() -> None:
    token = Token(*(f"gs://lab/project/run-{i}/reads.fq" for i in range(500)))
    assert token.may("get", "lab/project/run-7/reads.fq") and not token.may("get", "lab/project/other")


@pytest.mark.parametrize(
    "inputs",
    [
        ["gs://store/fleet/jobs/other/chunks/ab/x"],
        ["gs://store/fleet/jobs/"],
        ["gs://store/*.fq"],
        ["gs://store/"],
        ["gs://store//fleet/access/asm-1.000003"],
        [f"gs://store/{'abfghjlr'[i % 8]}/{'x' * 20}{i}" for i in range(200)],
        [f"gs://store/fleet/{'job' if i % 2 else 'runtime'}{i}" for i in range(200)],
        ["gs://store/fleet/job", "gs://store/fleet/j", *(f"gs://store/fleet/reads/{i:0100d}" for i in range(200))],
    ],
    ids=range(8),
)
def test_no_input_opens_anything_of_the_store(inputs: list[str]) -> None:
    """Not by an address, nor because many are summed up by what they have in common."""
    token = Token(*inputs)
    for key in ("jobs/other/x", "live/other.000001", "access/asm-1.000002", "runtime/x", "controller/00000001.json", "pulse"):
        assert not token.may("get", f"store/fleet/{key}"), key
    for address in inputs:
        assert token.may("get", address.removeprefix("gs://")) is not OwnStore(URL).holds(address), address


def test_a_few_buckets_fit_and_many_are_refused_with_the_remedy() -> None:
    """First as they are named, then by what they have in common, then as whole buckets."""
    inputs = [f"gs://lab-{i}/run-{i}/{n}.fq" for i in range(3) for n in range(5)]
    token = Token(*inputs)
    assert all(token.may("get", x.removeprefix("gs://")) for x in inputs) and not token.may("create", "lab-1/run-1/1.fq")
    inputs = [f"gs://{i}-{'b' * 20}/{'k' * 200}/{n}.fq" for i in range(3) for n in range(20)]
    token = Token(*inputs)
    assert all(token.may("get", x.removeprefix("gs://")) and token.may("list", x.split("/")[2]) for x in inputs)
    with pytest.raises(Invalid, match=r"12 buckets besides that of the store.*bring the inputs together in fewer buckets"):
        Token(*(f"gs://{i}-{'b' * 60}/x" for i in range(12)))


def test_the_longest_names_fit() -> None:
    """A bucket has 63 characters at most, a job's id 48. Those of a usual job fit into what Google advises, too."""
    Token(url=f"gs://{'s' * 63}/{'p' * 20}", job="j" * 48, attempt=999_999)
    made = boundary("gs://lab-123456-spotsurfer/store", "assembly-of-reads-abc123", 12, ())
    assert len(json.dumps(made["accessBoundary"])) <= 2048


# ---------------------------------------------------------------- the token, made and used


def own(gce: TestGce, path: Path) -> ObstoreStore:
    """The store as a machine of the attempt opens it."""
    token = gcp.provider(gce, path).credentials(JOB, ATTEMPT, ())
    gce.identity.grants = None
    options = {"base_url": gce.endpoint, "allow_http": "true", "bearer_token": token.values["token"]}
    return open_store(gcp.STORE, options)


def test_a_machine_writes_its_job_and_changes_nothing_that_was_written(gce: TestGce, tmp_path: Path) -> None:
    store, home = own(gce, tmp_path), object_keys.job_prefix(JOB)
    controllers = open_store(gcp.STORE, gce.options())
    controllers.put(object_keys.desired_key(JOB, ATTEMPT), b"drain")
    assert store.create(f"{home}head/00000001.json", b"one")
    assert not store.create(f"{home}head/00000001.json", b"two"), "there is one already: no lost right"
    with pytest.raises(StoreDenied):
        store.put(f"{home}head/00000001.json", b"other")
    with pytest.raises(StoreDenied):
        store.create(object_keys.desired_key(JOB, 3), b"mine")
    with pytest.raises(StoreDenied):
        store.get("jobs/other/SPEC.json")
    assert store.get(object_keys.desired_key(JOB, ATTEMPT)) == b"drain"
    assert store.get(f"{home}IMAGE.json") is None, "what is absent reads as absent"
    for text in (b"first", b"second"):
        store.put(object_keys.live_key(JOB, ATTEMPT), text)
    assert [x.key for x in store.list(f"{home}head/")] == [f"{home}head/00000001.json"]


def test_large_outputs_are_sent_in_parts(gce: TestGce, tmp_path: Path) -> None:
    store, file = own(gce, tmp_path), tmp_path / "large"
    file.write_bytes(bytes(range(256)) * (3 * PART_BYTES_MIN // 256) + b"end")
    key = f"{object_keys.output_prefix(JOB, ATTEMPT)}large"
    assert store.put_file(key, file) == file.stat().st_size
    assert store.get(key) == file.read_bytes()
    assert not gce.bucket.uploads and len(gce.bucket.objects) == 1


def test_tokens_live_an_hour_and_are_new_each_time(gce: TestGce, tmp_path: Path) -> None:
    provider = gcp.provider(gce, tmp_path)
    one, two = (provider.credentials(JOB, ATTEMPT, ()) for _ in range(2))
    assert one.values != two.values and set(one.values) == {"token"}
    assert 3500 < (one.expires_at - provider._host.clock.now()).total_seconds() <= 3600
    assert gce.calls == ["iamcredentials.projects.serviceAccounts.generateAccessToken", "sts.token"] * 2


def test_an_old_token_is_refused(gce: TestGce, tmp_path: Path) -> None:
    store = own(gce, tmp_path)
    gce.identity.now = lambda: time.monotonic() + 3601
    with pytest.raises(StoreDenied):
        store.get(object_keys.desired_key(JOB, ATTEMPT))


def test_without_the_right_to_make_tokens_it_is_said(gce: TestGce, tmp_path: Path) -> None:
    provider = gcp.provider(gce, tmp_path)
    gce.identity.grants = []
    with pytest.raises(ProviderDenied, match=r"generateAccessToken.*iam.serviceAccounts.getAccessToken"):
        provider.credentials(JOB, ATTEMPT, ())
    gce.identity.grants = None
    gce.identity.token_seconds = -1.0  # whatever is made has ended
    with pytest.raises(ProviderError):
        gcp.provider(gce, tmp_path).credentials(JOB, ATTEMPT, ())


def test_the_account_bounds_the_token(gce: TestGce, tmp_path: Path) -> None:
    store = own(gce, tmp_path)
    every = frozenset(p for role in identity.ROLES.values() for p in role)
    gce.identity.grants = [identity.Grant(gcp.JOB, every - {"storage.objects.create"}, f"projects/_/buckets/{BUCKET}")]
    with pytest.raises(StoreDenied):
        store.create(f"{object_keys.job_prefix(JOB)}head/00000001.json", b"one")
    assert {a.account for a in gce.identity.asked} == {gcp.JOB, CONTROLLER}


def test_an_upload_that_breaks_off_leaves_nothing(gce: TestGce) -> None:
    """Of the test cloud: half of an object would look like one that somebody else had made."""
    token = gce.options()["bearer_token"]
    host, port = gce.endpoint.removeprefix("http://").split(":")
    head = f"PUT /{BUCKET}/store/half HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.encode() + b"x" * 50)
    assert open_store(gcp.STORE, gce.options()).get("half") is None and not gce.bucket.objects


IMPERSONATE, EXCHANGE = "iamcredentials.projects.serviceAccounts.generateAccessToken", "sts.token"


@pytest.mark.parametrize("method", [IMPERSONATE, EXCHANGE])
@pytest.mark.parametrize(("status", "kind"), [(400, Invalid), (403, ProviderDenied), (429, Throttled), (503, ProviderError)])
def test_what_passes_is_told_from_what_does_not(
    method: str, status: int, kind: type[ProviderError], gce: TestGce, tmp_path: Path
) -> None:
    """google-auth calls them all alike. One job's bad boundary must not look like trouble of the service."""
    gce.answers[method] = [Refused(status, "x", "in words of Google")] * 9  # google-auth repeats some
    with pytest.raises(kind, match="in words of Google") as told:
        gcp.provider(gce, tmp_path).credentials(JOB, ATTEMPT, ())
    assert type(told.value) is kind


def test_no_token_is_ever_in_a_message() -> None:
    """google-auth puts the whole answer into its error if it can't read the time."""
    answer = '{"accessToken": "ya29.secret", "expireTime": "2026-11-28T12:00:00.123Z"}'
    error = translated(RefreshError("No access token or invalid expiration in response.", answer), "generateAccessToken")
    assert "ya29" not in str(error) and "invalid expiration" in str(error)


def test_a_controller_uses_its_token_while_the_next_one_cant_be_had(gce: TestGce, tmp_path: Path) -> None:
    chain, now = Chain(), clock.utc().replace(tzinfo=None)
    token = chain()["token"]
    chain.refused()
    assert (renewed := chain()["token"]) != token, "a refused one is renewed"
    chain._found.expiry = now + timedelta(minutes=2)  # google-auth would renew it
    chain._found._token_uri = "http://127.0.0.1:9/token"
    chain._found._always_use_jwt_access = False
    assert chain()["token"] == renewed
    chain._found.expiry = now - timedelta(minutes=2)
    with pytest.raises(RightsUnreachable):
        chain()
