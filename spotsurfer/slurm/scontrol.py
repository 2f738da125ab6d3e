"""`scontrol`: shows one job in full, holds, releases, suspends and resumes jobs, changes what can be changed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from spotsurfer.model.errors import SpotsurferError
from spotsurfer.model.job import PRIORITY_MAX
from spotsurfer.slurm.listing import Entry, entries, fetch, places, wanted
from spotsurfer.slurm.options import Grammar, Refused, parse, table
from spotsurfer.slurm.rows import ENDED, Row
from spotsurfer.slurm.site import Site
from spotsurfer.slurm.start_script import CLUSTER
from spotsurfer.slurm.values import UNKNOWN, JobIds, read_ids, show_clock, show_time
from spotsurfer.web.client import job_path

_LONGS, _SHORTS = table(
    """all:a details:d federation future:F help:h hide local cluster=:M clusters= oneliner:o quiet:Q sibling uid=:u usage
    verbose:v version:V json yaml"""
)
GRAMMAR = Grammar("scontrol", _LONGS, _SHORTS)
INVALID = "Invalid job id specified"
FINISHED = "Job has already finished"


def scontrol(words: Sequence[str], site: Site) -> Iterator[str]:
    """The lines that `scontrol` prints. Raises Refused."""
    given = parse(GRAMMAR, words)
    if given.has("version") or given.words[:1] == ["version"]:
        yield site.version
        return
    keyword, rest = (given.words or ["help"])[0].lower(), given.words[1:]
    command = COMMANDS.get(keyword)
    if command is None:
        raise Refused(f"invalid keyword: {keyword}")
    if not rest and keyword != "ping":
        raise Refused(f"too few arguments for {'update keyword' if keyword == 'update' else f'keyword:{keyword}'}")
    yield from command(rest, site, given.has("oneliner"))


def _ping(_words: Sequence[str], site: Site, _one_line: bool) -> Iterator[str]:
    try:
        site.client.get("/v1/info")
        state = "UP"
    except SpotsurferError:
        state = "DOWN"
    yield f"Slurmctld(primary) at {os.uname().nodename} is {state}"


# ---- show


def _show(words: Sequence[str], site: Site, one_line: bool) -> Iterator[str]:
    what, names = words[0].lower(), [word for word in words[1:] if not word.startswith("-")]
    if what in ("job", "jobs", "jobid"):
        yield from _show_jobs(names, site, one_line)
    elif what in ("hostnames", "hostname"):
        yield from hosts(names[0] if names else "")
    elif what in ("partition", "partitions", "partitionname"):
        yield from _show_partitions(names, site)
    elif what == "config":
        yield from _show_config(site)
    else:
        raise Refused(f"invalid entity:{words[0]} for keyword:show ")


def _show_jobs(names: Sequence[str], site: Site, one_line: bool) -> Iterator[str]:
    ids = [one for name in names for one in _read(name)] if names else []
    rows = wanted(fetch(site, ended=True), ids)
    for one in ids:
        if not any(r.number == one.number for r in rows):
            every = fetch(site, ended=True)
            if one.tasks is not None and any(r.number == one.number for r in every):
                raise Refused(f"Job {names[0]} not found")
            raise Refused(f"slurm_load_jobs error: {INVALID}")
    if not rows:
        yield "No jobs in the system"
    for entry in entries(rows, site.client):
        text = job_text(entry)
        yield " ".join(line.strip() for line in text.splitlines()) + " " if one_line else f"{text}\n"


def job_text(entry: Entry) -> str:
    """All that is known of a job, as `scontrol show job` prints it."""
    row, b, spec = entry.row, entry.row.brief, entry.job["spec"]
    started, ended = row.started, row.ended_at
    end = ended or (started + timedelta(seconds=row.limit) if started and row.limit is not None else None)
    array = ""
    if row.task is not None:
        throttle = f" ArrayTaskThrottle={b['array_limit']}" if b["array_limit"] else ""
        array = f"ArrayJobId={row.number} ArrayTaskId={entry.tasks_words}{throttle} "
    priority = 0 if row.reason == "JobHeldUser" else 1
    memory = row.resources.split(",")[1].removeprefix("mem=")
    after = ",".join(f"{word}(unfulfilled)" for word in b["after"]) or "(null)"
    eligible = UNKNOWN if row.reason == "JobHeldUser" else show_time(row.submitted)
    batch_host = [f"   BatchHost={row.node}"] if row.node else []
    comment = [f"   Comment={entry.details['comment']} "] if entry.details.get("comment") else []
    return "\n".join(
        [
            f"JobId={entry.raw} {array}JobName={row.name}",
            f"   UserId={row.user}({row.uid}) GroupId={row.group}({row.gid}) MCS_label=N/A",
            f"   Priority={priority} Nice={-spec['priority']} Account={row.account} QOS=normal",
            f"   JobState={row.state} Reason={row.reason} Dependency={after}",
            f"   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={row.exit}",
            f"   RunTime={show_clock(row.seconds)} TimeLimit={show_clock(row.limit)} TimeMin=N/A",
            f"   SubmitTime={show_time(row.submitted)} EligibleTime={eligible}",
            f"   AccrueTime={eligible}",
            f"   StartTime={show_time(started or ended)} EndTime={show_time(end)} Deadline=N/A",
            f"   SuspendTime=None SecsPreSuspend=0 LastSchedEval={show_time(started or row.submitted)} Scheduler=Main",
            f"   Partition={row.partition} AllocNode:Sid={os.uname().nodename}:0",
            "   ReqNodeList=(null) ExcNodeList=(null)",
            f"   NodeList={row.node}",
            *batch_host,
            f"   NumNodes=1 NumCPUs={b['cpus']} NumTasks=1 CPUs/Task={b['cpus']} ReqB:S:C:T=0:0:*:*",
            f"   TRES={row.resources}",
            "   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
            f"   MinCPUsNode={b['cpus']} MinMemoryNode={memory} MinTmpDiskNode=0",
            "   Features=(null) DelayBoot=00:00:00",
            f"   OverSubscribe=OK Contiguous=0 Licenses={entry.details.get('licences', '(null)')} Network=(null)",
            f"   Command={entry.details.get('command', '(null)')}",
            f"   WorkDir={entry.details.get('folder', b['home'])}",
            *comment,
            f"   StdErr={entry.error}",
            f"   StdIn={entry.details.get('input') or '/dev/null'}",
            f"   StdOut={entry.output}",
            "   Power=",
            "   ",
        ]
    )


def _show_partitions(names: Sequence[str], site: Site) -> Iterator[str]:
    for name in names:
        if name not in site.partitions:
            raise Refused(f"Partition {name} not found")
    info = site.client.get("/v1/info")
    for name in names or site.partitions:
        yield "\n".join(
            [
                f"PartitionName={name}",
                "   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
                f"   AllocNodes=ALL Default={'YES' if name == site.partition else 'NO'} QoS=N/A",
                "   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
                "   MaxNodes=1 MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
                f"   Nodes={info['provider']}",
                "   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO",
                "   OverTimeLimit=NONE PreemptMode=OFF",
                f"   State=UP TotalNodes={info['instances_max']} SelectTypeParameters=NONE",
                "   JobDefaults=(null)",
                "   DefMemPerNode=1024 MaxMemPerNode=UNLIMITED",
                "",
            ]
        )


def _show_config(site: Site) -> Iterator[str]:
    known = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "ClusterName": CLUSTER,
        "DefMemPerNode": "1024",
        "MaxArraySize": "10000000",
        "MinJobAge": "300 sec",
        "SLURM_VERSION": site.version.rpartition(" ")[2],
    }
    yield f"Configuration data as of {show_time(site.now)}"
    yield from (f"{key:23} = {value}" for key, value in known.items())


def hosts(text: str) -> Iterator[str]:
    """The names that a list like `n[1-3],m5` stands for."""
    for part in re.split(r",(?![^\[]*\])", text):
        found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if not found:
            yield part
            continue
        before, inside, after = found.groups()
        for span in inside.split(","):
            first, dash, last = span.partition("-")
            numbers = range(int(first), int(last) + 1) if dash else range(int(first), int(first) + 1)
            yield from (f"{before}{str(n).zfill(len(first))}{after}" for n in numbers)


# ---- hold, release, suspend, resume, requeue


def _read(text: str) -> list[JobIds]:
    try:
        return read_ids(text)
    except ValueError:
        raise Refused(f"scontrol_print_job error: {INVALID}") from None


def _changes(verb: str) -> Callable[[Sequence[str], Site, bool], Iterator[str]]:
    def run(words: Sequence[str], site: Site, _one_line: bool) -> Iterator[str]:
        said = list[str]()
        for word in re.split(r",(?![^\[]*\])", ",".join(words)):
            if why := _change(verb, word, site):
                said.append(f"{why} for job {word}")
        if said:
            tail = [f"slurm_suspend error: {said[-1].rpartition(' for job ')[0]}"] if verb in ("hold", "release") else []
            raise Refused("\n".join(said + tail))
        yield from ()

    return run


def _change(verb: str, word: str, site: Site) -> str:
    """The reason why it can't be done, or ""."""
    every = fetch(site, ended=True)
    rows = wanted(every, _read(word))
    left = [r for r in rows if r.brief["state"] not in ENDED]
    if not left:
        return FINISHED if rows else INVALID
    states = {r.state for r in left}
    if verb == "requeue":
        return "Job is pending execution" if states == {"PENDING"} else "Requested operation is presently disabled"
    if verb == "suspend" and states == {"PENDING"}:
        return "Job is pending execution"
    begun = [r for r in left if (r.state == "PENDING") is (verb == "hold")] if verb in ("hold", "suspend") else left
    try:
        for place in places([r for r in begun if verb in ("hold", "suspend") or _is_held(r)], every):
            site.client.post(job_path(place, "hold" if verb in ("hold", "suspend") else "resume"))
    except SpotsurferError as error:
        return str(error)
    return ""


