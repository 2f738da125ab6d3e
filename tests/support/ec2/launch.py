"""RunInstances as EC2 does it: launch templates, tokens, what is refused, capacity."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.iam.models import iam_backends
from support.ec2.cloud import ACCOUNT, Cloud
from support.ec2.errors import refusal
from support.ec2.machines import Machine
from support.ec2.wire import Call

USER_DATA_BYTES_MAX = 16384
TOKEN_CHARACTERS_MAX = 64
# Of a launch template's data, what RunInstances calls otherwise.
_RENAMED = {"RamDiskId": "RamdiskId"}
_OF_REQUEST = ("ClientToken", "DryRun", "LaunchTemplate", "MaxCount", "MinCount")

Forward = Callable[[Mapping[str, Any]], dict[str, Any]]  # to moto, with these parameters; raises Refused


def run_instances(cloud: Cloud, call: Call, forward: Forward) -> dict[str, Any]:
    """The answer to RunInstances. Raises Refused."""
    token = str(call.params.get("ClientToken", ""))
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise refusal("InvalidParameterValue", name="ClientToken (at most 64 characters)", value=token)
    digest = hashlib.sha256(json.dumps(call.params, sort_keys=True, default=str).encode()).hexdigest()
    with cloud.lock:
        known = cloud.tokens.get((call.region, call.action, token)) if token else None
        if known is not None:
            return _again(cloud, known, digest)
        made = _launch(cloud, call, forward)
        if token:
            cloud.tokens[call.region, call.action, token] = (digest, [i["InstanceId"] for i in made["Instances"]])
        return made


def _again(cloud: Cloud, known: tuple[str, list[str]], digest: str) -> dict[str, Any]:
    if known[0] != digest:
        raise refusal("IdempotentParameterMismatch")
    machines = [cloud.machines[i] for i in known[1]]
    if all(x.state == "terminated" for x in machines):
        raise refusal("IdempotentInstanceTerminated")
    return _answer(cloud, machines)


def _launch(cloud: Cloud, call: Call, forward: Forward) -> dict[str, Any]:
    wanted = with_template(call.region, call.params)
    user_data = _user_data(str(wanted.get("UserData", "")))
    _check_type(wanted)
    wanted["ImageId"] = _image(call.region, str(wanted.get("ImageId", "")))
    zone = _zone(call.region, wanted)
    market = "spot" if wanted.get("InstanceMarketOptions", {}).get("MarketType") == "spot" else "on-demand"
    role = _role(wanted)
    if call.params.get("DryRun"):
        raise refusal("DryRunOperation")
    count = _count(cloud, call.region, zone, str(wanted["InstanceType"]), market, wanted)
    for_moto = {k: v for k, v in wanted.items() if k not in ("LaunchTemplate", "DryRun")}
    specs = [s for s in wanted.get("TagSpecifications", []) if s["ResourceType"] in ("instance", "volume")]
    for_moto |= {"MinCount": count, "MaxCount": count, "TagSpecifications": specs}
    answer = forward(for_moto)
    machines = [_machine(cloud, call, answer, shape, market, wanted, user_data, role) for shape in answer["Instances"]]
    for machine in machines:
        _tag_from_template(call, machine)
        cloud.add(machine)
    return _answer(cloud, machines)


def with_template(region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with what the launch template says where the request says nothing; tags of both."""
    request = {k: v for k, v in params.items() if v is not None}
    if "LaunchTemplate" not in request:
        return request
    version = ec2_backends[ACCOUNT][region]._get_template_from_args(_template_name(request["LaunchTemplate"]))
    data = {_RENAMED.get(k, k): v for k, v in version.data.items() if v is not None}
    specs = {s["ResourceType"]: s for s in data.pop("TagSpecifications", None) or []}
    for spec in request.get("TagSpecifications", []):
        before = {t["Key"]: t for t in specs.get(spec["ResourceType"], {}).get("Tags", [])}
        tags = list((before | {t["Key"]: t for t in spec.get("Tags", [])}).values())
        specs[spec["ResourceType"]] = {"ResourceType": spec["ResourceType"], "Tags": tags}
    if "SubnetId" in request or "SecurityGroupIds" in request:
        data.pop("SecurityGroups", None)
    return {**data, **request, "TagSpecifications": list(specs.values())}


def _template_name(template: Mapping[str, Any]) -> dict[str, Any]:
    return {"Version": "$Default", **template}


def _tag_from_template(call: Call, machine: Machine) -> None:
    if "LaunchTemplate" not in call.params:
        return
    version = ec2_backends[ACCOUNT][call.region]._get_template_from_args(_template_name(call.params["LaunchTemplate"]))
    own = {"aws:ec2launchtemplate:id": version.template.id, "aws:ec2launchtemplate:version": str(version.number)}
    ec2_backends[ACCOUNT][call.region].tags[machine.id].update(own)


