"""All keys of a job file: what each is called in JobSpec, how it is read, what it means, and the option that says the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.common.units import parse_bytes, parse_seconds, parse_usd
from spotsurfer.jobspec.remote_inputs import read_inputs, read_mounts
from spotsurfer.jobspec.sections import read_licences, read_ports, read_share, read_steps
from spotsurfer.model.job import PRIORITIES, MarketChoice

SHELL_SIGN = re.compile(r"[0-9]*[|&;<>]")  # beginnings of words that only a shell understands


# ---- Parsers, one for each kind of value; all raise ValueError


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"is {value!r}, expected a text in quotes")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise ValueError(f'is {value!r}, expected a list of texts, like ["a", "b"]')
    return tuple(value)


def _command(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        words = _texts(value)
    else:
        try:
            words = tuple(shlex.split(value))
            written = _written(value)
        except ValueError as e:
            raise ValueError(f"is {value!r}, which can't be split into words ({e}); write a list of words instead") from None
        if (sign := next((w for w in written if SHELL_SIGN.match(w)), None)) is not None:
            raise ValueError(
                f"is {value!r}, but no shell sees it, and {sign} would be an argument like any other: "
                f'write ["sh", "-c", {json.dumps(value)}] for a shell, or a list of words'
            )
    if not words:
        raise ValueError('is empty, expected a program and its arguments, like "prog --fast" or ["sh", "-c", "a | b"]')
    return words


def _written(text: str) -> list[str]:
    """The words with their quotes: quoted text is literal."""
    parts = shlex.shlex(text, posix=False)
    parts.whitespace_split, parts.commenters = True, ""
    return list(parts)


def _begin(value: object) -> str:
    """A time with a zone, or a duration after the submission; TOML has times of its own."""
    return value.isoformat() if isinstance(value, datetime) else _text(value)


def _words(value: object) -> tuple[str, ...]:
    return () if value == [] else _command(value)


def _table(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str | int | float) for v in value.values()):
        raise ValueError(f'is {value!r}, expected a table of texts, like {{ THREADS = "4" }}')
    return {str(k): v if isinstance(v, str) else str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items()}


def _parameters(value: object) -> dict[str, str | int | float | bool]:
    if not isinstance(value, dict) or not all(isinstance(v, str | int | float) for v in value.values()):
        raise ValueError(f"is {value!r}, expected a table of numbers and texts, like {{ stretch = 1.1 }}")
    return {str(k): v for k, v in value.items()}


def _secrets(value: object) -> dict[str, dict[str, str]]:
    if not isinstance(value, dict):
        raise ValueError(f'is {value!r}, expected a table, like {{ TOKEN = "env:TOKEN" }}')
    return {str(name): _secret(str(name), given) for name, given in value.items()}


def _secret(name: str, given: object) -> dict[str, str]:
    table = {"from": given} if isinstance(given, str) else given
    if not isinstance(table, dict) or not set(table) <= {"from", "as"} or not all(isinstance(x, str) for x in table.values()):
        raise ValueError(f'has {name}, which is neither like "file:PATH" nor like {{ from = "file:PATH", as = "file" }}')
    return {"from": table.get("from", ""), "as": table.get("as", "environment")}


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {value!r}, expected true or false")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"is {value!r}, expected a whole number")
    return value


def _market(value: object) -> MarketChoice:
    try:
        return MarketChoice(str(value))
    except ValueError:
        raise ValueError(f"is {value!r}. {did_you_mean(str(value), list(MarketChoice))}") from None


def read_priority(value: object) -> int:
    """A number, or the name of one; raises ValueError with the second half of a sentence."""
    if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,9}", value):
        if value in PRIORITIES:
            return PRIORITIES[value]
        raise ValueError(f"is {value!r}, expected {', '.join(PRIORITIES)} or a whole number")
    return _count(int(value) if isinstance(value, str) else value)


# What a key takes, by the function that reads it.
TAKES: dict[Callable[[object], Any], str] = {
    _text: "text",
    _texts: "texts",
    _command: "list of words, or text",
    _words: "list of words, or text",
    _begin: "time with a zone, or duration",
    _table: "table of texts",
    _parameters: "table of numbers and texts",
    _secrets: "table",
    _switch: "true or false",
    _count: "whole number",
    _market: "text",
    read_priority: "name or whole number",
    parse_seconds: "duration",
    parse_bytes: "size",
    parse_usd: "US dollars",
    read_inputs: "texts and tables",
    read_mounts: "tables",
    read_steps: "tables",
    read_ports: "numbers or tables",
    read_licences: "table of whole numbers",
    read_share: "number",
}


class Key(NamedTuple):
    """A key of a job file."""

    field: str  # of JobSpec
    parse: Callable[[object], Any]  # raises ValueError with the second half of a sentence
    text: str  # for docs/reference/job-file.md: what it means, and what holds without it
    option: str = ""  # of `spotsurfer submit`


KEYS = {
    "name": Key("name", _text, "up to 40 letters, digits, `.`, `_`, `-`; else the file's name, or the program's", "--name"),
    "command": Key(
        "command",
        _command,
        'a text is split into words, and no shell sees it: write `["sh", "-c", "a > b"]` for one. A word like '
        "`>` or `&` in such a text is refused",
        "-- prog args",
    ),
    "folder": Key("folder", _text, "where the command runs, below the job's own disk", "--folder"),
    "inputs": Key(
        "inputs",
        read_inputs,
        "files, folders, wildcards (`**` too), relative to the job file; others arrive under their last name. "
        "[Addresses in buckets and on the web](../guides/inputs-and-results.md) are fetched by each machine",
        "--in",
    ),
    "mounts": Key("mounts", read_mounts, "`[[mounts]]`: [shared file systems](../guides/inputs-and-results.md)"),
    "outputs": Key(
        "outputs",
        _texts,
        "files and wildcards (`**` for folders of any depth) below `folder`, published all at once at the end. "
        "One that matches no file of the job fails the job (links out of the job's folder, pipes and sockets are "
        "passed over)",
        "--out",
    ),
    "outputs_optional": Key("outputs_optional", _switch, "it is no failure when an output is not there", "--outputs-optional"),
    "environment": Key("environment", _table, "variables", "--env"),
    "secrets": Key("secrets", _secrets, "what nobody but the job may see: [secrets](../guides/secrets.md)", "--secret"),
    "secrets_in_plain_images": Key(
        "secrets_in_plain_images",
        _switch,
        "checkpoints of a job with secrets need not be encrypted",
    ),
    "image": Key(
        "image",
        _text,
        "[container image](../guides/containers.md) that is the job's root, `docker://host/name:tag`; else the machine's own",
        "--image",
    ),
    "entry_point": Key("entry_point", _words, "of the image; `[]` drops the image's"),
    "devices": Key("devices", _texts, "of the machine, as `nvidia.com/gpu=all`"),
    "registry_auth": Key(
        "registry_auth",
        _text,
        "credentials for the image's registry: `file:auth.json` or `env:NAME`",
        "--registry-auth",
    ),
    "tags": Key("tags", _table, "for you; reports and budgets know them", "--tag"),
    "project": Key("project", _text, "for which it is paid", "--project"),
    "user": Key(
        "user",
        _text,
        "`unprivileged`, `root`, or a user of the machine or image; else `nobody`, or the image's user unless that is root",
        "--user",
    ),
    "market": Key("market", _market, "`spot-first` (on-demand while there is no spot), `spot`, `on-demand`", "--market"),
    "priority": Key(
        "priority",
        read_priority,
        "`low` (-10), `normal` (0), `high` (10) or a number from -100 to 100: where limits leave no room for "
        "all, a job of higher priority suspends a lower one",
        "--priority",
    ),
    "checkpoint_interval": Key(
        "checkpoint_interval_seconds",
        parse_seconds,
        "`90s`, `10m`, `6h`; else the operator's, else as the [interval policy](../policies.md) says",
        "--interval",
    ),
    "retries": Key(
        "retries",
        _count,
        "how often a command that fails by itself, or ends without its outputs, starts again",
        "--retries",
    ),
    "budget_usd": Key(
        "budget_usd_micros",
        parse_usd,
        "the job is held before it costs more, [kept checkpoints and traffic with the store](../costs.md) "
        "included; `spotsurfer budget JOB USD` changes it later",
        "--budget",
    ),
    "price_max_usd": Key(
        "price_max_usd_micros",
        parse_usd,
        "what its machine may cost an hour; else the operator's",
        "--price-max",
    ),
    "deadline": Key(
        "deadline_seconds",
        parse_seconds,
        "time it has after it was submitted; with `work`: [deadlines](../guides/deadlines.md)",
        "--deadline",
    ),
    "work": Key("work_seconds", parse_seconds, "time it takes if nothing interrupts it", "--work"),
    "home": Key(
        "home",
        _text,
        "a folder of this host that the job works in, under the same path, and that gets back what the job "
        "changed: [the working directory](../home.md)",
        "--home",
    ),
    "home_files": Key("home_files", _texts, "the only parts of `home` that come along; else all of it", "--home-file"),
    "home_exclude": Key(
        "home_exclude",
        _texts,
        "parts of `home` that neither come along nor come back, besides `.git` and its like",
    ),
    "stdout": Key("stdout", _text, "file of this host that its output is written to while it runs"),
    "stderr": Key("stderr", _text, "file of this host for what it writes to stderr; else as `stdout`"),
    "output_append": Key("output_append", _switch, "what these files held stays"),
    "resources.instance_types": Key(
        "instance_types",
        _texts,
        "machine types or wildcards that it may get, like `m6i.*`; else the operator's",
        "--type",
    ),
    "on_end": Key(
        "on_end",
        _command,
        "command on the controller's host when the job is done, failed or held; what it is given stands in "
        "`config.example.toml`",
    ),
    "resources.cpu": Key("cpus", _count, "processors", "--cpu"),
    "resources.memory": Key("memory_bytes", parse_bytes, "with its unit, binary: 1G = 1 GiB", "--mem"),
    "resources.out_of_memory": Key(
        "out_of_memory",
        _text,
        "if the kernel killed it for memory too often, and more did not help: `hold` it for its user, or `fail`",
    ),
    "resources.gpus": Key("gpus", _count, "NVIDIA GPUs that its machine has at least: [GPUs](../guides/gpus.md)", "--gpus"),
    "resources.gpu": Key("gpu", _text, "which chip, like `H100`; else any", "--gpu"),
    "resources.licences": Key(
        "licences",
        read_licences,
        "[licences](../licences.md) of programs that it has out while it runs, like `{ vcs = 1 }`",
        "--licence",
    ),
    "size.policy": Key(
        "size_policy",
        _text,
        "who says on which type of machine the job should be while it runs: `surf`, `threshold`, `off` (as "
        "asked); else the operator's: [sizes](../guides/sizes.md)",
    ),
    "size.memory_min": Key("size_memory_min_bytes", parse_bytes, "least memory that a size policy may choose; else 1 GiB"),
    "size.memory_max": Key("size_memory_max_bytes", parse_bytes, "most memory; else four times what it asks"),
    "size.cpu_min": Key("size_cpus_min", _count, "fewest processors; else one"),
    "size.cpu_max": Key("size_cpus_max", _count, "most processors; else four times what it asks"),
    "size.parameters": Key("size_parameters", _parameters, "of the size policy: `spotsurfer policies` lists them"),
    "engine": Key(
        "engine",
        _text,
        "how it is saved: `criu` (frozen as it is), `app` (it saves itself), `none` (it starts over elsewhere), "
        "`auto` (the best that works, and `show` says why not a better one)",
    ),
    "tcp": Key(
        "tcp",
        _text,
        "connections to the outside, those of clients of `ports` too: `close` (they break at a move), `keep` (no "
        "save while one is open, not even the last one at a notice), `forbid` (the job counts as unprotected "
        "while one is)",
    ),
    "cpu": Key(
        "cpu",
        _text,
        "`portable` caps which instructions programs choose, so that the job can go on on older processors that "
        "keep the same registers (AVX, AVX-512, AMX, shadow stacks and protection keys on both or on neither). "
        "It caps libraries that are known to choose (C library, BLAS, OpenSSL, …): a program that asks the "
        "processor by itself may die there. Also `x86-64-v2`, `x86-64-v3`",
    ),
    "before_freeze": Key(
        "before_freeze",
        _command,
        "run inside the job, as its user, before each save (not where it was frozen for want of memory; a save "
        "fails with it unless the machine is about to be taken). [Why it "
        "runs](../licences.md#return-a-licence-and-take-it-again) stands in its environment",
    ),
    "after_restore": Key(
        "after_restore",
        _command,
        "run inside the job after each restore; the job runs again by then. A failure is told, and the job runs on",
    ),
    "before_thaw": Key(
        "before_thaw",
        _command,
        "run inside the job after each restore, before it goes on: it stands still until this succeeds",
    ),
    "hook_limit": Key("hook_seconds", parse_seconds, "time that each of these gets"),
    "app.signal": Key(
        "app_signal",
        _text,
        "tells the program to save itself: a signal like `USR1`, which all processes of its group get (it is not "
        "sent before the job's command catches it; a shell does not: begin the command with `exec`)",
    ),
    "app.command": Key(
        "app_command",
        _command,
        "tells it instead: a command run beside it. Its end with 0 says that the program has saved itself",
    ),
    "app.file": Key("app_file", _text, "tells it instead: a file that it looks for and removes"),
    "app.deadline": Key("app_deadline_seconds", parse_seconds, "time that it gets for that"),
    "app.done_file": Key("app_done_file", _text, "says that it has: a file that changes and rests"),
    "app.done_output": Key(
        "app_done_output",
        _text,
        "says that it has: a regular expression for a line of its standard output",
    ),
    "app.done_exit": Key("app_done_exit", _count, "says that it has: its exit code (it is started again after each live save)"),
    "app.restart_command": Key("app_restart_command", _command, "goes on from its files; else `command`"),
    "steps": Key(
        "steps",
        read_steps,
        "`[[steps]]`: commands one after the other instead of `command`: [steps](../guides/steps.md)",
    ),
    "ports": Key(
        "ports",
        read_ports,
        "`[[ports]]`, or numbers: TCP ports on which it listens for others: [servers](../guides/servers.md)",
        "--port",
    ),
    "array": Key(
        "array",
        _text,
        "tasks from one file, like `1-1000%50` (fifty at a time); `{task}` is the task's number: [arrays](../arrays.md)",
        "--array",
    ),
    "after": Key(
        "after",
        _texts,
        "what must come before, like `afterok:JOB`: [dependencies](../arrays.md#dependencies)",
        "--after",
    ),
    "begin": Key("begin", _begin, "not before this time, or so long after it was submitted", "--begin"),
    "time_limit": Key(
        "time_limit_seconds",
        parse_seconds,
        "time in which it may run, on all its machines together: [time limits](../arrays.md#time-limits)",
        "--time-limit",
    ),
    "warn.signal": Key("warn_signal", _text, "sent to it before its time limit ends it"),
    "warn.before": Key("warn_seconds", parse_seconds, "so long before"),
    "stuck_after": Key(
        "stuck_seconds",
        parse_seconds,
        "time without processor, disk, network, GPU and output after which it counts as stuck: `list` and `show` "
        "say so, `watch` tells it, and an [alert](../monitoring.md) can ring. It runs on; else nobody looks",
        "--stuck-after",
    ),
    "idle.suspend_after": Key(
        "idle_seconds",
        parse_seconds,
        "time without work after which it is suspended; else never: [servers](../guides/servers.md)",
        "--suspend-after",
    ),
    "idle.cpu": Key("idle_cpu", read_share, "so few processors in use count as no work"),
    "idle.gpu": Key("idle_gpu", read_share, "so small a share of the time in which GPUs work counts as no work"),
}
TABLES = {  # of keys, with an example
    "resources": 'cpu = 2, memory = "4G"',
    "app": 'signal = "USR1", done_file = "state.ckpt"',
    "idle": 'suspend_after = "30m"',
    "size": 'policy = "surf"',
    "warn": 'signal = "USR1", before = "60s"',
}
