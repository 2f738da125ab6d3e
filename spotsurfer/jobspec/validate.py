"""Checks a job's specification, whatever its source: a job file, options, or a stranger's HTTP request."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from spotsurfer.common import plugins
from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.common.units import SECONDS_MAX
from spotsurfer.jobspec import queueing, remote_inputs, sections
from spotsurfer.model.errors import ConfigError, Denied, JobFileError
from spotsurfer.model.job import (
    AFTER_KILLS,
    CPU_CAPS,
    ENGINES,
    NAME,
    NAME_LETTERS,
    PRIORITY_MAX,
    SECRET_FORMS,
    SENT_SECRETS,
    SIGNALS,
    SIZE_OFF,
    TCP_MODES,
    JobSpec,
    MarketChoice,
    fetched,
    main_command,
)

INTEGER_MAX = 2**62  # sums of some of them still fit into 64 bits
NAME_EXPECTED = f"{NAME_LETTERS}, beginning with a letter or digit"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
SECRETS_MAX = 100
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
IMAGE_USER = re.compile(r"(?:[a-z_][a-z0-9_-]{0,31}|[0-9]{1,9})(?::(?:[a-z_][a-z0-9_-]{0,31}|[0-9]{1,9}))?")
CPUS_MAX = 4096
MEMORY_MIN_BYTES = 16 << 20
GPUS_MAX = 64
GPU_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 .-]{0,63})")
RETRIES_MAX = 1000
INTERVAL_MIN_SECONDS = 1.0
WORK_MIN_SECONDS = 60.0
WAIT_MAX_SECONDS = 3600.0
TEXT_MAX_BYTES = 128 << 10  # of the command, the environment, the tags: each is part of small objects and of argv


def checked(spec: JobSpec) -> JobSpec:
    """A job as asked for; raises JobFileError naming the key for values that no job may have.

    The size policy must be installed here, and take its parameters.
    """
    spec = replace(spec, command=spec.command or main_command(spec.steps))
    for key, why in problems(spec):
        raise JobFileError(f"{key} {why}.")
    if spec.size_policy in ("", SIZE_OFF):
        return spec
    known = plugins.plugins(plugins.SIZE)
    if spec.size_policy not in known:
        raise JobFileError(f"size.policy is {spec.size_policy!r}. {did_you_mean(spec.size_policy, [SIZE_OFF, *known])}")
    try:
        plugins.made(plugins.SIZE, spec.size_policy, spec.size_parameters)
    except ConfigError as e:
        raise JobFileError(f"size.parameters: {e}.") from None
    return spec


def refuse_remote(spec: JobSpec, *, on_end: bool, fetch: bool) -> None:
    """Raises Denied for what a job from another host may not do, unless its operator allows it.

    `on_end`: commands on the controller's host may come; `fetch`: secrets may be fetched with the controller's credentials.
    """
    if spec.on_end and not on_end:
        raise Denied(
            "on_end runs a command on the controller's host: only operators may bring one, and over TCP not even they; remove "
            "it from the job, let an operator submit it on that host, or set [hooks] allow_remote = true for theirs over TCP."
        )
    if fetched(spec) and not fetch:
        raise Denied(
            "Secrets of a cloud are fetched with the controller's own credentials: only operators may ask for that, and over "
            "TCP not even they; give them as file: or env:, or set [secrets] allow_remote = true for operators over TCP."
        )


def problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Everything wrong with `spec`: (key of the job file, second half of a sentence)."""
    strange = [(key, why) for key, value in _leaves("", spec) if (why := _why_strange(key, value))]
    yield from strange
    if strange:
        return  # later checks compute with these values
    yield from _texts(spec)
    yield from _paths(spec)
    yield from _numbers(spec)
    yield from _protection(spec)
    yield from _secrets(spec)
    yield from sections.image_problems(spec)
    yield from remote_inputs.problems(spec.fetches, spec.mounts)
    yield from queueing.problems(spec)
    yield from sections.port_problems(spec)
    yield from sections.licence_problems(spec)
    yield from sections.quiet_problems(spec)
    yield from sections.home_problems(spec)
    yield from sections.step_problems(spec.steps, spec.command, saves_itself=spec.saves_itself)


def _leaves(key: str, value: object) -> Iterator[tuple[str, object]]:
    """All values within a value, each with its key."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _leaves(f"{key}.{field.name}".removeprefix("."), getattr(value, field.name))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield f"a key of {key}", name
            yield from _leaves(f"{key}.{name}", inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _leaves(key, inner)
    else:
        yield key, value


def _why_strange(key: str, value: object) -> str:
    """The reason why a value breaks arithmetic or can't be stored, or ""."""
    if isinstance(value, str) and not _storable(value):
        return f"is {value[:100]!r}, which is no UTF-8 text"
    if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX:
        return "is too large a number"
    if isinstance(value, float) and key.endswith("_seconds") and not 0 <= value <= SECONDS_MAX:  # not true of NaN
        return f"is {value:g}, expected a duration between 0 and ten years"
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value:g}, expected a number"
    return ""


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def unstorable(path: str) -> str:
    """The reason why no object of a store can have such a name, or ""."""
    if not _storable(path):
        return "is no UTF-8 text"
    return "holds a control character" if any(ord(c) < 32 or ord(c) == 127 for c in path) else ""


