"""`scancel`: ends jobs, or sends them a signal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from spotsurfer.model.errors import SpotsurferError
from spotsurfer.slurm.listing import fetch, places, wanted
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
    every = fetch(site, ended=bool(ids))
    rows = [r for r in wanted(every, ids) if _meant(r, state, asked)]
    ends = signal in ("", "KILL")
    if given.has("verbose"):
        for row in rows:
            sys.stderr.write(f"scancel: {'Terminating' if ends else f'Signal {signal} to'} job {row.slurm_id}\n")
            if not _takes(row, ends):
                sys.stderr.write(f"scancel: error: Kill job error on job id {row.slurm_id}: {OVER}\n")
    chosen = [r for r in rows if _takes(r, ends)]
    for place in places(chosen, every) if ends else [r.id for r in chosen]:
        _end(site, place, signal, ends)


def _takes(row: Row, ends: bool) -> bool:
    """Whether the job can be ended, or get a signal."""
    return row.state in STATES and (ends or row.state != "PENDING")


def _meant(row: Row, state: str | None, asked: dict[str, str | None]) -> bool:
    known = {"user": row.user, "name": row.name, "account": row.account, "partition": row.partition}
    names = all(value is None or known[key] in value.split(",") for key, value in asked.items())
    return names and (state is None or row.state == state)


def _end(site: Site, place: str, signal: str, ends: bool) -> None:
    try:
        if ends:
            site.client.post(job_path(place, "cancel"))
        else:
            site.client.post(job_path(place, "signal"), {"signal": signal})
    except SpotsurferError as error:
        raise Refused(f"scancel: error: Kill job error on job id {place}: {error}") from None


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
