"""What the real Terraform makes of terraform/gcp, with a provider of mocks: the controller's configuration, and all grants."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.gce.cloud import PROJECT
from support.gce.identity import Grant
from support.gce.storage import BUCKET
from support.terraform import Terraform

Runs = Mapping[str, Any]


def made(google: str, folder: Path) -> Runs:
    """State or plan of each run of the module's own tests. `google`: where the stand-in of Google's provider answers."""
    module = Terraform(folder, "terraform/gcp", attached=google)
    module.init()
    told = module.run("test", "-json", "-verbose", codes=(0, 1)).stdout
    lines: list[dict[str, Any]] = [json.loads(line) for line in told.splitlines()]
    summary = next(line["test_summary"] for line in lines if line["type"] == "test_summary")
    assert summary["status"] == "pass" and summary["passed"] > 0, [x["diagnostic"] for x in lines if x["type"] == "diagnostic"]
    return {line["@testrun"]: line[line["type"]] for line in lines if line["type"] in ("test_state", "test_plan")}


def grants(run: Mapping[str, Any]) -> list[Grant]:
    """What each account may do after an apply."""
    rights = run["outputs"]["rights"]["value"]
    return [
        *_of(rights["project"], f"projects/{PROJECT}"),
        *_of(rights["bucket"], f"projects/_/buckets/{BUCKET}"),
        *_of([rights["notices"]], f"projects/{PROJECT}/subscriptions/"),
        *_of([rights["subnets"]], f"projects/{PROJECT}/regions/"),
        *(g for on, right in rights["accounts"].items() for g in _of([right], f"projects/-/serviceAccounts/spotsurfer-{on}@")),
    ]


def _of(rights: list[dict[str, Any]], resource: str) -> Iterator[Grant]:
    for right in rights:
        account = f"spotsurfer-{right['account']}@{PROJECT}.iam.gserviceaccount.com"
        condition = (right.get("condition") or {}).get("expression", "")
        yield Grant(account, frozenset(right["permissions"]), resource, condition)
