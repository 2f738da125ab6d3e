"""Dry runs over HTTP: what would be launched for a job, and why nothing else."""

from __future__ import annotations

from fastapi import APIRouter

from spotsurfer.model.actions import Preview
from spotsurfer.model.market import Market, Offer
from spotsurfer.web import models as m
from spotsurfer.web.asked import PlanBody
from spotsurfer.web.routes import Controller

router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)


class OfferOut(m.Wire):
    """A machine that could be bought. Band and score are the cloud's advice, where it gives any."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market
    cpus: int
    memory_bytes: int
    gpus: int
    gpu: str
    gpu_memory_bytes: int
    usd_micros_per_hour: int
    list_usd_micros_per_hour: int
    interruption_band: int | None
    placement_score: int | None

    @classmethod
    def of(cls, o: Offer) -> OfferOut:
        """From the noun."""
        p = o.pool
        return cls(
            provider=p.provider,
            region=p.region,
            zone=p.zone,
            instance_type=p.instance_type,
            market=o.market,
            cpus=o.cpus,
            memory_bytes=o.memory_bytes,
            gpus=o.gpus.count,
            gpu=o.gpus.chip,
            gpu_memory_bytes=o.gpus.memory_bytes,
            usd_micros_per_hour=o.price_usd_micros_per_hour,
            list_usd_micros_per_hour=o.list_price_usd_micros_per_hour,
            interruption_band=o.interruption_band,
            placement_score=o.placement_score,
        )


class RejectedOut(m.Wire):
    """An offer that would not be taken."""

    offer: OfferOut
    why: str


class PlanOut(m.Wire):
    """`choices`, best first; the first would be ordered, unless there is an obstacle."""

    choices: list[OfferOut]
    rejected: list[RejectedOut]
    obstacle: str

    @classmethod
    def of(cls, found: Preview) -> PlanOut:
        """From the noun."""
        rejected = [RejectedOut(offer=OfferOut.of(o), why=why) for o, why in found.rejected]
        return cls(choices=[OfferOut.of(o) for o in found.choices], rejected=rejected, obstacle=found.obstacle)


@router.post("/plans", tags=["submit"])
def plan(body: PlanBody, service: Controller) -> PlanOut:
    """What would be launched for this job now. Nothing is kept of the question."""
    return PlanOut.of(service.preview(body.spec.to_spec()))
