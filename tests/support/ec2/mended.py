"""moto as AWS is, where Terraform or a controller with rights would meet the difference.

Queues: changing one attribute keeps the policy, and JSON is written without spaces. Launch templates: their own tags are no
part of their data. Offerings of instance types are filtered with wildcards, as types are. Buckets: moto denies by a policy
without a look at its conditions, so one that demands TLS would deny everything; what policies mean is judged from the call
log, by `support.iam`.
"""

from __future__ import annotations

import fnmatch
import json
from typing import Any

from moto.ec2.models.instance_types import InstanceTypeOfferingBackend
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket
from moto.sqs.models import Queue

_set = Queue._set_attributes
_read = Queue.attributes
_make = LaunchTemplateVersion.__init__
_offered = InstanceTypeOfferingBackend.matches_filters


def _keep_policy(queue: Queue, attributes: dict[str, Any], now: float | None = None) -> None:
    before = getattr(queue, "policy", None)
    _set(queue, attributes, now)
    if "Policy" not in attributes:
        queue.policy = before


def _compact(queue: Queue) -> dict[str, Any]:
    found: dict[str, Any] = _read.fget(queue)  # type: ignore[misc]
    if found.get("RedrivePolicy"):
        found["RedrivePolicy"] = json.dumps(json.loads(found["RedrivePolicy"]), separators=(",", ":"))
    return found


def _without_own_tags(
    version: LaunchTemplateVersion, template: Any, number: int, data: dict[str, Any], description: str
) -> None:
    kept = [s for s in data.get("TagSpecifications") or [] if s.get("ResourceType") != "launch-template"]
    others = {k: v for k, v in data.items() if k != "TagSpecifications"}
    _make(version, template, number, {**others, **({"TagSpecifications": kept} if kept else {})}, description)


def _says_nothing(bucket: FakeBucket, action: str, resource: str) -> PermissionResult:
    return PermissionResult.NEUTRAL


def _with_wildcards(backend: InstanceTypeOfferingBackend, offering: dict[str, Any], filters: Any, location_type: str) -> bool:
    patterns = filters.get("instance-type", ["*"])
    others = {k: v for k, v in filters.items() if k != "instance-type"}
    fits = any(fnmatch.fnmatchcase(offering["InstanceType"], p) for p in patterns)
    return fits and _offered(backend, offering, others, location_type)


def install() -> None:
    """Once a process."""
    Queue._set_attributes = _keep_policy  # type: ignore[method-assign]
    Queue.attributes = property(_compact)  # type: ignore[assignment]
    LaunchTemplateVersion.__init__ = _without_own_tags  # type: ignore[method-assign]
    InstanceTypeOfferingBackend.matches_filters = _with_wildcards  # type: ignore[method-assign]
    FakeBucket.get_permission = _says_nothing  # type: ignore[method-assign]
