"""Which permissions a call needs, and on what: "IAM permissions" in the reference of each method.

`projects.get` and the like of predefined roles are not needed by what is called here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from support.gce.errors import Refused
from support.gce.identity import ACCOUNT, Identity, Who

Needed = tuple[str, str, str]  # permission, name of the resource, its type
Names = Mapping[str, str]
COMPUTE = "compute.googleapis.com"
SUBSCRIPTION = "pubsub.googleapis.com/Subscription"
SUBNET = f"{COMPUTE}/Subnetwork"


def _project(names: Names, permission: str) -> Needed:
    return permission, f"projects/{names['project']}", "cloudresourcemanager.googleapis.com/Project"


def _vm(names: Names, permission: str, name: str) -> Needed:
    return permission, f"projects/{names['project']}/zones/{names['zone']}/instances/{name}", f"{COMPUTE}/Instance"


def subnet(names: Names, name: str) -> str:
    """The name of a subnetwork's resource."""
    return f"projects/{names['project']}/regions/{names['region']}/subnetworks/{name}"


def _insert(names: Names, body: Mapping[str, Any]) -> Iterator[Needed]:
    name = str(body.get("name"))
    parts = {"metadata": "setMetadata", "labels": "setLabels", "tags": "setTags", "serviceAccounts": "setServiceAccount"}
    yield _vm(names, "compute.instances.create", name)
    for part, verb in parts.items():
        if body.get(part):
            yield _vm(names, f"compute.instances.{verb}", name)
    disk = f"projects/{names['project']}/zones/{names['zone']}/disks/{name}", f"{COMPUTE}/Disk"
    for ordered in body.get("disks", []):
        yield ("compute.disks.create", *disk)
        if ordered.get("initializeParams", {}).get("labels"):
            yield ("compute.disks.setLabels", *disk)
    for interface in body.get("networkInterfaces", []):
        subnet = f"projects/{names['project']}/{interface['subnetwork']}", SUBNET
        yield ("compute.subnetworks.use", *subnet)
        if interface.get("accessConfigs"):
            yield ("compute.subnetworks.useExternalIp", *subnet)
    for account in body.get("serviceAccounts", []):
        yield "iam.serviceAccounts.actAs", f"projects/-/serviceAccounts/{account['email']}", ACCOUNT


NEEDED: Mapping[str, Callable[[Names, Mapping[str, Any]], Iterator[Needed]]] = {
    "compute.instances.insert": _insert,
    "compute.instances.get": lambda names, _: iter([_vm(names, "compute.instances.get", names["instance"])]),
    "compute.instances.delete": lambda names, _: iter([_vm(names, "compute.instances.delete", names["instance"])]),
    "compute.instances.aggregatedList": lambda names, _: iter([_project(names, "compute.instances.list")]),
    "compute.zoneOperations.wait": lambda names, _: iter([_project(names, "compute.zoneOperations.get")]),
    "compute.globalOperations.aggregatedList": lambda names, _: iter([_project(names, "compute.globalOperations.list")]),
    "compute.machineTypes.list": lambda names, _: iter([_project(names, "compute.machineTypes.list")]),
    "compute.machineTypes.aggregatedList": lambda names, _: iter([_project(names, "compute.machineTypes.list")]),
    "compute.advice.capacity": lambda names, _: iter([_project(names, "compute.advice.capacity")]),
    "pubsub.projects.subscriptions.pull": lambda names, _: _subscription(names),
    "pubsub.projects.subscriptions.acknowledge": lambda names, _: _subscription(names),
}  # each token service asks by itself; anybody may test his own permissions


def _subscription(names: Names) -> Iterator[Needed]:
    yield "pubsub.subscriptions.consume", names["subscription"], SUBSCRIPTION


def needed(method: str, names: Names, body: Mapping[str, Any]) -> Iterator[Needed]:
    """Of one call."""
    return NEEDED[method](names, body) if method in NEEDED else iter(())


def tested(identity: Identity, who: Who, body: Mapping[str, Any], resource: str, kind: str) -> dict[str, Any]:
    """Of any resource: which of these permissions the asker has."""
    wanted = body["permissions"]
    if any("*" in p for p in wanted):
        raise Refused(400, "badRequest", "Permissions with wildcards are not allowed.")
    return {"permissions": [p for p in wanted if identity.may(who, p, resource, kind)]}
