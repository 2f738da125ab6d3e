"""`scancel`: ends jobs, or sends them a signal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from spotsurfer.model.errors import SpotsurferError
from spotsurfer.slurm.listing import fetch, wanted
from spotsurfer.slurm.options import Grammar, Refused, parse, table
from spotsurfer.slurm.rows import Row
from spotsurfer.slurm.site import Site, user_name
from spotsurfer.slurm.values import JobIds, read_ids, read_signal
from spotsurfer.web.client import job_path

_LONGS, _SHORTS = table(
    """account=:A batch:b clusters=:M ctld full:f help hurry:H interactive:i me name=:n jobname= nodelist=:w partition=:p qos=:q
    quiet:Q reservation=:R sibling= signal=:s state=:t usage user=:u verbose:v version:V wckey="""
)
GRAMMAR = Grammar("scancel", _LONGS, _SHORTS)
STATES = ("PENDING", "RUNNING", "SUSPENDED")
OVER = "Job/step already completing or completed"


def scancel(words: Sequence[str], site: Site) -> Iterator[str]:
    """Prints nothing on stdout but its version. Raises Refused."""
    given = parse(GRAMMAR, words)
    if given.has("version"):
        yield site.version
        return
    ids = _ids(given.words)
    state = _state(given.last("state"))
    signal = _signal(given.last("signal"))
    asked = {
        "user": user_name() if given.has("me") else given.last("user"),
        "name": given.last("name") or given.last("jobname"),
        "account": given.last("account"),
        "partition": given.last("partition"),
    }
    if not ids and not any(asked.values()) and state is None:
        raise Refused("scancel: error: No job identification provided")
    rows = [r for r in wanted(fetch(site, ended=bool(ids)), ids) if _meant(r, state, asked)]
    told = given.has("verbose")
    for row in rows:
        if told:
            what = "Terminating" if signal in ("", "KILL") else f"Signal {signal} to"
            sys.stderr.write(f"scancel: {what} job {row.slurm_id}\n")
        _end(site, row, signal, told)


def _meant(row: Row, state: str | None, asked: dict[str, str | None]) -> bool:
    known = {"user": row.user, "name": row.name, "account": row.account, "partition": row.partition}
    names = all(value is None or known[key] in value.split(",") for key, value in asked.items())
    return names and (state is None or row.state == state)


def _end(site: Site, row: Row, signal: str, told: bool) -> None:
    over = row.state not in STATES
    if over or (signal and row.state == "PENDING" and signal != "KILL"):
        if told:
            sys.stderr.write(f"scancel: error: Kill job error on job id {row.slurm_id}: {OVER}\n")
        return
    try:
        if signal in ("", "KILL"):
            site.client.post(job_path(row.id, "cancel"))
        else:
            site.client.post(job_path(row.id, "signal"), {"signal": signal})
    except SpotsurferError as error:
        raise Refused(f"scancel: error: Kill job error on job id {row.slurm_id}: {error}") from None


def _ids(words: Sequence[str]) -> list[JobIds]:
    found = list[JobIds]()
    for word in words:
        try:
            found += read_ids(word)
        except ValueError as error:
            raise Refused(f"scancel: error: Invalid job id {error}") from None
    return found


def _state(text: str | None) -> str | None:
    if text is None:
        return None
    short = {"PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED"}
    name = short.get(text.upper(), text.upper())
    if name not in STATES:
        raise Refused(f"Invalid job state specified: {text}\nValid job states are PENDING, RUNNING, and SUSPENDED")
    return name


def _signal(text: str | None) -> str:
    try:
        return read_signal(text) if text else ""
    except ValueError:
        raise Refused(f"Unknown job signal: {text}") from None
