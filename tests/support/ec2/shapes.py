"""Whether an answer is one that a service could give, by botocore's model: nothing unknown, nothing missing, right types."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import datetime
from typing import Any, cast

from botocore.model import OperationModel

NUMBERS = {"integer": int, "long": int, "double": (int, float), "float": (int, float), "timestamp": (int, float)}


def check(op: OperationModel, text: str) -> set[str]:
    """The members that were seen, as paths. Raises AssertionError with the path of what is wrong."""
    seen: set[str] = set()
    name, shape = str(op.name), cast(Any, op.output_shape)
    if op.service_model.metadata["protocol"] in ("json", "rest-json"):
        _json(shape, json.loads(text), name, seen)
        return seen
    root = ET.fromstring(text)
    assert _bare(root.tag) == f"{name}Response"
    elements = [e for e in root if _bare(e.tag) not in ("requestId", "ResponseMetadata")]
    wrapper = shape.serialization.get("resultWrapper")
    if wrapper:
        assert [_bare(e.tag) for e in elements] == [wrapper], name
        elements = list(elements[0])
    _structure(shape, elements, name, seen)
    return seen


def exceeded(shape: Any, value: Any, path: str = "") -> str | None:
    """The first member of a request that is too long, too short, too large or too small by the model; None = all are good."""
    if shape is None or value is None:
        return None
    kind = shape.type_name
    if kind == "structure":
        inner = [(shape.members[n], v, f"{path}.{n}".lstrip(".")) for n, v in value.items() if n in shape.members]
        return next((wrong for x in inner if (wrong := exceeded(*x))), None)
    size = value if kind in ("integer", "long") else len(value) if kind in ("string", "list") else None
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if size is not None and ((least is not None and size < least) or (most is not None and size > most)):
        return f"{path} has {size}, allowed are {least} to {most}"
    items = value if kind == "list" else ()
    return next((wrong for x in items if (wrong := exceeded(shape.member, x, path))), None)


# ---------------------------------------------------------------- XML


def _structure(shape: Any, elements: list[ET.Element], path: str, seen: set[str]) -> None:
    known = {str(s.serialization.get("name", n)): (n, s) for n, s in shape.members.items()}
    for element in elements:
        name = _bare(element.tag)
        assert name in known, f"{path} has {name}, which AWS does not know"
        seen.add(f"{path}.{name}")
        _value(known[name][1], element, f"{path}.{name}", seen)
    missing = set(shape.required_members) - {known[_bare(e.tag)][0] for e in elements}
    assert not missing, f"{path} lacks {missing}"


def _value(shape: Any, element: ET.Element, path: str, seen: set[str]) -> None:
    if shape.type_name == "structure":
        _structure(shape, list(element), path, seen)
    elif shape.type_name == "list":
        for item in element:
            assert _bare(item.tag) == shape.member.serialization.get("name", "item"), path
            _value(shape.member, item, path, seen)
    else:
        _text(shape, element.text or "", path)


def _text(shape: Any, text: str, path: str) -> None:
    if shape.type_name in ("integer", "long"):
        assert text.lstrip("-").isdigit(), f"{path} is {text!r}"
    elif shape.type_name == "boolean":
        assert text in ("true", "false"), f"{path} is {text!r}"
    elif shape.type_name == "timestamp":
        try:
            datetime.fromisoformat(text)
        except ValueError:
            raise AssertionError(f"{path} is {text!r}") from None
    elif getattr(shape, "enum", None):
        assert text in shape.enum, f"{path} is {text!r}"


def _bare(tag: str) -> str:
    return tag.rpartition("}")[2]


# ---------------------------------------------------------------- JSON


def _json(shape: Any, value: Any, path: str, seen: set[str]) -> None:
    kind = shape.type_name
    if kind == "structure":
        assert set(value) <= set(shape.members), f"{path} has {set(value) - set(shape.members)}, which AWS does not know"
        assert set(shape.required_members) <= set(value), f"{path} lacks {set(shape.required_members) - set(value)}"
        for name, inner in value.items():
            seen.add(f"{path}.{name}")
            _json(shape.members[name], inner, f"{path}.{name}", seen)
    elif kind == "list":
        for inner in value:
            _json(shape.member, inner, path, seen)
    elif kind == "map":
        for inner in value.values():
            _json(shape.value, inner, path, seen)
    elif kind in NUMBERS:
        assert isinstance(value, NUMBERS[kind]) and not isinstance(value, bool), f"{path} is {value!r}"
    elif kind == "boolean":
        assert isinstance(value, bool), f"{path} is {value!r}"
    else:
        assert isinstance(value, str), f"{path} is {value!r}"
        assert value in (getattr(shape, "enum", None) or [value]), f"{path} is {value!r}"