def _is_held(row: Row) -> bool:
    return row.state == "SUSPENDED" or row.reason == "JobHeldUser"


# ---- update


def _update(words: Sequence[str], site: Site, _one_line: bool) -> Iterator[str]:
    pairs = [word.partition("=")[::2] for word in words]
    ids = [value for key, value in pairs if key.lower() in ("jobid", "job")]
    if not ids:
        entities = '"NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"'
        raise Refused(f"No valid entity in update command\nInput line must include {entities}")
    rows = wanted(fetch(site, ended=True), _read(ids[0]))
    if not rows:
        raise Refused(f"{INVALID} for job {ids[0]}")
    left = [r for r in rows if r.brief["state"] not in ENDED]
    if not left:
        raise Refused(f"{FINISHED} for job {ids[0]}")
    for key, value in pairs:
        if key.lower() in ("jobid", "job"):
            continue
        if key.lower() != "nice" or not re.fullmatch(r"-?\d+", value):
            raise Refused(f"Update of this parameter is not supported: {key}={value}\nRequest aborted")
        for row in left:
            priority = max(-PRIORITY_MAX, min(PRIORITY_MAX, -int(value)))
            site.client.put(job_path(row.id, "priority"), {"priority": priority})
    yield from ()


COMMANDS: dict[str, Callable[[Sequence[str], Site, bool], Iterator[str]]] = {
    "hold": _changes("hold"),
    "holdu": _changes("hold"),
    "uhold": _changes("hold"),
    "ping": _ping,
    "release": _changes("release"),
    "requeue": _changes("requeue"),
    "resume": _changes("resume"),
    "show": _show,
    "suspend": _changes("suspend"),
    "update": _update,
}
