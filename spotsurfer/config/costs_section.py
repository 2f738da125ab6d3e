"""[costs]: what an operator pays instead of list prices, and what else costs money."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.config.section import Section, UsdMicros
from spotsurfer.model.charges import ChargeKind, KeptImage
from spotsurfer.model.market import Market
from spotsurfer.model.prices import ALWAYS, PRICED_QUANTITY, Match, Override


def _moment(value: object) -> object:
    """A day is its midnight, and a time without a zone is one of UTC."""
    try:
        value = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"is {value!r}, expected a day like 2026-01-31") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


PRICED = [str(k) for k in PRICED_QUANTITY if k is not ChargeKind.MINIMUM]  # the minimum has the machine's price


def _priced(value: str) -> str:
    if value not in PRICED:
        raise ValueError(f"is {value!r}. {did_you_mean(value, PRICED)}")
    return value


Moment = Annotated[datetime, BeforeValidator(_moment)]
Wildcard = Annotated[str, Field(min_length=1)]


class OverrideSection(Section):
    """[[costs.overrides]]: another price for some things while it holds."""

    kind: Annotated[str, AfterValidator(_priced)] = str(ChargeKind.MACHINE)
    provider: Wildcard = "*"
    region: Wildcard = "*"
    type: Wildcard = "*"
    market: Market | None = None
    detail: str = ""
    begins: Moment = Field(ALWAYS, alias="from")
    until: Moment | None = None
    usd: UsdMicros | None = None
    percent: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_price(self) -> OverrideSection:
        if (self.usd is None) == (self.percent is None):
            raise ValueError("needs either usd or percent, the price instead or the part of it that is paid")
        if self.until is not None and self.until <= self.begins:
            raise ValueError(f"ends on {self.until:%Y-%m-%d}, which is not after from")
        return self

    def as_override(self) -> Override:
        """The same values, for the ledger."""
        of = Match(ChargeKind(self.kind), self.provider, self.region, self.type, self.market, self.detail)
        percent = None if self.percent is None else Fraction(str(self.percent))
        return Override(of, self.begins, self.until, self.usd, percent)


class ImageSection(Section):
    """[[costs.images]]: a machine image or snapshot that is kept."""

    name: str = Field(min_length=1)
    provider: str = Field(min_length=1)
    gib: float = Field(gt=0)
    begins: Moment = Field(alias="from")
    until: Moment | None = None
    region: str = ""

    def as_image(self) -> KeptImage:
        """The same values, for the ledger."""
        return KeptImage(self.name, self.provider, self.gib, self.begins, self.region, self.until)


class CostsSection(Section):
    """[costs]."""

    controller_usd_per_hour: UsdMicros = 0
    overrides: tuple[OverrideSection, ...] = ()
    images: tuple[ImageSection, ...] = ()
