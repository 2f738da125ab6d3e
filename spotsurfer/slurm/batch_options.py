"""What a submission asks for: options of `sbatch` and `srun` from command line, environment and script. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from spotsurfer.slurm.options import Grammar, Refused, parse, table
from spotsurfer.slurm.values import read_limit, read_memory, read_signal, read_tasks, read_time

WRONG = 255  # exit code of a value that an option does not take
CONFIGURATION = "Requested node configuration is not available"

# Every option of Slurm 22.05; those without an entry in READERS or REFUSED are accepted, and nothing follows from them.
_LONGS, _SHORTS = table(
    """account=:A acctg-freq= array=:a batch= bb= bbf= begin=:b chdir=:D cluster-constraint= clusters=:M comment= constraint=:C
    container= contiguous core-spec=:S cores-per-socket= cpu-freq= cpus-per-gpu= cpus-per-task=:c deadline= delay-boot=
    dependency=:d distribution=:m error=:e exclude=:x exclusive=? export= export-file= extra-node-info=:B get-user-env=? gid=
    gpu-bind= gpu-freq= gpus=:G gpus-per-node= gpus-per-socket= gpus-per-task= gres= gres-flags= help:h hint= hold:H ignore-pbs
    input=:i job-name=:J kill-on-invalid-dep= licenses=:L mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu=
    mem-per-gpu= mincpus= network= nice=? no-kill=?:k no-requeue nodefile=:F nodelist=:w nodes=:N ntasks=:n ntasks-per-core=
    ntasks-per-gpu= ntasks-per-node= ntasks-per-socket= open-mode= output=:o overcommit:O oversubscribe:s parsable partition=:p
    power= priority= profile= propagate=? qos=:q quiet:Q reboot requeue reservation= signal= sockets-per-node= spread-job
    switches= test-only thread-spec= threads-per-core= time=:t time-min= tmp= uid= usage use-min-nodes verbose:v version:V
    wait:W wait-all-nodes= wckey= wrap="""
)
SBATCH = Grammar("sbatch", _LONGS, _SHORTS, first_word_ends=True, code=WRONG)
_MORE, _MORE_SHORTS = table(
    "cpu-bind= exact immediate=?:I jobid= kill-on-bad-exit=?:K label:l mpi= multi-prog preserve-env:E pty=? unbuffered:u"
)
SRUN = Grammar("srun", _LONGS | _MORE, _SHORTS | _MORE_SHORTS, first_word_ends=True, code=WRONG)


@dataclass(frozen=True, slots=True)
class Batch:
    """A submission. Sizes in bytes, durations in seconds; names of files are as written."""

    name: str = ""
    account: str = ""
    partition: str = ""
    comment: str = ""
    array: str = ""
    dependency: str = ""
    begin: datetime | None = None
    cpus_per_task: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    nodes: int = 1
    memory: int | None = None
    memory_per_cpu: int | None = None
    whole_memory: bool = False  # --mem=0: all that a machine has
    gpus: int = 0
    gpu: str = ""
    folder: str = ""
    output: str = ""
    error: str = ""
    input: str = ""
    append: bool | None = None
    export: str | None = None
    hold: bool = False
    licences: tuple[tuple[str, int], ...] = ()
    limit: int | None = None
    signal: str = ""
    signal_seconds: int = 60
    signal_batch: bool = False
    requeue: bool = True
    nice: int = 0
    kill_on_invalid_dependency: bool = False
    wrap: str | None = None
    parsable: bool = False
    quiet: bool = False
    verbose: bool = False
    wait: bool = False
    test_only: bool = False
    label: bool = False

    @property
    def cpus(self) -> int:
        """Processors in all."""
        return (self.cpus_per_task or 1) * (self.tasks or 1)


# ---- Readers: value -> fields of Batch; ValueError = "Invalid --OPTION specification"

Fields = dict[str, Any]


class NotNumeric(ValueError):
    """A count that is none: Slurm has a message of its own for it."""


class NoNodeCount(ValueError):
    """The same for --nodes."""


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise NotNumeric(text)
    return int(text)


def _nodes(text: str) -> int:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if not found:
        raise NoNodeCount(text)
    return int(found[1])


def _signal(text: str) -> Fields:
    found = re.fullmatch(r"(?:([RB]+):)?(\w+)(?:@(\d+))?", text)
    if not found:
        raise ValueError(text)
    flags, name, seconds = found.groups()
    return {"signal": read_signal(name), "signal_seconds": int(seconds or 60), "signal_batch": "B" in (flags or "")}


def _gpus(text: str) -> Fields:
    """`2`, `a100:2`, `a100`: of --gpus and its likes."""
    kind, _, count = text.rpartition(":")
    return {"gpus": int(count), "gpu": kind} if count.isdigit() else {"gpus": 1, "gpu": text}


def _gres(text: str) -> Fields:
    """`gpu:a100:2`, or nothing; other resources do not exist."""
    found = Fields()
    for part in filter(None, text.split(",")):
        name, _, rest = part.partition(":")
        if name not in ("gpu", "gres/gpu", "none"):
            raise Refused("sbatch: error: Invalid generic resource (gres) specification")
        found |= _gpus(rest or "1") if name != "none" else {"gpus": 0}
    return found


def _licences(text: str) -> tuple[tuple[str, int], ...]:
    found = list[tuple[str, int]]()
    for part in filter(None, text.split(",")):
        name, _, count = part.replace("=", ":").partition(":")
        if not name or (count and not count.isdigit()):
            raise Refused("sbatch: error: Batch job submission failed: Invalid license specification")
        found.append((name, int(count or 1)))
    return tuple(found)


def _nice(text: str | None) -> int:
    found = re.match(r"[+-]?\d+", text or "100")
    return int(found[0]) if found else 0


def _choice(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        found = [name for name in known if text and name.startswith(text.lower())]
        if not found:
            raise ValueError(text)
        return found[0]

    return read


_YES = _choice("yes", "no")
_MAIL = _choice("none", "begin", "end", "fail", "requeue", "all", "invalid_depend", "stage_out", "time_limit", "array_tasks")


def _mail(text: str) -> Fields:
    for part in text.split(","):
        _MAIL(part)
    return {}


def _keep(name: str) -> Callable[[str], Fields]:
    return lambda text: {name: text}


def _as(name: str, read: Callable[[str], object]) -> Callable[[str], Fields]:
    return lambda text: {name: read(text)}


def _flag(name: str, value: bool = True) -> Callable[[str], Fields]:
    return lambda _: {name: value}


READERS: dict[str, Callable[[str], Fields]] = {
    "account": _keep("account"),
    "array": lambda text: {"array": text.removesuffix("%0").removesuffix("%")},  # no limit, in Slurm's eyes
    "chdir": _keep("folder"),
    "comment": _keep("comment"),
    "cpus-per-task": _as("cpus_per_task", _count),
    "dependency": _keep("dependency"),
    "error": _keep("error"),
    "export": _keep("export"),
    "gpus": _gpus,
    "gpus-per-node": _gpus,
    "gpus-per-task": _gpus,
    "gres": _gres,
    "hold": _flag("hold"),
    "input": _keep("input"),
    "job-name": _keep("name"),
    "kill-on-invalid-dep": _as("kill_on_invalid_dependency", lambda text: _YES(text) == "yes"),
    "label": _flag("label"),
    "licenses": _as("licences", _licences),
    "mail-type": _mail,
    "mem": lambda text: {"memory": read_memory(text) or None, "whole_memory": not read_memory(text)},
    "mem-per-cpu": _as("memory_per_cpu", read_memory),
    "nice": _as("nice", _nice),
    "no-requeue": _flag("requeue", False),
    "nodes": _as("nodes", _nodes),
    "ntasks": _as("tasks", _count),
    "ntasks-per-node": lambda text: {"tasks": _count(text), "tasks_per_node": _count(text)},
    "open-mode": _as("append", lambda text: _choice("append", "truncate")(text) == "append"),
    "output": _keep("output"),
    "parsable": _flag("parsable"),
    "partition": _keep("partition"),
    "quiet": _flag("quiet"),
    "requeue": _flag("requeue"),
    "signal": _signal,
    "test-only": _flag("test_only"),
    "time": _as("limit", read_limit),
    "verbose": _flag("verbose"),
    "wait": _flag("wait"),
    "wrap": _keep("wrap"),
}
# Options that ask for what does not exist here, as a Slurm without it says so.
REFUSED = {
    "constraint": "Batch job submission failed: Invalid feature specification",
    "nodelist": "Batch job submission failed: Invalid node name specified",
    "nodefile": "Batch job submission failed: Invalid node name specified",
    "reservation": "Batch job submission failed: Requested reservation is invalid",
    "container": "--container is not known here: spotsurfer runs images by `image` of a job file",
    "export-file": "--export-file is not known here: use --export",
    "uid": "--uid only permitted by root user",
    "gid": "--gid only permitted by root user",
}
EXCLUSIVE = "--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive."
# Variables that stand for options; the command line wins over them, they win over the script.
VARIABLES = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_EXPORT": "export",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GRES": "gres",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_PARTITION": "partition",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_WAIT": "wait",
}


def read_batch(
    grammar: Grammar, words: Sequence[str], script: str | None, environment: Mapping[str, str], now: datetime
) -> tuple[Batch, list[str]]:
    """The submission and the words that are no options. `script`: its text, if options may stand in it. Raises Refused."""
    called = parse(grammar, words)
    inside = parse(replace(grammar, first_word_ends=False), [] if script is None else directives(script))
    if inside.words:
        raise Refused(f"sbatch: error: Invalid directive found in batch script: {inside.words[0]}", WRONG)
    variables = [(option, environment[name]) for name, option in VARIABLES.items() if name in environment]
    groups: list[Sequence[tuple[str, str | None]]] = [inside.options, variables, called.options]
    fields = Fields()
    for options in groups:
        fields |= _fields(grammar.program, options, now)
        names = {name for name, _ in options}
        if {"mem", "mem-per-cpu"} <= names:
            raise Refused(f"{grammar.program}: fatal: {EXCLUSIVE}")
        fields |= {other: None for name, other in _INSTEAD.items() if name in names}
    batch = Batch(**fields)
    _check_size(grammar.program, batch)
    return batch, called.words


_INSTEAD = {"mem": "memory_per_cpu", "mem-per-cpu": "memory"}  # one given later replaces the other


def _fields(program: str, options: Sequence[tuple[str, str | None]], now: datetime) -> Fields:
    found = Fields()
    for name, value in options:
        if name in REFUSED:
            raise Refused(f"{program}: error: {REFUSED[name]}")
        try:
            if name == "begin":
                found["begin"] = read_time(value or "", now)
            elif name == "priority":
                found |= {"nice": 0}
            elif name in READERS:
                found |= READERS[name](value if value is not None else ("" if name != "nice" else "100"))
        except NotNumeric:
            raise Refused(f'{program}: error: Invalid numeric value "{value}" for --{name}.') from None
        except NoNodeCount:
            raise Refused(f'{program}: error: "{value}" is not a valid node count', WRONG) from None
        except ValueError:
            early = f"Invalid time specification (pos=0): {value}\n" if name == "begin" else ""
            raise Refused(f"{early}{program}: error: Invalid --{name} specification", WRONG) from None
    return found


def _check_size(program: str, batch: Batch) -> None:
    failed = f"{program}: error: Batch job submission failed: "
    if batch.nodes > 1:
        raise Refused(failed + CONFIGURATION)
    if batch.array:
        try:
            read_tasks(batch.array.partition("%")[0])
        except ValueError:
            raise Refused(f"{failed}Invalid job array specification") from None


# ---- Directives of a script

MAGIC = "#SBATCH"


def directives(script: str) -> list[str]:
    """The words of all lines `#SBATCH …` before the first command."""
    words = list[str]()
    for line in script.splitlines():
        if line.startswith(MAGIC):
            lexer = shlex.shlex(line.removeprefix(MAGIC), posix=True)
            lexer.whitespace_split = True
            try:
                words += lexer
            except ValueError:
                raise Refused(f"sbatch: fatal: {line}: unmatched quote", WRONG) from None
        elif (stripped := line.strip()) and not stripped.startswith("#"):
            break
    return words


def check_script(text: bytes) -> str:
    """The script's text; raises Refused for what Slurm refuses to run."""
    said = ""
    if not text:
        said = "Batch script is empty!"
    elif not text.strip():
        said = "Batch script contains only whitespace!"
    elif not text.startswith(b"#!"):
        said = (
            "This does not look like a batch script.  The first\n"
            "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
            "sbatch: error: For instance: #!/bin/sh"
        )
    elif b"\0" in text:
        said = "The SLURM controller does not allow scripts that\nsbatch: error: contain a NULL character '\\0'."
    elif b"\r\n" in text:
        said = "Batch script contains DOS line breaks (\\r\\n)\nsbatch: error: instead of expected UNIX line breaks (\\n)."
    if said:
        raise Refused(f"sbatch: error: {said}")
    return text.decode(errors="surrogateescape")
