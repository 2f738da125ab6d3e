"""Offers of the provider aws, against the test EC2. The contract of all providers: tests/conformance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support import aws
from support.ec2.client import TestEC2, serve

from spotsurfer.model.errors import Invalid

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    with aws.credentials(), serve(tmp_path_factory.mktemp("ec2")) as running:
        running.order("set", pending_seconds=0.1, shutdown_seconds=0.1)
        yield running


def test_types_are_allowed_by_wildcards(cloud: TestEC2, tmp_path: Path) -> None:
    offers = aws.provider(cloud, "wild", tmp_path, instance_types=["c6i.*", "m6i.l*"]).offers()
    found = {o.pool.instance_type for o in offers}
    assert {"c6i.large", "c6i.xlarge", "m6i.large"} <= found
    assert "m6i.xlarge" not in found


def test_types_that_no_zone_of_ours_has_are_said(cloud: TestEC2, tmp_path: Path) -> None:
    elsewhere = aws.provider(cloud, "nowhere", tmp_path, subnets={"us-east-1z": "subnet-1"})
    with pytest.raises(Invalid, match="none of the allowed instance types is offered in us-east-1z"):
        elsewhere.offers()


def test_prices_of_many_types_are_asked_in_filters_that_are_short_enough(cloud: TestEC2, tmp_path: Path) -> None:
    """What terraform/aws allows by default just fits into one. Requests are held to the lengths of the models."""
    kinds = [f"{family}.*" for family in ("c5", "c6a", "c6i", "c7i", "m5", "m6a", "m6i", "m7i", "r5", "r6a", "r6i")]
    cloud.order("log")
    with capture_logs() as said:
        offers = aws.provider(cloud, "many", tmp_path, instance_types=kinds).offers()
    assert said == [], "prices were assumed"
    assert len({o.pool.instance_type for o in offers}) > 60
    asked = cloud.log("pricing:GetProducts")
    filters = [f["Value"] for c in asked for f in c["parameters"]["Filters"] if f["Type"] == "ANY_OF"]
    assert len(filters) > 1 and {c["status"] for c in asked} == {200}
