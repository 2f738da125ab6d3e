"""Which rights a call needs, and on which resources: of the Service Authorization Reference what our calls meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from moto.core.exceptions import ServiceException
from support.ec2.cloud import ACCOUNT, Cloud
from support.ec2.launch import with_template
from support.ec2.wire import Call

# Action, resources, conditions.
Right = tuple[str, list[dict[str, Any]], dict[str, Any]]
IAM_NAMES = {"service-quotas": "servicequotas", "efs": "elasticfilesystem"}
# Calls whose right has another name (SQS: a batch needs the right of one).
_IAM_ACTIONS = {("sqs", "DeleteMessageBatch"): "sqs:DeleteMessage", ("sqs", "SendMessageBatch"): "sqs:SendMessage"}
# EC2 parameters that name resources -> kind in the ARN
_EC2_NAMES = {
    "InstanceIds": "instance",
    "InstanceId": "instance",
    "VolumeId": "volume",
    "LaunchTemplateId": "launch-template",
}


def rights_of(cloud: Cloud, call: Call, result: Mapping[str, Any] | None) -> list[Right]:
    """Action, resources and conditions of each right that a call needs; the first is the call's own."""
    if call.service == "ec2":
        return _ec2(cloud, call, result)
    action = f"{IAM_NAMES.get(call.service, call.service)}:{call.action}"
    find = _RESOURCES.get(call.service)
    arns = find(call) if find else ["*"]
    return [(_IAM_ACTIONS.get((call.service, call.action), action), [{"arn": a} for a in arns], {})]


def _sqs(call: Call) -> list[str]:
    url = str(call.params.get("QueueUrl", ""))
    name = urlsplit(url).path.rpartition("/")[2] or str(call.params.get("QueueName", "*"))
    return [f"arn:aws:sqs:{call.region}:{ACCOUNT}:{name}"]


def _ssm(call: Call) -> list[str]:
    names = [*call.params.get("Names", []), *([call.params["Name"]] if "Name" in call.params else [])]
    return [_parameter(call.region, n) for n in names] or ["*"]


def _parameter(region: str, name: str) -> str:
    account = "" if name.startswith("/aws/") else ACCOUNT
    return f"arn:aws:ssm:{region}:{account}:parameter/{name.lstrip('/')}"


_RESOURCES: Mapping[str, Callable[[Call], list[str]]] = {
    "sqs": _sqs,
    "ssm": _ssm,
    "sts": lambda call: [str(call.params.get("RoleArn", "*"))],
}


def _ec2(cloud: Cloud, call: Call, result: Mapping[str, Any] | None) -> list[Right]:
    if call.action == "RunInstances":
        return _run_instances(cloud, call, result)
    if call.action in ("CreateTags", "DeleteTags"):
        found = [_resource(cloud, call, _kind(r), r) for r in call.params.get("Resources", [])]
        return [(f"ec2:{call.action}", found, {"aws:RequestTag": _tags(call.params.get("Tags", []))})]
    if call.action.startswith(("Describe", "Get")):
        return [(f"ec2:{call.action}", [{"arn": "*"}], {})]
    named = [
        _resource(cloud, call, kind, x)
        for name, kind in _EC2_NAMES.items()
        for x in (call.params[name] if isinstance(call.params.get(name), list) else [call.params.get(name)])
        if x
    ]
    specs = call.params.get("TagSpecifications", [])
    conditions = {"aws:RequestTag": _tags(specs[0].get("Tags", []))} if specs else {}
    return [(f"ec2:{call.action}", named or [{"arn": "*"}], conditions)]


def _run_instances(cloud: Cloud, call: Call, result: Mapping[str, Any] | None) -> list[Right]:
    """Its own right on all that it makes or uses, ec2:CreateTags on what it tags, iam:PassRole on the role."""
    p, base = _merged(call), f"arn:aws:ec2:{call.region}:{ACCOUNT}"
    specs = {str(s["ResourceType"]): _tags(s.get("Tags", [])) for s in p.get("TagSpecifications", [])}
    kinds = ("instance", "volume", "network-interface")
    made = [{"arn": f"{base}:{kind}/*", "request_tags": specs.get(kind, {})} for kind in kinds]
    market = p.get("InstanceMarketOptions", {}).get("MarketType")
    used = [_resource(cloud, call, "subnet", p["SubnetId"])] if "SubnetId" in p else []
    used += [_resource(cloud, call, "security-group", g) for g in p.get("SecurityGroupIds", [])]
    used += [_resource(cloud, call, "key-pair", p["KeyName"])] if "KeyName" in p else []
    image = str(p.get("ImageId", ""))
    template = p.get("LaunchTemplate", {})
    if image or not template:
        used.append({"arn": f"arn:aws:ec2:{call.region}::image/{image or '*'}"})
    if template:
        name = template.get("LaunchTemplateId") or template["LaunchTemplateName"]
        used.append(_resource(cloud, call, "launch-template", name))
    conditions = {"ec2:InstanceType": p.get("InstanceType"), "ec2:InstanceMarketType": market or "on-demand"}
    rights = [("ec2:RunInstances", made + used, {k: v for k, v in conditions.items() if v})]
    for kind, tags in specs.items():
        where = {"arn": f"{base}:{kind}/*", "request_tags": tags}
        rights.append(("ec2:CreateTags", [where], {"ec2:CreateAction": "RunInstances", "aws:RequestTag": tags}))
    roles = {m.profile_role for m in cloud.machines.values() if result and m.id in _ids(result) and m.profile_role}
    rights += [("iam:PassRole", [{"arn": r}], {"iam:PassedToService": "ec2.amazonaws.com"}) for r in roles]
    return rights


def _merged(call: Call) -> Mapping[str, Any]:
    try:
        return with_template(call.region, call.params)
    except ServiceException:  # a template that there is not
        return call.params


def _ids(result: Mapping[str, Any]) -> list[str]:
    return [i["InstanceId"] for i in result.get("Instances", [])]


def _resource(cloud: Cloud, call: Call, kind: str, name: str) -> dict[str, Any]:
    return {"arn": f"arn:aws:ec2:{call.region}:{ACCOUNT}:{kind}/{name}", "tags": cloud.tags(call.region, name)}


def _kind(resource: str) -> str:
    kinds = {"i": "instance", "vol": "volume", "lt": "launch-template", "subnet": "subnet"}
    kinds |= {"sg": "security-group", "eni": "network-interface", "vpc": "vpc"}
    return kinds.get(resource.split("-")[0], resource.split("-")[0])


def _tags(tags: list[Mapping[str, str]]) -> dict[str, str]:
    return {t["Key"]: t.get("Value", "") for t in tags}
