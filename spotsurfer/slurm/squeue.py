"""`squeue`: which jobs wait and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from spotsurfer.slurm.columns import Column, lines, long_format, short_format
from spotsurfer.slurm.listing import Entry, as_json, entries, fetch, read_states, wanted
from spotsurfer.slurm.options import Given, Grammar, Refused, parse, table
from spotsurfer.slurm.rows import IN_QUEUE, SHORT, Row
from spotsurfer.slurm.site import Site, user_name
from spotsurfer.slurm.values import JobIds, read_ids, show_duration, show_memory, show_time

_LONGS, _SHORTS = table(
    """account=:A all:a array:r array-unique clusters=:M federation Format=:O format=:o help hide iterate=:i job=?:j jobs=?
    json licenses=:L local long:l me name=:n noconvert nodelist=:w nodes=:w noheader:h partition=:p qos=:q reservation=:R
    sibling sort=:S start state=:t states= step=?:s steps=? usage user=:u users= verbose:v version:V yaml"""
)
GRAMMAR = Grammar("squeue", _LONGS, _SHORTS)
PENDING = frozenset({"PENDING"})
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"


WITH_REASON = frozenset({"PENDING", "FAILED", "TIMEOUT", "OUT_OF_MEMORY"})


def _left(entry: Entry) -> str:
    limit = entry.row.limit
    return show_duration(None if limit is None else limit - entry.row.seconds)


def _end(entry: Entry) -> str:
    row = entry.row
    if row.ended_at is None and row.started is not None and row.limit is not None:
        return show_time(row.started + timedelta(seconds=row.limit))
    return show_time(row.ended_at, "N/A")


def _where(entry: Entry) -> str:
    row = entry.row
    return f"({row.reason})" if row.state in WITH_REASON else row.node


def _dependency(entry: Entry) -> str:
    found = [f"{word}(unfulfilled)" for word in entry.row.brief["after"]]
    return ",".join(found) or "(null)"


def _same(text: str) -> Callable[[Entry], str]:
    return lambda _: text


def _detail(name: str) -> Callable[[Entry], str]:
    return lambda entry: str(entry.details.get(name) or "(null)")


Field = tuple[str, Callable[[Entry], str]]
JOB_ID: Field = ("JOBID", lambda e: e.slurm_id)
ARRAY_ID: Field = ("ARRAY_JOB_ID", lambda e: str(e.row.number))
TASK: Field = ("ARRAY_TASK_ID", lambda e: e.tasks_words)
NAME: Field = ("NAME", lambda e: e.row.name)
SHORT_STATE: Field = ("ST", lambda e: e.row.short)
STATE: Field = ("STATE", lambda e: e.row.state)
REASON: Field = ("REASON", lambda e: e.row.reason)
WHERE: Field = ("NODELIST(REASON)", _where)
NODE: Field = ("NODELIST", lambda e: e.row.node)
LIMIT: Field = ("TIME_LIMIT", lambda e: show_duration(e.row.limit))
TIME: Field = ("TIME", lambda e: show_duration(e.row.seconds))
LEFT: Field = ("TIME_LEFT", _left)
SUBMITTED: Field = ("SUBMIT_TIME", lambda e: show_time(e.row.submitted))
STARTED: Field = ("START_TIME", lambda e: show_time(e.row.started, "N/A"))
END: Field = ("END_TIME", _end)
PARTITION: Field = ("PARTITION", lambda e: e.row.partition)
ACCOUNT: Field = ("ACCOUNT", lambda e: e.row.account)
USER: Field = ("USER", lambda e: e.row.user)
UID: Field = ("UID", lambda e: e.row.uid)
CPUS: Field = ("CPUS", lambda e: str(e.row.brief["cpus"]))
MEMORY: Field = ("MIN_MEMORY", lambda e: show_memory(e.row.brief["memory_bytes"]))
NODES: Field = ("NODES", _same("1"))
NICE: Field = ("NICE", _same("0"))
PRIORITY: Field = ("PRIORITY", _same("1"))
DEPENDENCY: Field = ("DEPENDENCY", _dependency)
FOLDER: Field = ("WORK_DIR", lambda e: str(e.row.brief["home"]))
COMMAND: Field = ("COMMAND", _detail("command"))
COMMENT: Field = ("COMMENT", _detail("comment"))
LICENCES: Field = ("LICENSES", _detail("licences"))
QOS: Field = ("QOS", _same("normal"))
GPUS: Field = ("TRES_PER_NODE", lambda e: f"gres:gpu:{e.row.brief['gpus']}" if e.row.brief["gpus"] else "N/A")
NOTHING: Field = ("RESERVATION", _same("(null)"))

LETTERS: dict[str, Field] = {
    "a": ACCOUNT,
    "A": ("JOBID", lambda e: str(e.raw)),
    "b": GPUS,
    "B": ("EXEC_HOST", lambda e: e.row.node or "n/a"),
    "c": ("MIN_CPUS", CPUS[1]),
    "C": CPUS,
    "d": ("MIN_TMP_DISK", _same("0")),
    "D": NODES,
    "e": END,
    "E": DEPENDENCY,
    "f": ("FEATURES", _same("(null)")),
    "F": ARRAY_ID,
    "g": ("GROUP", lambda e: e.row.group),
    "G": ("GROUP", lambda e: e.row.gid),
    "h": ("OVER_SUBSCRIBE", _same("OK")),
    "H": ("SOCKETS_PER_NODE", _same("*")),
    "i": JOB_ID,
    "I": ("CORES_PER_SOCKET", _same("*")),
    "j": NAME,
    "J": ("THREADS_PER_CORE", _same("*")),
    "k": COMMENT,
    "K": TASK,
    "l": LIMIT,
    "L": LEFT,
    "m": MEMORY,
    "M": TIME,
    "n": ("REQ_NODES", _same("")),
    "N": NODE,
    "o": COMMAND,
    "O": ("CONTIGUOUS", _same("0")),
    "p": ("PRIORITY", _same("0.00000000023283")),
    "P": PARTITION,
    "q": QOS,
    "Q": PRIORITY,
    "r": REASON,
    "R": WHERE,
    "s": ("", _same("")),
    "S": STARTED,
    "t": SHORT_STATE,
    "T": STATE,
    "u": USER,
    "U": UID,
    "v": NOTHING,
    "V": SUBMITTED,
    "w": ("WCKEY", _same("(null)")),
    "W": LICENCES,
    "x": ("EXC_NODES", _same("")),
    "X": ("CORE_SPEC", _same("N/A")),
    "y": NICE,
    "Y": ("SCHEDNODES", _same("(null)")),
    "z": ("S:C:T", _same("*:*:*")),
    "Z": FOLDER,
}
NAMES: dict[str, Field] = {
    "account": ACCOUNT,
    "arrayjobid": ARRAY_ID,
    "arraytaskid": TASK,
    "command": COMMAND,
    "comment": COMMENT,
    "cpus-per-task": ("CPUS_PER_TASK", CPUS[1]),
    "dependency": DEPENDENCY,
    "endtime": END,
    "exit_code": ("EXIT_CODE", lambda e: e.row.exit.partition(":")[0]),
    "groupid": LETTERS["G"],
    "groupname": LETTERS["g"],
    "jobarrayid": JOB_ID,
    "jobid": LETTERS["A"],
    "licenses": LICENCES,
    "mincpus": LETTERS["c"],
    "minmemory": MEMORY,
    "name": NAME,
    "nice": NICE,
    "nodelist": NODE,
    "numcpus": CPUS,
    "numnodes": NODES,
    "numtasks": ("TASKS", _same("1")),
    "partition": PARTITION,
    "priority": LETTERS["p"],
    "prioritylong": PRIORITY,
    "qos": QOS,
    "reason": REASON,
    "reasonlist": WHERE,
    "starttime": STARTED,
    "state": STATE,
    "statecompact": SHORT_STATE,
    "stderr": ("STDERR", lambda e: e.error),
    "stdout": ("STDOUT", lambda e: e.output),
    "submittime": SUBMITTED,
    "timeleft": LEFT,
    "timelimit": LIMIT,
    "timeused": TIME,
    "tres-alloc": ("TRES_ALLOC", lambda e: e.row.resources),
    "tres-per-node": GPUS,
    "userid": UID,
    "username": USER,
    "workdir": FOLDER,
}


USAGE = """Usage: squeue [-A account] [--clusters names] [-i seconds] [--job jobid]
              [-n name] [-o format] [-p partitions] [--qos qos]
              [--reservation reservation] [--sort fields] [--start]
              [--step step_id] [-t states] [-u user_name] [--usage]
              [-L licenses] [-w nodes] [--federation] [--local] [--sibling]
