"""The VM of an order as a value, in the names of `compute_v1.Instance`. Pure: the same plan and settings make the same VM.

A repeated order must be the same one, so nothing here may depend on the time or on the caller.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from spotsurfer_wire.google_vm import NOTICE_ATTRIBUTE, NOTICE_SECONDS

from spotsurfer.model.errors import Invalid
from spotsurfer.model.market import Market
from spotsurfer.ports.provider import USER_DATA_BYTES_MAX, LaunchPlan
from spotsurfer_providers.gcp.settings import GcpSettings
from spotsurfer_providers.google_credentials import SCOPE

FAMILY_LABEL = "spotsurfer-family"
TOKEN_KEY, TAGS_KEY = "spotsurfer-token", "spotsurfer-tags"  # of the metadata: labels know no capitals and points
HYPERDISK_FAMILIES = frozenset({"c4", "c4d", "n4", "n4d"})  # "Machine series comparison"
EARLY_NOTICE = "preemption_notice_duration"
_REQUESTS = uuid.UUID("5b0c1f6e-7d7c-4f4e-9c1c-0a1d6a4c8f11")  # a space of names of our own


def name_of(token: str) -> str:
    """The VM's name. A repeated order asks for the same one, so a zone never has two VMs of one token."""
    return f"ss-{token}"


def request_id_of(token: str, failed: str = "") -> str:
    """Under which Google knows a repeated order again: a UUID (API reference, `requestId`).

    `failed`: the operation by which the order before failed, which Google would only show again.
    """
    return str(uuid.uuid5(_REQUESTS, token + failed))


def vm(plan: LaunchPlan, settings: GcpSettings, family: str, notice_seconds: int) -> dict[str, Any]:
    """One VM; `notice_seconds` of early notice, 0 = none. Raises Invalid for an order that would be refused anyway."""
    if len(plan.user_data.encode()) > USER_DATA_BYTES_MAX:
        raise Invalid(f"user-data takes {len(plan.user_data.encode())} bytes, {USER_DATA_BYTES_MAX} are allowed")
    if plan.pool.zone not in settings.subnets:
        raise Invalid(f"there is no subnetwork in {plan.pool.zone}; add one to [provider.gcp] subnets")
    labels = _labels(settings, plan, family)
    metadata = {
        "startup-script": plan.user_data,
        "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
        TOKEN_KEY: plan.token,
        TAGS_KEY: json.dumps(dict(sorted(plan.tags.items()))),
    }
    if plan.market is Market.SPOT:
        metadata[NOTICE_ATTRIBUTE] = str(notice_seconds or NOTICE_SECONDS)
    network: dict[str, Any] = {"subnetwork": settings.subnets[plan.pool.zone]}
    if settings.external_address:
        network["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    disk = {
        "source_image": settings.image,
        "disk_size_gb": settings.disk_gib,
        "disk_type": f"zones/{plan.pool.zone}/diskTypes/{_disk_type(plan.pool.instance_type)}",
        "labels": labels,
    }
    return {
        "name": name_of(plan.token),
        "machine_type": f"zones/{plan.pool.zone}/machineTypes/{plan.pool.instance_type}",
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": disk}],
        "network_interfaces": [network],
        "scheduling": scheduling(plan, notice_seconds),
        "service_accounts": [{"email": settings.machine_account, "scopes": [SCOPE]}],
        "metadata": {"items": [{"key": k, "value": v} for k, v in metadata.items()]},
        "labels": labels,
        "tags": {"items": list(settings.network_tags)},
    }


def scheduling(plan: LaunchPlan, notice_seconds: int) -> dict[str, Any]:
    """A spot VM is deleted when Google takes it, with its disk: nothing of it costs anything then.

    No VM is moved by Google alive (`TERMINATE`): a GPU can't be. Standard E2 knows nothing else than a live migration.
    """
    is_spot = plan.market is Market.SPOT
    moves = plan.pool.instance_type.startswith("e2-") and not is_spot
    fixed = {"automatic_restart": False, "on_host_maintenance": "MIGRATE" if moves else "TERMINATE"}
    if not is_spot:
        return {**fixed, "provisioning_model": "STANDARD"}
    spot: dict[str, Any] = {**fixed, "provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
    if notice_seconds:
        spot[EARLY_NOTICE] = {"seconds": notice_seconds}
    return spot


def _disk_type(machine_type: str) -> str:
    """Of the root disk: the newest families take no Persistent Disk."""
    return "hyperdisk-balanced" if machine_type.partition("-")[0] in HYPERDISK_FAMILIES else "pd-balanced"


def _labels(settings: GcpSettings, plan: LaunchPlan, family: str) -> dict[str, str]:
    """For people, bills and our own filter."""
    ours = {name.replace(":", "-"): _label(value) for name, value in plan.tags.items()}
    return {**settings.labels, **ours, FAMILY_LABEL: family}


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "_", text.lower())[:63]


def read_metadata(metadata: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Token and tags of a VM, from its metadata. Raises KeyError or ValueError if they are not those of an order of ours."""
    tags = json.loads(metadata[TAGS_KEY])
    if not isinstance(tags, dict):
        raise ValueError(f"{TAGS_KEY} is no table")
    return metadata[TOKEN_KEY], {str(k): str(v) for k, v in tags.items()}
