"""Google's discovery documents: which methods its APIs have, and whether a JSON text fits a schema."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import googleapiclient

FOLDER = Path(googleapiclient.__file__).parent / "discovery_cache/documents"
APIS = ("compute.v1", "compute.beta", "iamcredentials.v1", "sts.v1", "pubsub.v1", "iam.v1", "cloudbilling.v1")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float), "array": (list,), "object": (dict,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """One method of an API."""

    api: str
    id: str  # compute.instances.insert
    verb: str
    path: re.Pattern[str]
    query: frozenset[str]
    request: str  # names of schemas; "" = none
    response: str


@functools.cache
def document(api: str = APIS[0]) -> dict[str, Any]:
    """The document of an API."""
    found: dict[str, Any] = json.loads((FOLDER / f"{api}.json").read_text())
    return found


@functools.cache
def methods() -> tuple[Method, ...]:
    """All methods."""
    return tuple(m for api in APIS for m in _methods(api, document(api)))


def _methods(api: str, resource: Mapping[str, Any]) -> Iterator[Method]:
    base, general = "/" + document(api)["servicePath"], document(api)["parameters"]
    for inner in resource.get("resources", {}).values():
        yield from _methods(api, inner)
    for m in resource.get("methods", {}).values():
        parts = re.split(r"(\{\+?\w+\})", base + m["path"])
        places = "".join(_place(p, m["parameters"]) if p.startswith("{") else re.escape(p) for p in parts)
        query = {name for name, p in m.get("parameters", {}).items() if p["location"] == "query"}
        ends = (m.get(side, {}).get("$ref", "") for side in ("request", "response"))
        yield Method(api, m["id"], m["httpMethod"], re.compile(places), frozenset(query | general.keys()), *ends)


def _place(part: str, parameters: Mapping[str, Any]) -> str:
    """`{zone}` is one part of a path, `{+name}` several, of a form that the document tells."""
    name = part.strip("{+}")
    form = parameters[name].get("pattern", ".+").removeprefix("^").removesuffix("$") if part[1] == "+" else "[^/]+"
    return f"(?P<{name}>{form})"


def method(verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
    """The method of a request, and the names in its path."""
    for each in methods():
        if each.verb == verb and (found := each.path.fullmatch(path)):
            return each, found.groupdict()
    return None


def problems(api: str, schema: str, value: object) -> list[str]:
    """Why a JSON value does not fit a schema; empty if it does. What is required the document does not say."""
    return list(_problems(document(api)["schemas"], {"$ref": schema}, value, schema))


def _problems(schemas: Mapping[str, Any], schema: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
    found: Any = value  # a checker of types would go by the test below
    while "$ref" in schema:
        schema = schemas[schema["$ref"]]
    kind = schema.get("type", "any")
    if not isinstance(value, _KINDS.get(kind, (object,))) or (isinstance(value, bool) and kind in ("integer", "number")):
        yield f"{at} is {value!r}, not of type {kind}"
    elif kind == "array":
        for i, each in enumerate(found):
            yield from _problems(schemas, schema["items"], each, f"{at}[{i}]")
    elif kind == "object":
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, each in ((n, x) for n, x in found.items() if x is not None):  # null is as if it were not there
            if name in known or others is not None:
                yield from _problems(schemas, known.get(name, others), each, f"{at}.{name}")
            else:
                yield f"{at}.{name} is unknown"
    elif kind == "string":
        yield from _of_text(schema, str(value), at)


def _of_text(schema: Mapping[str, Any], text: str, at: str) -> Iterator[str]:
    if "enum" in schema and text not in schema["enum"]:
        yield f"{at} is {text!r}, not one of its values"
    elif "pattern" in schema and not re.fullmatch(schema["pattern"], text):
        yield f"{at} is {text!r}, not like {schema['pattern']}"
    elif schema.get("format") in ("int64", "uint64") and not text.isdigit():
        yield f"{at} is {text!r}, not a number in text"