def _user_data(text: str) -> str:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise refusal("InvalidUserData.Malformed", why="Invalid BASE64 encoding of user data.") from e
    if len(data) > USER_DATA_BYTES_MAX:
        raise refusal("InvalidUserData.Malformed", why=f"User data is limited to {USER_DATA_BYTES_MAX} bytes")
    return data.decode(errors="replace")


def _check_type(wanted: dict[str, Any]) -> None:
    kind = wanted.setdefault("InstanceType", "m1.small")
    if kind not in INSTANCE_TYPES:
        raise refusal("InvalidParameterValue", name="InstanceType", value=kind)


def _image(region: str, image: str) -> str:
    if not image:
        raise refusal("MissingParameter", name="ImageId")
    if not image.startswith("ami-"):
        raise refusal("InvalidAMIID.Malformed", image=image)
    if image not in ec2_backends[ACCOUNT][region].amis:
        raise refusal("InvalidAMIID.NotFound", image=image)
    return image


def _zone(region: str, wanted: Mapping[str, Any]) -> str:
    backend = ec2_backends[ACCOUNT][region]
    if subnet := wanted.get("SubnetId"):
        found = backend.describe_subnets(filters={"subnet-id": [subnet]})
        if not found:
            raise refusal("InvalidSubnetID.NotFound", id=subnet)
        zone = str(found[0].availability_zone)
    else:
        zone = str(wanted.get("Placement", {}).get("AvailabilityZone") or f"{region}a")
    kind = wanted["InstanceType"]
    offered = INSTANCE_TYPE_OFFERINGS.get("availability-zone", {}).get(region, [])
    if not any(o["InstanceType"] == kind and o["Location"] == zone for o in offered):
        raise refusal("Unsupported", kind=kind, zone=zone)
    return zone


def _role(wanted: Mapping[str, Any]) -> str | None:
    profile = wanted.get("IamInstanceProfile", {})
    if not profile:
        return None
    for known in iam_backends[ACCOUNT]["aws"].instance_profiles.values():
        if profile.get("Name") == known.name or profile.get("Arn") == known.arn:
            return next((str(r.arn) for r in known.roles), None)
    name = profile.get("Name") or profile.get("Arn")
    raise refusal("InvalidParameterValue", name="iamInstanceProfile.name", value=name)


def _count(cloud: Cloud, region: str, zone: str, kind: str, market: str, wanted: Mapping[str, Any]) -> int:
    """How many can be had: as many as there is room for, at least MinCount. Raises Refused."""
    least, most = int(wanted.get("MinCount", 1)), int(wanted.get("MaxCount", 1))
    live = list(cloud.living(region))
    for count in range(most, least - 1, -1):
        if not cloud.market.full(zone, kind, market, live, count):
            return count
    raise refusal("InsufficientInstanceCapacity", kind=kind, zone=zone, market=market)


def _machine(
    cloud: Cloud,
    call: Call,
    answer: Mapping[str, Any],
    shape: dict[str, Any],
    market: str,
    wanted: Mapping[str, Any],
    user_data: str,
    role: str | None,
) -> Machine:
    now = cloud.now()
    shape = {
        k: v
        for k, v in shape.items()
        if k not in ("State", "Tags", "StateReason", "StateTransitionReason", "InstanceLifecycle")
    }
    if not wanted.get("NetworkInterfaces"):
        for interface in shape.get("NetworkInterfaces", []):
            interface["Attachment"]["DeleteOnTermination"] = True  # of one that nobody ordered
    if shape.get("Platform") == "windows":
        shape["Platform"] = "Windows"  # as EC2 writes it
    if token := call.params.get("ClientToken"):
        shape["ClientToken"] = token
    return Machine(
        id=str(shape["InstanceId"]),
        region=call.region,
        market=market,
        shape=shape | {"LaunchTime": now, "ImageId": wanted["ImageId"]},
        reservation={k: answer[k] for k in ("ReservationId", "OwnerId")},
        launched_at=now,
        visible_at=now + timedelta(seconds=cloud.unlisted_seconds),
        user_data=user_data,
        profile_role=role,
        shutdown=str(wanted.get("InstanceInitiatedShutdownBehavior", "stop")),
    )


def _answer(cloud: Cloud, machines: list[Machine]) -> dict[str, Any]:
    shown = [x.described(cloud.tags(x.region, x.id)) for x in machines]
    return {**machines[0].reservation, "Groups": [], "Instances": shown}
