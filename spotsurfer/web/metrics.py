"""`/metrics`: what the controller counts, in the text format of Prometheus.

Names follow its conventions (https://prometheus.io/docs/practices/naming/): base units, and `_total` for what only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spotsurfer.model.figures import Figures, Labels
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.service import Info, Service
from spotsurfer.web import response_models as m
from spotsurfer.web.access import as_principal
from spotsurfer.web.access_routes import Who

router = APIRouter(responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}})
Values = (
    Mapping[Labels, float] | Mapping[str, float] | Mapping[tuple[str, str], float] | float | None
)  # None = there is nothing to tell
Read = Callable[[Figures, Info], Values]
POOL = ("provider", "market")


@dataclass(frozen=True, slots=True)
class Row:
    """A metric. `name` of a counter is written with `_total` behind it."""

    name: str
    help: str
    read: Read
    labels: tuple[str, ...] = ()
    counts: bool = False  # a counter, not a gauge


def _usd(micros: int | None) -> float | None:
    return None if micros is None else micros / 1e6


def _moments(kind: Kind) -> Read:
    return lambda f, _: f.moments.get(str(kind), 0)


METRICS = (
    Row("info", "The controller; the value is always 1.", lambda _, i: {(i.version, i.provider): 1.0}, ("version", "provider")),
    Row("jobs", "Jobs by state.", lambda f, _: f.jobs, ("state",)),
    Row("jobs_stuck", "Jobs that are alive and make no progress.", lambda f, _: f.stuck),
    Row(
        "queue_oldest_seconds",
        "How long the job that waits longest has waited for its first machine.",
        lambda f, _: (f.at - f.oldest_queued_at).total_seconds() if f.oldest_queued_at else 0.0,
    ),
    Row("machines", "Machines that are not yet confirmed gone.", lambda f, _: f.machines, (*POOL, "state")),
    Row("machines_limit", "The limit instances_max.", lambda _, i: i.instances_max),
    Row("gpus", "GPUs of the machines.", lambda _, i: i.gpus),
    Row("gpus_limit", "The limit gpus_max.", lambda _, i: i.gpus_max),
    Row("licences_limit", "Licences that jobs may have.", lambda f, _: {k: v[0] for k, v in f.licences.items()}, ("kind",)),
    Row("licences", "Licences that jobs have.", lambda f, _: {k: v[1] for k, v in f.licences.items()}, ("kind",)),
    Row("jobs_without_licence", "Jobs that wait for one.", lambda f, _: {k: v[2] for k, v in f.licences.items()}, ("kind",)),
    Row("machines_launched", "Machines that a cloud started.", lambda f, _: f.launched, POOL, counts=True),
    Row("machines_reclaimed", "Machines that a cloud took away.", lambda f, _: f.reclaimed, POOL, counts=True),
    Row("launches_refused", "Launches that a cloud refused.", lambda f, _: f.refused, POOL, counts=True),
    Row("notices", "Notices that a machine will be taken away.", _moments(Kind.NOTICE), counts=True),
    Row("moves", "Times that a job went on, on another machine.", _moments(Kind.MOVED), counts=True),
    Row("checkpoints", "Checkpoints that became durable.", _moments(Kind.SAVED), counts=True),
    Row("restores_failed", "Restores that failed.", lambda f, _: f.restores_failed, counts=True),
    Row("memory_near_misses", "Jobs frozen just before memory ended.", _moments(Kind.NEAR_MISS), counts=True),
    Row("memory_kills", "Jobs that the kernel killed for want of memory.", _moments(Kind.OUT_OF_MEMORY), counts=True),
    Row("alerts", "Timeline events that a person should look at.", _moments(Kind.ALERT), counts=True),
    Row("frozen_seconds", "How long saves and moves held jobs still.", lambda f, _: f.frozen_seconds, counts=True),
    Row("job_cpu_seconds", "Processor time of all jobs.", lambda f, _: f.cpu_seconds, counts=True),
    Row("checkpoint_stored_bytes", "Size of all checkpoints in the store.", lambda f, _: f.stored_bytes),
    Row("cost_usd", "Cost of everything so far, in US dollars.", lambda _, i: _usd(i.spent_usd_micros), counts=True),
    Row("budget_usd", "The limit budget_usd.", lambda _, i: _usd(i.budget_usd_micros)),
    Row("hourly_usd", "What the machines cost an hour now.", lambda _, i: _usd(i.hourly_usd_micros)),
    Row("hourly_limit_usd", "The limit hourly_max_usd.", lambda _, i: _usd(i.hourly_max_usd_micros)),
    Row(
        "last_tick_timestamp_seconds",
        "When the controller last looked at everything, in seconds since 1970.",
        lambda _, i: i.last_tick_at.timestamp() if i.last_tick_at else None,
    ),
    Row("tick_failing", "1 if the last pass over everything failed.", lambda _, i: float(bool(i.last_error))),
)


def families(figures: Figures, info: Info) -> Iterator[Metric]:
    """All metrics with their values; one without a value is left out."""
    for row in METRICS:
        values = row.read(figures, info)
        if values is None:
            continue
        make = CounterMetricFamily if row.counts else GaugeMetricFamily
        family = make(f"spotsurfer_{row.name}", row.help, labels=row.labels)
        for labels, value in values.items() if isinstance(values, Mapping) else (((), values),):
            family.add_metric((labels,) if isinstance(labels, str) else labels, value)
        yield family


class _Once(Collector):
    """What was read for one answer."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


@router.get("/metrics", tags=["metrics"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(request: Request, who: Who) -> Response:
    """What the controller counts, for Prometheus. For viewers and operators."""
    service: Service = as_principal(request.app.state.service, who, request.app.state.makers)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families(service.figures(), service.info())))
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