\t      [-ahjlrsv]"""
ALIASES = {"jobs": "job", "users": "user", "state": "states", "step": "steps"}


def squeue(words: Sequence[str], site: Site) -> Iterator[str]:
    """The lines that `squeue` prints. Raises Refused."""
    given = parse(GRAMMAR, words)
    if given.has("version"):
        yield site.version
        return
    keep = _filter(given)
    prefix, columns = _columns(given)
    if given.has("long"):
        yield site.now.astimezone().strftime("%a %b %d %H:%M:%S %Y")
    each = keep.ended or given.has("array") or any(one.tasks is not None for one in keep.ids)
    rows = fetch(site, keep.ended, folded=not each)
    if len(keep.ids) == 1 and not wanted(rows, keep.ids) and not wanted(fetch(site, ended=True), keep.ids):
        raise Refused("slurm_load_jobs error: Invalid job id specified")
    found = entries([r for r in wanted(rows, keep.ids) if keep.takes(r)], site.client, given.has("array"))
    if given.has("json"):
        yield as_json(found, site)
        return
    if not given.has("noheader"):
        yield from lines(columns, (), prefix)
    order = given.last("sort") or ("S,i" if given.has("start") else "P,t,-p")
    yield from lines(columns, _sorted(found, order), prefix, heads=False)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are listed; None = any."""

    ids: Sequence[JobIds]
    states: frozenset[str]
    users: frozenset[str] | None = None
    names: frozenset[str] | None = None
    accounts: frozenset[str] | None = None
    partitions: frozenset[str] | None = None

    @property
    def ended(self) -> bool:
        """Whether ended jobs may be among them."""
        return bool(self.states - IN_QUEUE)

    def takes(self, row: Row) -> bool:
        """Whether the job is wanted."""
        asked = (
            (self.users, row.user),
            (self.names, row.name),
            (self.accounts, row.account),
            (self.partitions, row.partition),
        )
        return row.state in self.states and all(known is None or value in known for known, value in asked)


