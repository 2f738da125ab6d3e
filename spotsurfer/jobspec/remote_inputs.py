"""`inputs` from elsewhere and `[[mounts]]` of a job file: from TOML to values, and the checks of both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from spotsurfer_wire import input_addresses
from spotsurfer_wire.messages import Fetch

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.jobspec.sections import known_keys, repeated, switches
from spotsurfer.model.job import NAME, NAME_LETTERS, InputFetch, SharedMount

INPUT_KEYS = ("from", "to", "sha256", "version", "region", "endpoint", "anonymous", "requester_pays")
MOUNT_KEYS = ("name", "type", "source", "target", "options", "read_only")
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
KIND = re.compile(r"[a-z][a-z0-9._-]{0,31}")
OPTIONS = frozenset({"region", "endpoint", "virtual_hosted_style_request", "allow_http", "skip_signature", "request_payer"})
FETCHES_MAX, MOUNTS_MAX = 1000, 20
# Folders that belong to the job or the machine: nothing can be mounted over them.
TAKEN = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64")  # noqa: S108
INPUT_EXAMPLE = '{ from = "s3://bucket/reads/*.fq.gz", to = "reads" }'
MOUNT_EXAMPLE = 'name = "data", type = "nfs4", source = "server:/export", target = "/data"'


def read_inputs(value: object) -> tuple[str | InputFetch, ...]:
    """Paths, addresses and tables."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(x, str | Mapping) for x in value):
        raise ValueError(f'is {value!r}, expected a list like ["reads/*.fq", "s3://bucket/key", {INPUT_EXAMPLE}]')
    return tuple(_input(x) for x in value)


def split(inputs: Sequence[str | InputFetch]) -> dict[str, Any]:
    """Fields of the specification: inputs to upload, and inputs that machines fetch."""
    fetches = tuple(x for x in inputs if isinstance(x, InputFetch))
    return {"inputs": tuple(x for x in inputs if isinstance(x, str)), "fetches": fetches}


def _input(entry: str | Mapping[str, Any]) -> str | InputFetch:
    if isinstance(entry, str):
        return InputFetch(entry) if is_elsewhere(entry) else entry
    known_keys(entry, INPUT_KEYS, f" in {dict(entry)}")
    source = entry.get("from")
    if not isinstance(source, str) or not is_elsewhere(source):
        raise ValueError(f"has {source!r} after `from`, expected an address like {INPUT_EXAMPLE}; paths are written alone")
    for key in ("to", "sha256", "version", "region", "endpoint"):
        if not isinstance(entry.get(key, ""), str):
            raise ValueError(f"has {key} = {entry[key]!r} for {source}, expected a text in quotes")
    switches(entry, ("anonymous", "requester_pays"), f"for {source}")
    plain = {key: entry[key] for key in ("to", "sha256", "version") if key in entry}
    return InputFetch(source, **plain, options=_options(entry))


def _options(entry: Mapping[str, Any]) -> dict[str, str]:
    """Options in obstore's names. A private service is addressed by path, because bucket names are no host names there."""
    found: dict[str, str] = {}
    if entry.get("region"):
        found["region"] = entry["region"]
    if endpoint := entry.get("endpoint"):
        found |= {"endpoint": endpoint, "virtual_hosted_style_request": "false"}
        found |= {"allow_http": "true"} if endpoint.startswith("http://") else {}
    if entry.get("anonymous"):
        found["skip_signature"] = "true"
    if entry.get("requester_pays"):
        found["request_payer"] = "true"
    return found


