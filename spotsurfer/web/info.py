"""The controller itself on the wire: who it is, what its operator's limits are, and how much of them is in use."""

from __future__ import annotations

from datetime import datetime

from spotsurfer.ports.service import Info
from spotsurfer.web.models import Wire


class InfoOut(Wire):
    """The controller itself. A limit that there is not is null; of `instance_types` an empty list means all."""

    version: str
    family: str
    generation: int
    provider: str
    store_url: str
    instances: int
    instances_max: int
    gpus: int
    gpus_max: int | None
    hourly_usd_micros: int
    hourly_max_usd_micros: int | None
    spent_usd_micros: int
    budget_usd_micros: int | None
    price_max_usd_micros: int | None
    instance_types: list[str]
    ageing_seconds: float
    stay_seconds: float
    front_address: str
    front_ports: int
    front_ports_max: int
    last_tick_at: datetime | None
    last_error: str

    @classmethod
    def of(cls, info: Info) -> InfoOut:
        """From the noun."""
        return cls.model_validate(info)