def _filter(given: Given) -> Filter:
    spare = iter(given.words)
    values: dict[str, str] = {}
    for name, value in given.options:
        values[ALIASES.get(name, name)] = value if value is not None else next(spare, "") if "job" in name else ""
    for word in spare:
        raise Refused(f"squeue: error: Unrecognized option: {word}\n{USAGE}")
    try:
        ids = read_ids(values.get("job", ""))
    except ValueError as error:
        raise Refused(f"squeue: error: Invalid job id: {error}") from None
    try:
        states = read_states(values["states"]) if "states" in values else PENDING if "start" in values else IN_QUEUE
    except KeyError as error:
        text = f"squeue: error: Invalid job state specified: {error.args[0]}\n"
        raise Refused(f"{text}squeue: error: Valid job states include: {','.join(SHORT)}\n") from None
    users = frozenset({user_name()}) if "me" in values else _split(values.get("user"))
    return Filter(
        ids, states, users, _split(values.get("name")), _split(values.get("account")), _split(values.get("partition"))
    )


def _split(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(part.strip() for part in text.split(",") if part.strip())


def _columns(given: Given) -> tuple[str, Sequence[Column[Entry]]]:
    long = given.last("Format")
    try:
        if long is not None:
            return "", long_format(long, NAMES)
        usual = START if given.has("start") else LONG if given.has("long") else DEFAULT
        return short_format(given.last("format") or usual, LETTERS)
    except KeyError as error:
        raise Refused(f"squeue: error: Invalid job format specification: {error.args[0]}\n") from None


# ---- Order: first by partition, then waiting ones before running ones, those that are held last, the newest first

ORDER = ("PENDING", "RUNNING", "SUSPENDED")
KEYS: dict[str, Callable[[Entry], tuple[object, ...]]] = {
    "i": lambda e: (e.row.number, e.row.task or 0),
    "j": lambda e: (e.row.name,),
    "M": lambda e: (e.row.seconds,),
    "p": lambda e: (e.row.reason != "JobHeldUser",),
    "P": lambda e: (e.row.partition,),
    "S": lambda e: (show_time(e.row.started, "~"),),
    "t": lambda e: (ORDER.index(e.row.state) if e.row.state in ORDER else len(ORDER), e.row.state),
    "u": lambda e: (e.row.user,),
    "V": lambda e: (e.row.submitted,),
}


def _sorted(found: Sequence[Entry], order: str) -> Sequence[Entry]:
    ordered = sorted(found, key=lambda e: (-e.row.number, e.row.task or 0))
    for part in reversed(order.split(",")):
        letter = part.lstrip("+-")
        if letter not in LETTERS or letter in "xXYwWZ":
            raise Refused(f"squeue: error: Invalid sort specification: {part}")
        if letter in KEYS:
            ordered.sort(key=KEYS[letter], reverse=part.startswith("-"))
    return ordered