def is_elsewhere(text: str) -> bool:
    """Whether the text is an address, not a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def read_mounts(value: object) -> tuple[SharedMount, ...]:
    """The shared file systems of a job file."""
    if not isinstance(value, list) or not all(isinstance(x, Mapping) for x in value):
        raise ValueError(f"is {value!r}, expected tables like [[mounts]] {MOUNT_EXAMPLE}")
    return tuple(_mount(number, table) for number, table in enumerate(value, 1))


def _mount(number: int, table: Mapping[str, Any]) -> SharedMount:
    known_keys(table, MOUNT_KEYS, f" in entry {number}")
    for key in ("name", "type", "source", "target"):
        if not isinstance(table.get(key), str) or not table[key]:
            raise ValueError(f"has no {key} in entry {number}, expected one like [[mounts]] {MOUNT_EXAMPLE}")
    if not isinstance(table.get("options", ""), str):
        raise ValueError(f'has options = {table["options"]!r} in entry {number}, expected a text like "vers=4.2,hard"')
    switches(table, ("read_only",), f"in entry {number}")
    return SharedMount(**{str(k): v for k, v in table.items()})


# ---- Checks


def problems(fetches: Sequence[InputFetch], mounts: Sequence[SharedMount]) -> Iterator[tuple[str, str]]:
    """Everything wrong with them: (key of the job file, second half of a sentence)."""
    if len(fetches) > FETCHES_MAX:
        yield "inputs", f"has {len(fetches)} addresses, more than {FETCHES_MAX}: name folders or wildcards"
    for fetch in fetches:
        yield from (("inputs", f"has {fetch.source!r}, which {why}") for why in _of_fetch(fetch))
    if len(mounts) > MOUNTS_MAX:
        yield "mounts", f"are {len(mounts)}, more than {MOUNTS_MAX}"
    yield from repeated("mounts", "name", (m.name for m in mounts))
    yield from repeated("mounts", "target", (m.target.rstrip("/") for m in mounts))
    for mount in mounts:
        yield from (("mounts", f"has in {mount.name!r} {why}") for why in _of_mount(mount))


def _of_fetch(fetch: InputFetch) -> Iterator[str]:
    try:
        at = input_addresses.address(fetch.source)
    except ValueError as e:
        yield str(e)
        return
    if not fetch.source.isprintable():
        yield "holds a character that can't be shown"
    if at.is_many and (fetch.sha256 or fetch.version):
        yield "means several files, so it can't have one sha256 or version: name a single file"
    if at.scheme in input_addresses.WEB and "*" in at.place:
        yield "has a wildcard, but the web lists no files: name each one, and write %2A for a '*' that is meant"
    if fetch.sha256 and not SHA256.fullmatch(fetch.sha256):
        yield f"has the sha256 {fetch.sha256!r}, expected 64 hexadecimal digits"
    if at.scheme == "http" and not fetch.sha256:
        yield "anybody on the way could change: use https://, or say its sha256"
    if unknown := sorted(set(fetch.options) - OPTIONS):
        yield f"has the option {unknown[0]!r}. {did_you_mean(unknown[0], sorted(OPTIONS))}"
    if fetch.to and _leaves(fetch.to.rstrip("/") or fetch.to):
        yield f"is to arrive at {fetch.to!r}: write a path below the job's folder"
    if not at.is_many and not input_addresses.arrives(Fetch(fetch.source, fetch.to), at.key):
        yield "has no last name: say `to`"


def _of_mount(mount: SharedMount) -> Iterator[str]:
    if not NAME.fullmatch(mount.name):
        yield f"a name that is none: {NAME_LETTERS}"
    if not KIND.fullmatch(mount.type):
        yield f"the type {mount.type!r}, expected one of mount(8), like 'nfs4'; 'bind' for a folder of the machine"
    for key, value in (("source", mount.source), ("options", mount.options), ("target", mount.target)):
        if not value.isprintable() or value.startswith("-") or (key != "target" and " " in value):
            yield f"the {key} {value!r}, which mount can't be given"
    if not mount.target.startswith("/"):
        if _leaves(mount.target):
            yield f"the target {mount.target!r}: write an absolute path, or one below the job's folder"
    elif any(x == y or y in x.parents for x in [PurePosixPath(mount.target)] for y in map(PurePosixPath, TAKEN)) or (
        PurePosixPath(mount.target) == PurePosixPath("/") or ".." in PurePosixPath(mount.target).parts
    ):
        yield f"the target {mount.target!r}, which belongs to the system: say another, like '/data'"


def _leaves(path: str) -> bool:
    return path.startswith(("/", "~")) or ".." in PurePosixPath(path).parts or PurePosixPath(path) == PurePosixPath(".")