def _texts(spec: JobSpec) -> Iterator[tuple[str, str]]:
    if not NAME.fullmatch(spec.name):
        yield "name", f"is {spec.name!r}, expected {NAME_EXPECTED}"
    if spec.project and not NAME.fullmatch(spec.project):
        yield "project", f"is {spec.project!r}, expected {NAME_EXPECTED}"
    if not (spec.command or spec.image) or (spec.command and not spec.command[0].strip()):
        yield "command", 'is empty, expected a program and its arguments, like ["prog", "--fast"]'
    if spec.user is not None and not (IMAGE_USER if spec.image else USER).fullmatch(spec.user):
        yield "user", f"is {spec.user!r}, expected a user of the {'image' if spec.image else 'machine'}, like 'nobody'"
    for key in spec.environment:
        if not VARIABLE.fullmatch(key):
            yield f"environment.{key}", "is no name of a variable: letters, digits and '_', not beginning with a digit"
    for key, values in (
        ("command", spec.command),
        ("environment", tuple(spec.environment.values())),
        ("tags", (*spec.tags, *spec.tags.values())),
        ("on_end", spec.on_end),
        ("entry_point", spec.entry_point or ()),
        ("before_freeze", spec.before_freeze),
        ("after_restore", spec.after_restore),
        ("before_thaw", spec.before_thaw),
        ("app.command", spec.app_command),
        ("app.restart_command", spec.app_restart_command),
    ):
        if any("\0" in v for v in values):
            yield key, "holds a zero byte"
        if sum(len(v.encode()) for v in values) > TEXT_MAX_BYTES:
            yield key, f"is longer than {TEXT_MAX_BYTES >> 10} KiB: put it into an input file"


def _paths(spec: JobSpec) -> Iterator[tuple[str, str]]:
    own = (("app.file", spec.app_file), ("app.done_file", spec.app_done_file))
    given = ((key, (value,)) for key, value in own if value)
    for key, values in (("folder", (spec.folder,)), ("outputs", spec.outputs), *given):
        for value in values:
            if why := leaves_folder(value):
                yield key, f"is {value!r}, which {why}: write a path relative to the job's folder"
    for pattern in spec.outputs:
        if any("**" in part and part != "**" for part in pattern.split("/")):
            yield "outputs", f"is {pattern!r}, but '**' stands for whole folders: write it as in 'out/**/*.fa'"


def leaves_folder(path: str) -> str:
    """The reason why `path` is not a plain path below its folder, or ""."""
    if not path or "\0" in path:
        return "is no path"
    if path.startswith(("/", "~")):
        return "is absolute"
    return "leaves the job's folder" if ".." in PurePosixPath(path).parts else ""


