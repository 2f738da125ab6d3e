"""What it costs a job to go to a place beside the machine's price: transfer, and the risk that the processor there is no good.

What is paid once is spread over the hours for which a machine is expected to be kept, so that it compares with prices by the
hour.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from spotsurfer.model.market import Offer
from spotsurfer.model.money import usd
from spotsurfer.model.prices import Place, Tariff
from spotsurfer.model.snapshot import JobSeen, Snapshot

STAY_HOURS = 4.0  # of a machine: most spot machines live longer, and many jobs end sooner
REFUSED_HOURS = 0.1  # of a machine that boots, compares its facts with the image's, and refuses
CLASS = re.compile(r"\(([0-9a-f]{8})\)$")  # in an agent's words for a processor: a hash of all facts that are compared


def with_relocation(seen: JobSeen, offers: Sequence[Offer], snapshot: Snapshot) -> Sequence[Offer]:
    """The offers, each with what being there costs this job beside the machine; the same list if that is nothing anywhere."""
    if not seen.image_bytes:
        return offers
    places = {(o.pool.provider, o.pool.region) for o in offers}
    hourly = {place: _transfer(seen, Place(*place), snapshot.tariff) for place in places}
    alike = {kind for kind, processor in snapshot.processors.items() if _class(processor) == _class(seen.image_processor) != ""}
    if not any(hourly.values()) and not alike:
        return offers
    return [
        _relocated(o, hourly[o.pool.provider, o.pool.region], (o.pool.provider, o.pool.instance_type) in alike) for o in offers
    ]


def _relocated(offer: Offer, transfer: int, is_alike: bool) -> Offer:
    """The very same offer where nothing changes: there are thousands, of which a few are near or alike."""
    micros = transfer - (_risk(offer) if is_alike else 0)
    return replace(offer, relocation_usd_micros_per_hour=micros) if micros else offer


def cheaper_but_far(ranked: Sequence[Offer]) -> list[tuple[Offer, str]]:
    """The cheapest offer of the first one's market, with the reason, if only what being there costs put it behind that one."""
    far = [o for o in ranked if o.relocation_usd_micros_per_hour > 0 and o.market is ranked[0].market]
    best = min(far, key=lambda o: (o.price_usd_micros_per_hour, o.pool), default=None)
    if best is None or best.price_usd_micros_per_hour >= ranked[0].price_usd_micros_per_hour:
        return []
    more = usd(best.relocation_usd_micros_per_hour)
    return [
        (best, f"its price is lower, but being there costs the job {more} USD an hour more: its image and its saves travel")
    ]


def _transfer(seen: JobSeen, there: Place, tariff: Tariff) -> int:
    """The image once, and what the job sends each hour."""
    return tariff.usd_micros(there, seen.image_bytes / STAY_HOURS, seen.sent_bytes_per_hour)


def _risk(offer: Offer) -> int:
    """What a machine that refuses is expected to cost, as likely as not where the processor is another one, or unknown.

    Those with the same facts as the image's are without that risk: they count as cheaper by it.
    """
    return int(offer.price_usd_micros_per_hour * REFUSED_HOURS / 2 / STAY_HOURS)


def _class(processor: str) -> str:
    found = CLASS.search(processor)
    return found[1] if found is not None else ""
