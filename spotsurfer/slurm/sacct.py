"""`sacct`: what became of jobs. A job has a row of its own and, once it began, one of its script, `ID.batch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from spotsurfer.slurm.listing import Entry, as_json, entries, fetch, read_states, wanted
from spotsurfer.slurm.options import Given, Grammar, Refused, parse, table
from spotsurfer.slurm.rows import Row
from spotsurfer.slurm.site import Site, user_name
from spotsurfer.slurm.start_script import CLUSTER
from spotsurfer.slurm.values import JobIds, exit_words, read_ids, read_time, show_clock, show_memory, show_time

_LONGS, _SHORTS = table(
    """accounts=:A allclusters:L allusers:a array associations=:x batch-script:B brief:b clusters=:M completion:c delimiter=
    duplicates:D endtime=:E env-vars federation file=:f flags=:F format=:o gid=:g group= help:h helpformat:e jobs=:j json local
    long:l name= ncpus=:I nnodes=:i noconvert nodelist=:N noheader:n parsable:p parsable2:P partition=:r qos=:q reason=:R
    starttime=:S state=:s timelimit-max=:K timelimit-min=:k truncate:T uid=:u units= usage user= verbose:v version:V wckeys=:W
    whole-hetjob=? yaml allocations:X"""
)
GRAMMAR = Grammar("sacct", _LONGS, _SHORTS, try_help=False)
DEFAULT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
BRIEF = "jobid,state,exitcode"
LONG = "jobid,jobidraw,jobname,partition,maxrss,averss,ntasks,alloccpus,elapsed,state,exitcode,reqmem,reqtres,alloctres"


@dataclass(frozen=True)
class Line:
    """A row of the list: a job, or its step `batch`."""

    entry: Entry
    batch: bool = False

    @property
    def row(self) -> Row:
        """The job."""
        return self.entry.row

    @property
    def suffix(self) -> str:
        """Of ids."""
        return ".batch" if self.batch else ""

    @property
    def state(self) -> str:
        """As sacct knows it: what is on its way home still runs."""
        state = "RUNNING" if self.row.state == "COMPLETING" else self.row.state
        if self.batch and state in ("FAILED", "TIMEOUT", "CANCELLED"):
            code, _, signal = self.exit.partition(":")
            return "CANCELLED" if int(signal) else "FAILED" if int(code) else "COMPLETED"
        if self.batch:
            return state
        return f"CANCELLED by {self.row.uid}" if state == "CANCELLED" else state

    @property
    def exit(self) -> str:
        """`code:signal`; a script that a limit or its user ended died of SIGTERM."""
        if not self.batch or self.row.state not in ("TIMEOUT", "CANCELLED"):
            return self.row.exit
        code = self.row.brief["exit_code"]
        return "0:15" if code is None else exit_words(code)


def _job(show: Callable[[Entry], str]) -> Callable[[Line], str]:
    """Of the job alone; steps leave it empty."""
    return lambda line: "" if line.batch else show(line.entry)


def _step(text: str) -> Callable[[Line], str]:
    return lambda line: text if line.batch else ""


def _both(show: Callable[[Row], str]) -> Callable[[Line], str]:
    return lambda line: show(line.row)


def _allocated(line: Line) -> str:
    row = line.row
    if row.started is None and not row.ended:
        return ""
    billing = "" if line.batch else f"billing={row.brief['cpus']},"
    gpus = f"gres/gpu={row.brief['gpus']}," if row.brief["gpus"] else ""
    return f"{billing}cpu={row.brief['cpus']},{gpus}mem={show_memory(row.brief['memory_bytes'])},node=1"


def _requested(entry: Entry) -> str:
    b = entry.row.brief
    gpus = f"gres/gpu={b['gpus']}," if b["gpus"] else ""
    return f"billing={b['cpus']},cpu={b['cpus']},{gpus}mem={show_memory(b['memory_bytes'])},node=1"


def _end(row: Row) -> str:
    return show_time(row.ended_at)


Show = Callable[[Line], str]
# Name -> heading, width (< 0: to the left), text.
FIELDS: dict[str, tuple[str, int, Show]] = {
    name.lower(): (name, width, show)
    for name, width, show in (
        ("Account", 10, _both(lambda r: r.account)),
        ("AdminComment", 15, _job(lambda _: "")),
        ("AllocCPUS", 10, _both(lambda r: str(r.brief["cpus"]) if r.started or r.ended else "0")),
        ("AllocNodes", 10, _both(lambda r: "1" if r.started or r.ended else "0")),
        ("AllocTRES", 10, _allocated),
        ("AssocID", 7, _job(lambda _: "0")),
        ("AveCPU", 10, _step("")),
        ("AveRSS", 10, _step("")),
        ("AveVMSize", 10, _step("")),
        ("Cluster", 10, _both(lambda _: CLUSTER)),
        ("Comment", 14, _job(lambda e: str(e.details.get("comment", "")))),
        ("CPUTime", 10, _both(lambda r: show_clock(int(r.seconds) * r.brief["cpus"]))),
        ("CPUTimeRAW", 10, _both(lambda r: str(int(r.seconds) * r.brief["cpus"]))),
        ("DerivedExitCode", 15, _job(lambda _: "0:0")),
        ("Elapsed", 10, _both(lambda r: show_clock(r.seconds))),
        ("ElapsedRaw", 10, _both(lambda r: str(int(r.seconds)))),
        ("Eligible", 19, _both(lambda r: show_time(r.submitted))),
        ("End", 19, _both(_end)),
        ("ExitCode", 8, lambda line: line.exit),
        ("Flags", 19, _job(lambda _: "")),
        ("GID", 6, _job(lambda e: e.row.gid)),
        ("Group", 9, _job(lambda e: e.row.group)),
        ("JobID", -12, lambda line: line.entry.slurm_id + line.suffix),
        ("JobIDRaw", -12, lambda line: f"{line.entry.raw}{line.suffix}"),
        ("JobName", 10, lambda line: "batch" if line.batch else line.row.name),
        ("MaxRSS", 10, _step("")),
        ("MaxVMSize", 10, _step("")),
        ("NCPUS", 10, _both(lambda r: str(r.brief["cpus"]) if r.started or r.ended else "0")),
        ("NNodes", 8, _both(lambda _: "1")),
        ("NodeList", 15, _both(lambda r: r.node or "None assigned")),
        ("NTasks", 8, _step("1")),
        ("Partition", 10, _job(lambda e: e.row.partition)),
        ("Priority", 10, _job(lambda _: "1")),
        ("QOS", 10, _job(lambda _: "normal")),
        ("Reason", 22, _job(lambda e: e.row.reason if e.row.state == "PENDING" else "None")),
        ("ReqCPUS", 8, _both(lambda r: str(r.brief["cpus"]))),
        ("ReqMem", 10, _job(lambda e: show_memory(e.row.brief["memory_bytes"]))),
        ("ReqNodes", 8, _both(lambda _: "1")),
        ("ReqTRES", 10, _job(_requested)),
        ("Reserved", 10, _job(lambda e: show_clock(_waited(e.row)))),
        ("Start", 19, _both(lambda r: show_time(r.started or r.ended_at))),
        ("State", 10, lambda line: line.state),
        ("Submit", 19, lambda line: show_time(line.row.started if line.batch else line.row.submitted)),
        ("SubmitLine", 20, _job(lambda _: "")),
        ("Suspended", 10, _both(lambda _: "00:00:00")),
        ("SystemCPU", 10, _both(lambda _: "00:00:00")),
        ("Timelimit", 10, _job(lambda e: show_clock(e.row.limit))),
        ("TimelimitRaw", 10, _job(lambda e: "UNLIMITED" if e.row.limit is None else str(int(e.row.limit) // 60))),
        ("TotalCPU", 10, _both(lambda _: "00:00:00")),
        ("UID", 6, _job(lambda e: e.row.uid)),
        ("User", 9, _job(lambda e: e.row.user)),
        ("UserCPU", 10, _both(lambda _: "00:00:00")),
        ("WCKey", 10, _job(lambda _: "")),
        ("WorkDir", 20, _job(lambda e: str(e.row.brief["home"]))),
    )
}


def _waited(row: Row) -> float:
    return ((row.started or row.ended_at or row.now) - row.submitted).total_seconds()


# ---- The program


def sacct(words: Sequence[str], site: Site) -> Iterator[str]:
    """The lines that `sacct` prints. Raises Refused."""
    given = parse(GRAMMAR, words)
    if given.has("version"):
        yield site.version
        return
    if given.has("helpformat"):
        yield "\n".join(heading for heading, _, _ in FIELDS.values())
        return
    columns = _columns(given)
    keep = _filter(given, site)
    rows = [r for r in wanted(fetch(site, ended=True), keep.ids) if keep.takes(r)]
    found = entries(rows, site.client)
    if given.has("json"):
        yield as_json(found, site)
        return
    yield from _printed(columns, _lines(found, keep, steps=not given.has("allocations")), given)


def _lines(found: Sequence[Entry], keep: Filter, steps: bool) -> Iterator[Line]:
    for entry in found:
        whole = keep.whole(entry.row)
        if whole:
            yield Line(entry)
        if (steps or not whole) and entry.row.started is not None and not entry.tasks:
            yield Line(entry, batch=True)


def _printed(columns: Sequence[tuple[str, int, Show]], found: Iterator[Line], given: Given) -> Iterator[str]:
    plain = given.has("parsable", "parsable2")
    between, end = given.last("delimiter") or "|", given.has("parsable") and not given.has("parsable2")

    def line(texts: Sequence[str]) -> str:
        if plain:
            return between.join(texts) + (between if end else "")
        return "".join(f"{_cut(text, width)} " for text, (_, width, _) in zip(texts, columns, strict=True))

    if not given.has("noheader"):
        yield line([heading for heading, _, _ in columns])
        if not plain:
            yield "".join(f"{'-' * abs(width)} " for _, width, _ in columns)
    for one in found:
        yield line([show(one) for _, _, show in columns])


def _cut(text: str, width: int) -> str:
    """Within the width; a cut text ends with +."""
    size = abs(width)
    shown = text if len(text) <= size else f"{text[: size - 1]}+"
    return shown.ljust(size) if width < 0 else shown.rjust(size)


def _columns(given: Given) -> list[tuple[str, int, Show]]:
    formats = [value for name, value in given.options if name == "format" and value]
    text = ",".join(formats) or (BRIEF if given.has("brief") else LONG if given.has("long") else DEFAULT)
    columns = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, percent, size = part.partition("%")
        found = FIELDS.get(name.lower()) or next((f for known, f in FIELDS.items() if known.startswith(name.lower())), None)
        if found is None:
            raise Refused(f'sacct: error: Invalid field requested: "{name}"')
        heading, width, show = found
        columns.append((heading, int(size) if percent and size.lstrip("-").isdigit() else width, show))
    return columns


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are listed; None = any."""

    ids: Sequence[JobIds]
    states: frozenset[str] | None
    users: frozenset[str] | None
    names: frozenset[str] | None
    accounts: frozenset[str] | None
    partitions: frozenset[str] | None
    since: datetime | None
    until: datetime | None

    def takes(self, row: Row) -> bool:
        """Whether the job is wanted."""
        asked = ((self.users, row.user), (self.names, row.name), (self.accounts, row.account), (self.partitions, row.partition))
        if not all(known is None or value in known for known, value in asked):
            return False
        state = "RUNNING" if row.state == "COMPLETING" else row.state
        if self.states is not None and state not in self.states:
            return False
        if self.states is not None and row.ended_at is not None:  # the state of then, not of later
            return (self.since or row.ended_at) <= row.ended_at <= (self.until or row.ended_at)
        begun = self.until is None or row.submitted <= self.until
        return begun and (self.since is None or row.ended_at is None or row.ended_at >= self.since)

    def whole(self, row: Row) -> bool:
        """Whether the job's own row is wanted, and not its step alone."""
        steps = [one.step for one in self.ids if one.covers(row.number, row.task)]
        return not steps or "" in steps


