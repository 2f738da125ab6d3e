"""The rights that Terraform gives suffice for everything that is called, and nothing that it gives is idle.

Everything runs under these rights alone: the controller's calls, a machine's, and those of an attempt.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spotsurfer_agent.store.credentials import own_store
from spotsurfer_providers.gcp.provider import GcpProvider
from spotsurfer_wire import object_keys
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from spotsurfer_wire.store.port import StoreDenied
from support import gcp
from support.gce import metadata, terraformed
from support.gce.boxes import TOKEN
from support.gce.server import CONTROLLER, TestGce
from support.gce.storage import PART_BYTES_MIN
from support.provider_contract import Bench

from spotsurfer.model.errors import CredentialsExpired, ProviderDenied
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market
from spotsurfer.ports.provider import LaunchPlan, Provider

JOB, ATTEMPT = "asm-abc123", 1
GET, LIST, DELETE = (f"storage.objects.{verb}" for verb in ("get", "list", "delete"))
# Asked for in vain, and rightly: a machine's account may not tell what is absent, and an attempt may not replace what is there.
REFUSED = {(gcp.MACHINE, GET), (gcp.MACHINE, LIST), (gcp.JOB, DELETE)}
# An upload that failed is given up; obstore lists no parts, but who ends an upload of somebody else does.
UNUSED = {(account, f"storage.multipartUploads.{verb}") for account in (CONTROLLER, gcp.JOB) for verb in ("abort", "listParts")}


def plan(of: Provider, market: Market, token: str) -> LaunchPlan:
    offer = next(o for o in of.offers() if o.market is market)
    return LaunchPlan(token, offer.pool, market, "#!/bin/sh\n", {"spotsurfer:job": JOB, "spotsurfer:attempt": "1"})


def orders(gce: TestGce, of: GcpProvider) -> None:
    """What a controller does with machines."""
    views = [of.launch(plan(of, market, f"{number:032x}")) for number, market in enumerate(Market)]
    spot = next(v for v in views if v.market is Market.SPOT)
    name, _, zone = spot.id.partition(".")
    gce.cloud.preempt(name, zone)
    assert of.witness is not None
    letters = of.witness.read()
    assert [n.instance for letter in letters for n in letter.notices] == [spot.id]
    of.witness.settle(letters)
    for view in views:
        of.terminate(view.id)
        Bench(of).wait_gone(view.id)
    of.rehearse(plan(of, Market.SPOT, "f" * 32))


def keeps(gce: TestGce, path: Path) -> None:
    """What a controller does with the store."""
    store = open_store(gcp.STORE, gce.options())
    store.put(object_keys.runtime_key("0" * 64), b"agent")
    store.put(object_keys.handout_key(JOB, ATTEMPT), b"sealed")
    for text in (b"run", b"drain"):
        store.put(object_keys.desired_key(JOB, ATTEMPT), text)
    in_parts(store, object_keys.input_key(JOB, "reads"), path)
    assert len(store.list("")) == 4 and store.get(object_keys.handout_key(JOB, ATTEMPT)) == b"sealed"
    store.delete([object_keys.input_key(JOB, "reads")])


def in_parts(store: ObstoreStore, key: str, path: Path) -> None:
    """A large file."""
    (path / "large").write_bytes(b"x" * (2 * PART_BYTES_MIN))
    store.put_file(key, path / "large")


def boots(gce: TestGce) -> None:
    """What a VM does with its own account."""
    token = json.dumps({"access_token": gce.identity.issue(gcp.MACHINE), "expires_in": 3599, "token_type": "Bearer"})
    with metadata.serve({"name": "ss-1", "zone": "us-central1-a"}, {TOKEN: token}) as server:
        own = own_store(gcp.STORE, {"base_url": gce.endpoint, "allow_http": "true"}, server.url)
        assert own.get(object_keys.runtime_key("0" * 64)) == b"agent"
        assert own.get(object_keys.handout_key(JOB, ATTEMPT)) == b"sealed"
        for forbidden in (object_keys.desired_key(JOB, ATTEMPT), object_keys.handout_key(JOB, 2)):
            with pytest.raises(StoreDenied):
                own.get(forbidden)


def runs(gce: TestGce, of: GcpProvider, path: Path) -> None:
    """What the agent of an attempt does."""
    token = of.credentials(JOB, ATTEMPT, ()).values["token"]
    store = open_store(gcp.STORE, {"base_url": gce.endpoint, "allow_http": "true", "bearer_token": token})
    assert store.get(object_keys.desired_key(JOB, ATTEMPT)) == b"drain"
    assert store.get(object_keys.image_key(JOB)) is None
    assert store.create(object_keys.head_key(JOB, 1), b"one") and not store.create(object_keys.head_key(JOB, 1), b"two")
    for text in (b"one", b"two"):
        store.put(object_keys.live_key(JOB, ATTEMPT), text)
    in_parts(store, f"{object_keys.partial_prefix(JOB, 1, ATTEMPT)}large", path)
    store.delete([x.key for x in store.list(object_keys.partials_prefix(JOB))])


def test_each_right_suffices_and_is_needed(made: terraformed.Runs, gce: TestGce, tmp_path: Path) -> None:
    gce.identity.grants = terraformed.grants(made["defaults"])
    of = gcp.provider(gce, tmp_path, network_tags=["spotsurfer-machine"], placement_scores=True)
    orders(gce, of)
    keeps(gce, tmp_path)
    boots(gce)
    runs(gce, of, tmp_path)
    assert {(a.account, a.permission) for a in gce.identity.asked if not a.allowed} == REFUSED
    used = {(a.account, a.permission) for a in gce.identity.asked if a.allowed}
    given = {(g.account, p) for g in gce.identity.grants for p in g.permissions}
    assert given - used == UNUSED, "grant less, or say why it is needed"


def test_neighbouring_calls_are_refused(made: terraformed.Runs, gce: TestGce, tmp_path: Path) -> None:
    of = gcp.provider(gce, tmp_path)
    theirs = of.launch(plan(of, Market.ON_DEMAND, "0" * 32)).id
    gce.cloud.vms["other", "us-central1-a"] = gce.cloud.vms.pop(tuple(theirs.split(".")))  # type: ignore[arg-type]
    gce.identity.grants = terraformed.grants(made["defaults"])
    with pytest.raises(ProviderDenied, match=r"compute.instances.delete"):
        of.terminate(InstanceId("other.us-central1-a"))
    another = gcp.provider(gce, tmp_path, job_account=CONTROLLER)
    with pytest.raises((ProviderDenied, CredentialsExpired), match=r"iam.serviceAccounts.getAccessToken"):
        another.credentials(JOB, ATTEMPT, ())
