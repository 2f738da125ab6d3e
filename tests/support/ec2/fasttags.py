"""moto walks over every tag of every resource for each instance; looking them up by id is a hundred times faster."""

from __future__ import annotations

from typing import Any

from moto.ec2.models.tags import TagBackend
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix

_slow = TagBackend.describe_tags


def _describe_tags(self: Any, filters: dict[str, list[str]] | None = None) -> list[dict[str, str]]:
    if not filters or set(filters) != {"resource-id"} or any(c in v for v in filters["resource-id"] for c in "*?"):
        return _slow(self, filters)
    found = [(rid, k, v) for rid in filters["resource-id"] for k, v in self.tags.get(rid, {}).items()]
    return [
        {"resource_id": rid, "key": k, "value": v, "resource_type": EC2_PREFIX_TO_RESOURCE.get(get_prefix(rid), "")}
        for rid, k, v in found
    ]


def install() -> None:
    """Put it in moto's place, in this process."""
    TagBackend.describe_tags = _describe_tags  # type: ignore[method-assign]