def _filter(given: Given, site: Site) -> Filter:
    try:
        ids = read_ids(given.last("jobs") or "")
    except ValueError as error:
        raise Refused(f"sacct: fatal: Bad job/step specified: {error}") from None
    try:
        states = read_states(given.last("state") or "") or None
    except KeyError as error:
        raise Refused(f"sacct: fatal: unrecognized job state value '{error.args[0]}'") from None
    users = _split(given.last("uid") or given.last("user"))
    if users is None and not given.has("allusers") and not ids and user_name() != "root":
        users = frozenset({user_name()})
    since, until = _period(given, site, states is not None, bool(ids))
    return Filter(
        ids,
        states,
        users,
        _split(given.last("name")),
        _split(given.last("accounts")),
        _split(given.last("partition")),
        since,
        until,
    )


def _period(given: Given, site: Site, states: bool, ids: bool) -> tuple[datetime | None, datetime | None]:
    """From when on and until when jobs are looked for. States without an end are those of the beginning."""
    since, until = _time(given.last("starttime"), site), _time(given.last("endtime"), site)
    if since is None and not ids:
        since = site.now if states else site.now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    if since is not None and since > (until or site.now):
        later = show_time(until or site.now)
        raise Refused(f"sacct: error: Start time ({show_time(since)}) requested is after end time ({later}).")
    return since, since if states and until is None else until


def _time(text: str | None, site: Site) -> datetime | None:
    if text is None:
        return None
    try:
        return read_time(text, site.now.astimezone())
    except ValueError:
        raise Refused(f"Invalid time specification (pos=0): {text}") from None


def _split(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(part.strip() for part in text.split(",") if part.strip())
