"""A job's container image: what is wrong with what was asked, and the credentials for the registry that it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from spotsurfer_agent.images.reference import Reference

from spotsurfer.jobsecrets import read_one
from spotsurfer.model.errors import InputMissing, JobFileError
from spotsurfer.model.job import SENT_SECRETS, JobSpec

DEVICE = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9_.-]+=[A-Za-z0-9_.:-]+")
Say = Callable[[str], str]  # the begin of a sentence about a key


def problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Everything wrong with it: (key of the job file, second half of a sentence)."""
    if not spec.image:
        given = {"entry_point": spec.entry_point is not None, "registry_auth": spec.registry_auth, "devices": spec.devices}
        for key, value in given.items():
            if value:
                yield key, 'speaks of a container image, but the job has none: add image = "docker://…"'
        return
    try:
        Reference.parse(spec.image)
    except ValueError as e:
        yield "image", str(e)
    for device in spec.devices:
        if not DEVICE.fullmatch(device):
            yield "devices", f"has {device!r}, expected a name like 'nvidia.com/gpu=all'"
    kind, _, place = spec.registry_auth.partition(":")
    if spec.registry_auth and (kind not in SENT_SECRETS or not place):
        yield "registry_auth", f"is {spec.registry_auth!r}, expected file:PATH or env:NAME"


def read_auth(spec: JobSpec, folder: Path, at: Say) -> bytes | None:
    """The credentials that the job names, from where it is submitted; None where it names none.

    Raises InputMissing for what is absent, JobFileError for what is no containers-auth.json.
    """
    if not spec.registry_auth:
        return None
    try:
        value = read_one(spec.registry_auth, folder)
    except LookupError as e:
        raise InputMissing(f"{at('registry_auth')} {e.args[0]}.") from None
    if not usable(value):
        raise JobFileError(
            f'{at("registry_auth")} is no containers-auth.json, expected {{"auths": {{"host": {{"auth": "…"}}}}}}: '
            "`skopeo login --authfile auth.json HOST` writes one."
        )
    return value


def usable(value: bytes) -> bool:
    """Whether this is a containers-auth.json whose credentials are in it and not with a helper of some other machine."""
    try:
        hosts = json.loads(value)["auths"]
        return bool(hosts) and all(isinstance(x, dict) and x.get("auth") for x in hosts.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
