"""What the settings of all cloud providers share: a table of the configuration becomes a model, and errors become sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.money import from_usd
from spotsurfer.model.prices import EgressPrices

M = TypeVar("M", bound=BaseModel)


def like(pattern: str, example: str) -> AfterValidator:
    """A text of this form. The example is for the error message."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"is {value!r}, expected something like {example}")
        return value

    return AfterValidator(check)


class TransferPrices(BaseModel):
    """For each GiB that leaves a region, USD; None = by the catalogue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    region: Decimal | None = Field(None, ge=0)
    internet: Decimal | None = Field(None, ge=0)

    def over(self, listed: EgressPrices) -> EgressPrices:
        """These, and the listed ones where there is none."""
        own = listed.region_usd_micros if self.region is None else from_usd(self.region)
        out = listed.internet_usd_micros if self.internet is None else from_usd(self.internet)
        return EgressPrices(own, out)


Address = Annotated[str, like(r"https?://.+", "https://service.example/path")]


def read(model: type[M], table: Mapping[str, object], name: str) -> M:
    """Settings from the table with this name. Raises ConfigError: one sentence with the key and the expected value."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as e:
        first, *others = e.errors()
        key = ".".join(str(x) for x in first["loc"])
        more = f" ({len(others)} more after this.)" if others else ""
        sentence = f"[{name}] {key}{' ' if key else ''}{_what(first, key, model)}"
        raise ConfigError(f"{sentence}{'' if sentence.endswith('?') else '.'}{more}") from None


def _what(first: Any, key: str, model: type[BaseModel]) -> str:
    if first["type"] == "extra_forbidden":
        return f"is an unknown key. {did_you_mean(key, model.model_fields)}".rstrip(".")
    if first["type"] == "missing":
        return "is missing: `terraform output -raw config` writes it, or see config.example.toml"
    cause = first.get("ctx", {}).get("error")
    return str(cause) if cause else f"is {first['input']!r}: {first['msg'].lower()}"
