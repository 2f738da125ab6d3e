"""A job that names a size policy which is not there, or refuses its parameters, is refused when it is submitted."""

from __future__ import annotations

import pytest

from spotsurfer.model.errors import JobFileError
from spotsurfer.web.request_models import SpecBody


def body(**more: object) -> SpecBody:
    return SpecBody.model_validate({"name": "job", "command": ["prog"], **more})


def test_parameters_arrive_as_what_they_are() -> None:
    spec = body(size_policy="threshold", size_parameters={"mem_lower": 30}).to_spec()
    assert (spec.size_policy, spec.size_parameters) == ("threshold", {"mem_lower": 30})
    assert body(size_policy="surf", size_parameters={"stretch": True}).to_spec().size_parameters == {"stretch": True}
    assert body(size_policy="off").to_spec().size_policy == "off"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"size_policy": "serf"}, r"size.policy is 'serf'. Did you mean 'surf'"),
        ({"size_policy": "surf", "size_parameters": {"wrong": 1}}, "size.parameters: size.surf"),
    ],
)
def test_what_is_wrong_is_said(spec: dict[str, object], said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        body(**spec).to_spec()
