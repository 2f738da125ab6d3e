"""Google's discovery document of Compute Engine: which methods there are, and whether a JSON text fits its schema."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import googleapiclient

PATH = Path(googleapiclient.__file__).parent / "discovery_cache/documents/compute.v1.json"
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float), "array": (list,), "object": (dict,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the API."""

    id: str  # compute.instances.insert
    verb: str
    path: re.Pattern[str]
    query: frozenset[str]
    request: str  # names of schemas; "" = none
    response: str


@functools.cache
def document() -> dict[str, Any]:
    """The document."""
    found: dict[str, Any] = json.loads(PATH.read_text())
    return found


@functools.cache
def methods() -> tuple[Method, ...]:
    """All methods."""
    return tuple(_methods(document()["resources"]))


def _methods(resources: Mapping[str, Any]) -> Iterator[Method]:
    base = "/" + document()["servicePath"]
    for resource in resources.values():
        yield from _methods(resource.get("resources", {}))
        for m in resource.get("methods", {}).values():
            places = re.sub(
                r"\\\{\\\+?(\w+)\\\}|\\\{(\w+)\\\}", lambda f: f"(?P<{f[1] or f[2]}>[^/]+)", re.escape(base + m["path"])
            )
            query = {name for name, p in m.get("parameters", {}).items() if p["location"] == "query"}
            general = document()["parameters"]
            ends = (m.get(side, {}).get("$ref", "") for side in ("request", "response"))
            yield Method(m["id"], m["httpMethod"], re.compile(places), frozenset(query | general.keys()), *ends)


def method(verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
    """The method of a request, and the names in its path."""
    for each in methods():
        if each.verb == verb and (found := each.path.fullmatch(path)):
            return each, found.groupdict()
    return None


def problems(schema: str, value: object) -> list[str]:
    """Why a JSON value does not fit a schema; empty if it does. What is required the document does not say."""
    return list(_problems({"$ref": schema}, value, schema))


def _problems(schema: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
    found: Any = value  # a checker of types would go by the test below
    while "$ref" in schema:
        schema = document()["schemas"][schema["$ref"]]
    kind = schema.get("type", "any")
    if not isinstance(value, _KINDS.get(kind, (object,))) or (isinstance(value, bool) and kind in ("integer", "number")):
        yield f"{at} is {value!r}, not of type {kind}"
    elif kind == "array":
        for i, each in enumerate(found):
            yield from _problems(schema["items"], each, f"{at}[{i}]")
    elif kind == "object":
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, each in found.items():
            if name in known or others is not None:
                yield from _problems(known.get(name, others), each, f"{at}.{name}")
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
