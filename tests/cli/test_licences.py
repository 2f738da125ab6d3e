"""`spotsurfer licences` and `submit --licence` against the real API over a Unix socket."""

from __future__ import annotations

import json
import re

from cli.conftest import Call
from support.fake_service import START, FakeService

from spotsurfer.model.job import JobId
from spotsurfer.model.licences import LicenceStatus, LicenceUse


def test_pools_are_shown(controller: FakeService, call: Call) -> None:
    assert call("licences").out == "There are no pools of licences: [licences] of the configuration makes some.\n"
    held = [LicenceUse(JobId("a"), 1), LicenceUse(JobId("b"), 2)]
    controller.licence_pools = [
        LicenceStatus("vcs", 4, 3, 1, held, [LicenceUse(JobId("c"), 2)], 1, (), None, ""),
        LicenceStatus("route", 0, 0, 0, [], [], 0, ("count",), START, "they can't be counted: count failed"),
    ]
    said = call("licences")
    _, vcs, route = said.out.splitlines()
    assert re.split("  +", vcs) == ["vcs", "4", "3", "1", "1", "1", "a, b (2)"]
    assert route.split()[:2] == ["route", "0"]
    assert "route: they can't be counted: count failed." in said.err
    (one, _) = json.loads(call("licences", "--json").out)["licences"]
    assert (one["held"][1], one["waiting_jobs"], one["read_at"]) == ({"job": "b", "count": 2}, 1, None)


def test_a_job_names_them_in_its_file_or_on_the_command_line(controller: FakeService, call: Call) -> None:
    call("submit", "--name", "sim", "--licence", "vcs=2", "--licence", "route", "--", "true")
    (status,) = controller.statuses.values()
    assert status.job.spec.licences == {"vcs": 2, "route": 1}
    wrong = call("submit", "--licence", "vcs=much", "--", "true")
    assert (wrong.code, "expected a table of whole numbers, like { vcs = 1 }" in wrong.err) == (3, True)
    assert "has vcs = 0, expected at least 1" in call("submit", "--licence", "vcs=0", "--", "true").err
