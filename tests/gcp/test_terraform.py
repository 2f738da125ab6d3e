"""The Terraform module for Google without Google: layout, schema, its own tests, what the controller reads and may do.

A server that tells the schema of Google's provider stands in for it. So Terraform itself finds arguments that there are not,
and those that are missing. What Google makes of the values is tried nowhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.gcp import vm_request
from spotsurfer_providers.gcp.settings import DEFAULT_TYPES, GcpSettings, read_settings
from spotsurfer_wire.doors import DOOR
from support.terraform import Terraform
from support.terraform_google import make_schema
from support.tree import ROOT

from spotsurfer.config.settings import Settings, load_settings
from spotsurfer.jobspec.sections import PORTS_MAX

MODULE = ROOT / "terraform/gcp"
ROOTS = ["terraform/gcp", "terraform/gcp/examples/minimal", "terraform/gcp/examples/existing-network"]
ROLES: Mapping[str, list[str]] = json.loads((MODULE / "roles.json").read_text())


# ---- Layout and schema


def test_files_are_laid_out(tmp_path: Path) -> None:
    done = Terraform(tmp_path, "terraform/gcp").run("fmt", "-check", "-diff", "-recursive", "-no-color", codes=(0, 3))
    assert done.returncode == 0, f"call terraform fmt -recursive terraform\n{done.stdout}"


@pytest.mark.parametrize("root", ROOTS)
def test_configuration_is_valid(root: str, google: str, tmp_path: Path) -> None:
    module = Terraform(tmp_path, root, attached=google)
    module.init()
    module.run("validate", "-no-color")


@pytest.mark.parametrize(
    ("file", "was", "planted", "found"),
    [
        ("controller.tf", "machine_type =", "machine_typ =", 'An argument named "machine_typ" is not expected here'),
        ("controller.tf", "machine_type = each.value.machine_type", "", 'The argument "machine_type" is required'),
        (
            "controller.tf",
            "subnetwork = local.subnets",
            "subnet = local.subnets",
            'An argument named "subnet" is not expected here',
        ),
        ("bucket.tf", 'type = "AbortIncompleteMultipartUpload"', "", 'The argument "type" is required'),
        ("notices.tf", "expiration_policy {", "expiry {", 'Blocks of type "expiry" are not expected here'),
        ("notices.tf", "preemptions.writer_identity", "preemptions.writer", "Unsupported attribute"),
        ("network.tf", "priority      = 800", 'priority      = "soon"', "a number is required"),
        ("rights.tf", "google_storage_bucket_iam_member", "google_storage_bucket_member", "Invalid resource type"),
    ],
)
def test_mistakes_are_found(file: str, was: str, planted: str, found: str, google: str, tmp_path: Path) -> None:
    module = Terraform(tmp_path, "terraform/gcp", attached=google)
    text = (module.root / file).read_text()
    assert was in text
    (module.root / file).write_text(text.replace(was, planted))
    module.init()
    done = module.run("validate", "-no-color", codes=(1,))
    assert found in " ".join(done.stderr.replace("│", " ").split())


def test_schema_has_what_is_used_and_no_more() -> None:
    table = json.loads(make_schema.TABLE.read_text())
    assert {kind: sorted(table[kind]) for kind in ("resource", "data")} == make_schema.used(), "call make_schema.py"


# ---- The module's own tests, and what they made


def _configuration(run: Mapping[str, Any], folder: Path) -> tuple[Settings, GcpSettings]:
    """As the controller reads it."""
    path = folder / "config.toml"
    path.write_text(run["outputs"]["config"]["value"])
    settings = load_settings(path)
    assert settings.provider.name == "gcp"
    return settings, read_settings((settings.provider.model_extra or {})["gcp"])


def test_controller_reads_the_configuration(made: Mapping[str, Any], tmp_path: Path) -> None:
    settings, gcp = _configuration(made["defaults"], tmp_path)
    assert settings.store.url == "gs://lab-123456-spotsurfer/store"
    zones = [f"us-central1-{letter}" for letter in "abcf"]
    assert gcp.subnets == dict.fromkeys(zones, "regions/us-central1/subnetworks/spotsurfer-machines")
    assert gcp.machine_account == "spotsurfer-machine@lab-123456.iam.gserviceaccount.com"
    assert gcp.job_account == "spotsurfer-job@lab-123456.iam.gserviceaccount.com"
    assert gcp.preemptions == "projects/lab-123456/subscriptions/spotsurfer-preemptions"
    assert gcp.network_tags == ["spotsurfer-machine"] and gcp.labels == {"spotsurfer-fleet": "spotsurfer"}
    assert gcp.machine_types == list(DEFAULT_TYPES) and gcp.image == GcpSettings.model_fields["image"].default
    assert not gcp.external_address and settings.limits.budget_usd is None


def test_controller_reads_a_configuration_with_everything(made: Mapping[str, Any], tmp_path: Path) -> None:
    settings, gcp = _configuration(made["everything"], tmp_path)
    assert set(gcp.subnets) == {"europe-west4-a", "europe-west4-b", "us-east1-b"}
    assert gcp.external_address and gcp.labels == {"spotsurfer-fleet": "lab", "team": "genomics"}
    assert settings.limits.budget_usd == 12_500_000  # micros


def test_front_may_reach_all_ports_that_a_job_can_declare() -> None:
    doors = re.search(r"doors = \{ from = (\d+), to = (\d+) \}", (MODULE / "network.tf").read_text())
    assert doors is not None and [int(x) for x in doors.groups()] == [DOOR, DOOR + PORTS_MAX - 1]


# ---- Rights


def test_roles_are_written_in_order() -> None:
    assert list(ROLES) == sorted(ROLES)
    assert all(permissions == sorted(set(permissions)) for permissions in ROLES.values())


def test_each_role_is_made_as_written_and_somebody_has_it(made: Mapping[str, Any]) -> None:
    resources = made["everything"]["root_module"]["resources"]
    roles = {r["index"]: r["values"] for r in resources if r["type"] == "google_project_iam_custom_role"}
    assert {name: values["permissions"] for name, values in roles.items()} == ROLES
    assert all(values["role_id"] == f"lab_{name}" for name, values in roles.items())
    text = "\n".join(p.read_text() for p in MODULE.glob("*.tf"))
    given = set(re.findall(r'\brole\s*= "(\w+)"|local\.role\["(\w+)"\]', text))
    assert {name for pair in given for name in pair if name} == set(ROLES)


def test_rights_to_vms_end_at_names_of_ours(made: Mapping[str, Any]) -> None:
    rights = made["defaults"]["outputs"]["rights"]["value"]["project"]
    changing = [r for r in rights if any(not p.endswith((".get", ".list", ".capacity")) for p in r["permissions"])]
    assert [r["role"] for r in changing] == ["vms"]
    prefixes = set(re.findall(r'startsWith\("(.+?)"\)', changing[0]["condition"]["expression"]))
    assert prefixes == {"ss-"} and vm_request.name_of("0a1b").startswith("ss-")