def _numbers(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for key, value, least, most in (
        ("resources.cpu", spec.cpus, 1, CPUS_MAX),
        ("resources.gpus", spec.gpus, 0, GPUS_MAX),
        ("retries", spec.retries, 0, RETRIES_MAX),
        ("priority", spec.priority, -PRIORITY_MAX, PRIORITY_MAX),
    ):
        if not least <= value <= most:
            yield key, f"is {value}, expected {least} to {most}"
    if spec.memory_bytes < MEMORY_MIN_BYTES:
        yield "resources.memory", f"is {spec.memory_bytes} bytes, expected at least {MEMORY_MIN_BYTES >> 20}M"
    if spec.gpu and not GPU_NAME.fullmatch(spec.gpu):
        yield "resources.gpu", f"is {spec.gpu!r}, expected a chip's name like 'H100' or 'A10G'"
    interval = spec.checkpoint_interval_seconds
    if interval is not None and interval < INTERVAL_MIN_SECONDS:
        yield "checkpoint_interval", f"is {interval:g} seconds, expected at least {INTERVAL_MIN_SECONDS:g}"
    if spec.budget_usd_micros is not None and spec.budget_usd_micros <= 0:
        yield "budget_usd", "is nothing: the job could never start"
    if spec.price_max_usd_micros is not None and spec.price_max_usd_micros <= 0:
        yield "price_max_usd", "is nothing: no machine costs so little"
    yield from _deadline(spec)
    yield from _size(spec)
    if "" in spec.instance_types:
        yield "resources.instance_types", 'has an empty name, expected names or wildcards like "m6i.*"'


def _size(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Bounds of its size policy: the request must lie within them, so that the job can begin there."""
    for name, least, asked, most in (
        ("cpu", spec.size_cpus_min, spec.cpus, spec.size_cpus_max),
        ("memory", spec.size_memory_min_bytes, spec.memory_bytes, spec.size_memory_max_bytes),
    ):
        if least is not None and not 0 < least <= asked:
            yield f"size.{name}_min", f"is {least}, expected more than 0 and at most resources.{name}, {asked}"
        if most is not None and most < asked:
            yield f"size.{name}_max", f"is {most}, less than resources.{name}, {asked}: the job begins on what it asks for"
    if spec.size_parameters and not spec.size_policy:
        yield "size.parameters", 'are of a policy: name it, like policy = "surf"'


def _deadline(spec: JobSpec) -> Iterator[tuple[str, str]]:
    time, work = spec.deadline_seconds, spec.work_seconds
    if time is None and work is None:
        return
    if time is None:
        yield "work", 'is of use only together with a deadline: add a line like deadline = "70h"'
    elif work is None:
        yield "deadline", 'can be kept only where the work is known: add a line like work = "48h", as if nothing interrupted it'
    elif work < WORK_MIN_SECONDS:
        yield "work", f"is {work:g} seconds, expected at least {WORK_MIN_SECONDS:g}"
    elif time < work:
        yield "deadline", f"is {time:g} seconds, less than the work of {work:g}: it can't be met even without a pause"
    elif spec.market is MarketChoice.SPOT:
        yield "deadline", 'can\'t be promised on spot machines alone: set market to "spot-first"'


def _secrets(spec: JobSpec) -> Iterator[tuple[str, str]]:
    kinds = (*SENT_SECRETS, *sorted(plugins.plugins(plugins.SECRETS))) if spec.secrets else ()
    if len(spec.secrets) > SECRETS_MAX:
        yield "secrets", f"has {len(spec.secrets)} entries, more than {SECRETS_MAX}: put some into one file"
    for name, secret in spec.secrets.items():
        key, source, form = f"secrets.{name}", secret.get("from", ""), secret.get("as", "")
        kind, _, place = source.partition(":")
        if set(secret) != {"from", "as"} or form not in SECRET_FORMS:
            yield key, f"is wanted as {form!r}. {did_you_mean(form, SECRET_FORMS)}"
        elif not (VARIABLE if form == "environment" else SECRET_FILE).fullmatch(name):
            what = "variable" if form == "environment" else "file"
            yield key, f"is no name of a {what}: letters, digits and '_' only{', or . and - inside' if what == 'file' else ''}"
        if kind not in kinds or not place or "\0" in place:
            yield key, f"comes from {source!r}, expected one of {', '.join(k + ':…' for k in kinds)}"
        if form == "environment" and name in spec.environment:
            yield key, "is given in environment, too: remove one of them"


def _protection(spec: JobSpec) -> Iterator[tuple[str, str]]:
    choices = (("engine", ENGINES), ("tcp", TCP_MODES), ("cpu", CPU_CAPS), ("resources.out_of_memory", AFTER_KILLS))
    for key, known in choices:
        value = getattr(spec, key.rpartition(".")[2])
        if value not in known:
            yield key, f"is {value!r}. {did_you_mean(value, known)}"
    for key, seconds in (("hook_limit", spec.hook_seconds), ("app.deadline", spec.app_deadline_seconds)):
        if not 0 < seconds <= WAIT_MAX_SECONDS:
            yield key, f"is {seconds:g} seconds, expected more than 0 and at most {WAIT_MAX_SECONDS:g}"
    if spec.engine == "app" and not spec.saves_itself:
        yield "engine", "is 'app', but nothing tells the program to save itself: add [app] with signal, command or file"
    if spec.before_thaw and (spec.gpus or spec.gpu):
        yield "before_thaw", "can't be kept with GPUs: their memory comes back while the job's threads run"
    yield from _self_save(spec)


def _self_save(spec: JobSpec) -> Iterator[tuple[str, str]]:
    ways = [name for name in ("signal", "command", "file") if getattr(spec, f"app_{name}")]
    done = [name for name in ("done_file", "done_output") if getattr(spec, f"app_{name}")]
    done += ["done_exit"] if spec.app_done_exit is not None else []
    if len(ways) > 1:
        yield f"app.{ways[1]}", f"is one way too many to tell the program to save itself: keep it or {ways[0]}"
    if len(done) > 1:
        yield f"app.{done[1]}", f"is one sign too many that the program has saved itself: keep it or {done[0]}"
    if done and not ways:
        yield f"app.{done[0]}", "says when the program has saved itself, but nothing asks it to: add signal, command or file"
    if ways and not done and ways != ["command"]:
        yield f"app.{ways[0]}", "asks the program to save itself, but nothing says when it has: add done_file or its like"
    if spec.app_signal and spec.app_signal not in SIGNALS:
        yield "app.signal", f"is {spec.app_signal!r}, expected one of {', '.join(SIGNALS)}"
    if spec.app_done_exit is not None and not 0 <= spec.app_done_exit <= 255:
        yield "app.done_exit", f"is {spec.app_done_exit}, expected an exit code, 0 to 255"
    try:
        re.compile(spec.app_done_output)
    except re.error as e:
        yield "app.done_output", f"is {spec.app_done_output!r}, no regular expression ({e})"
