"""A job that names a size policy which is not there, or refuses its parameters, is refused when it is submitted."""

from __future__ import annotations

import pytest

from spotsurfer.jobspec.validate import checked
from spotsurfer.model.errors import JobFileError
from spotsurfer.model.job import JobSpec
from spotsurfer.web.request_models import PlanBody


def asked(**more: object) -> JobSpec:
    return checked(PlanBody.model_validate({"spec": {"name": "job", "command": ["prog"], **more}}).spec)


def test_parameters_arrive_as_what_they_are() -> None:
    spec = asked(size_policy="threshold", size_parameters={"mem_lower": 30})
    assert (spec.size_policy, spec.size_parameters) == ("threshold", {"mem_lower": 30})
    assert asked(size_policy="surf", size_parameters={"stretch": 1.1}).size_parameters == {"stretch": 1.1}
    assert asked(size_policy="off").size_policy == "off"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"size_policy": "serf"}, r"size.policy is 'serf'. Did you mean 'surf'"),
        ({"size_policy": "surf", "size_parameters": {"wrong": 1}}, "size.parameters: size.surf"),
    ],
)
def test_what_is_wrong_is_said(spec: dict[str, object], said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        asked(**spec)
