"""Makes schema.json: what Terraform's Google provider knows of the resources and data sources that `terraform/gcp` uses.

    python -m pip download --no-deps cdktf-cdktf-provider-google==16.12.1
    python tests/support/terraform_google/make_schema.py cdktf_cdktf_provider_google-16.12.1-py3-none-any.whl

That package was generated from the schema of hashicorp/google 6.50.0. It carries a description of itself (a jsii assembly).
Names, types, nesting and what is required are read from that. Both are licensed under MPL-2.0, and so is the table. What the
assembly does not say: whether a list is a set, and which optional arguments the provider fills in by itself (taken for all).
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("schema.json")
MODULE = Path(__file__).parents[3] / "terraform/gcp"
ABOUT = "Of hashicorp/google {version}, by way of {package}; both MPL-2.0. Made by make_schema.py."
PRIMITIVES = {"string": "string", "number": "number", "boolean": "bool"}
RESOLVABLE, STRINGS = "cdktf.IResolvable", "cdktf.StringMap"


def used() -> dict[str, list[str]]:
    """Resource types and data sources that the module and its examples name."""
    text = "\n".join(p.read_text() for p in sorted(MODULE.rglob("*.tf")))
    return {kind: sorted(set(re.findall(rf'^{kind} "(google_\w+)"', text, re.MULTILINE))) for kind in ("resource", "data")}


class Assembly:
    """The description of all types in a wheel."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as package:
            inner = next(n for n in package.namelist() if n.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(package.read(inner))) as archive:
                found = archive.extractfile("package/.jsii")
                assert found is not None
                described = json.load(found)
        self.types: dict[str, Any] = described["types"]
        self._by_name = {name.rpartition(".")[2].lower(): name for name in self.types}

    def block(self, name: str) -> dict[str, Any]:
        """A resource or data source, by its class in small letters. Raises KeyError for one that is unknown."""
        block = self._arguments(self.types[self._by_name[f"{name}config"]])
        for attribute in self.types[self._by_name[name]]["properties"]:
            key = _snake(attribute["name"])
            is_known = key in block["attributes"] or attribute.get("static") or attribute["name"].endswith("Input")
            if not is_known and (kind := self._type(attribute["type"])) is not None:
                block["attributes"][key] = f"{kind} computed"
        return block

    def _arguments(self, struct: Any) -> dict[str, Any]:
        attributes: dict[str, str] = {}
        blocks: dict[str, Any] = {}
        for argument in struct.get("properties", []):
            key, is_optional = _key(argument), bool(argument.get("optional"))
            if (kind := self._type(argument["type"])) is not None:
                attributes[key] = f"{kind} {'optional' if is_optional else 'required'}"
            elif (inner := self._struct(argument["type"])) is not None:
                counts = {"min": 0 if is_optional else 1, "max": 1 if "fqn" in argument["type"] else 0}
                blocks[key] = {**counts, **self._arguments(self.types[inner])}
        return {"attributes": attributes, "blocks": blocks} if blocks else {"attributes": attributes}

    def _type(self, described: Any) -> str | None:
        """Of an attribute; None: it is a block."""
        if "primitive" in described:
            return PRIMITIVES[described["primitive"]]
        if described.get("fqn") in (RESOLVABLE, STRINGS):
            return "bool" if described["fqn"] == RESOLVABLE else "map(string)"
        if "union" in described:
            kinds = [k for t in described["union"]["types"] if t.get("fqn") != RESOLVABLE and (k := self._type(t)) is not None]
            return kinds[0] if kinds else None
        if "collection" in described and (inner := self._type(described["collection"]["elementtype"])) is not None:
            return f"{'map' if described['collection']['kind'] == 'map' else 'list'}({inner})"
        return None

    def _struct(self, described: Any) -> str | None:
        """The one type with arguments of its own in there."""
        if described.get("fqn") in self.types and self.types[described["fqn"]]["kind"] == "interface":
            return str(described["fqn"])
        inner = described.get("union", {}).get("types") or [described.get("collection", {}).get("elementtype", {})]
        return next((found for t in inner if t and (found := self._struct(t)) is not None), None)


def _key(argument: Any) -> str:
    """Terraform's name for it, which the documentation links to."""
    docs = argument.get("docs", {})
    linked = re.search(r"/docs/[\w-]+/\w+#(\w+) ", docs.get("remarks", "") + docs.get("summary", ""))
    return linked[1] if linked else _snake(argument["name"])


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def main() -> None:
    """Reads the wheel, writes the table."""
    wheel = Path(sys.argv[1])
    assembly = Assembly(wheel)
    version = re.search(r"hashicorp/google/([\d.]+)/", json.dumps(assembly.types[next(iter(assembly.types))]))
    assert version is not None
    package, number = wheel.name.split("-")[:2]
    table: dict[str, Any] = {"about": ABOUT.format(version=version[1], package=f"{package.replace('_', '-')} {number}")}
    for kind, names in used().items():
        begin = {"resource": "", "data": "datagoogle"}[kind]
        table[kind] = {n: assembly.block(begin + n.removeprefix("google_").replace("_", "")) for n in names}
    lines = [f'"about": {json.dumps(table["about"])}']
    for kind in ("resource", "data"):
        inner = ",\n".join(f"{json.dumps(n)}: {json.dumps(b, sort_keys=True)}" for n, b in table[kind].items())
        lines.append(f'"{kind}": {{\n{inner}\n}}')
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
