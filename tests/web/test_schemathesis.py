"""Schemathesis sends what the API's own description allows and what it forbids: no answer is a failure inside."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance
from support.dashboards import FILE_TOKEN, Dashboard, dashboard
from support.fake_service import FakeService

from spotsurfer.web.app import make_app

pytestmark = [pytest.mark.real]
EXAMPLES = 15  # of each operation
JOBS = 5
TURNS = itertools.count()
schema = schemathesis.openapi.from_dict(make_app(FakeService()).openapi())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("api"), JOBS) as made:
        yield made


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
def test_no_answer_is_a_failure_inside(place: Dashboard, case: schemathesis.Case) -> None:
    case.headers["Authorization"] = f"Bearer {FILE_TOKEN}"
    turn = next(TURNS)
    if "job" in case.path_parameters and turn % 4:  # a job that there is; each fourth time whatever was made up
        jobs = place.controller.service.jobs()
        case.path_parameters["job"] = jobs[turn % len(jobs)].job.id
    case.headers.pop("content-length", None)  # a length that is not the body's makes both sides wait
    if case.query.get("wait"):
        case.query["wait"] = 0.1  # a long poll is answered when something happens, and nothing does
    answer = case.call(base_url=place.url, timeout=30)
    case.validate_response(answer, checks=[not_a_server_error, response_schema_conformance])
