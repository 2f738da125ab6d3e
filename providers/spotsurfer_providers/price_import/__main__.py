"""Makes a table of today's prices from Google's billing catalogue, for `prices` of `[provider.gcp]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from google.cloud import compute_v1
from google.protobuf.json_format import ParseError
from spotsurfer_wire import clock

from spotsurfer.model.errors import ConfigError, ProviderError, SpotsurferError, UsageError
from spotsurfer.model.money import usd
from spotsurfer_providers.catalog import google_price_table
from spotsurfer_providers.catalog.google_price_table import PriceTable
from spotsurfer_providers.gcp.clients import ONCE, Clients
from spotsurfer_providers.gcp.error_codes import calling
from spotsurfer_providers.price_import.billing_skus import Rates, rates_of
from spotsurfer_providers.price_import.machine_prices import Change, changes, priced, shapes_of

SERVICE = "services/6F81-5844-456A"  # Compute Engine in the billing catalogue
SKU_PAGE, TYPE_PAGE = 5000, 500
CHANGES_SHOWN, REASONS_SHOWN = 10, 20
QUIET_SECONDS = 2.0
PROGRAM = "python -m spotsurfer_providers.price_import"
EXAMPLES = (
    f"Examples: {PROGRAM} --project my-project-123456 --out prices.csv.gz; {PROGRAM} --from saved/ --out prices.csv.gz --json"
)


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    args = _parser().parse_args(arguments)
    progress = Progress()
    try:
        if args.folder is not None:
            found = from_folder(args.folder, progress)
        elif args.project is not None:
            found = from_google(args.project, args.endpoint_url, progress)
        else:
            raise UsageError("--project or --from is needed: whom to ask for machine types, or where answers of Google are.")
        told = imported(found, args.out)
    except SpotsurferError as e:
        print(f"price_import: {e}", file=sys.stderr)
        return e.exit_code
    print(json.dumps(told.as_json(), indent=2) if args.json else told.as_text())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--project", help="whose machine types are read, with application default credentials")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv.gz", help="the table; replaced if it is there")
    parser.add_argument(
        "--from",
        dest="folder",
        type=Path,
        metavar="FOLDER",
        help="read its *.json instead of asking Google: pages of services.skus.list and of machineTypes.aggregatedList, "
        "or what `gcloud compute machine-types list --format=json` prints",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--endpoint-url", help="of both services, for tests")
    return parser


class Progress:
    """Lines on stderr, once it takes longer than two seconds, and no faster than that."""

    def __init__(self) -> None:
        self._last = clock.running()

    def __call__(self, line: str) -> None:
        """Maybe tells it."""
        if clock.running() - self._last >= QUIET_SECONDS:
            self._last = clock.running()
            print(f"  {line}", file=sys.stderr, flush=True)


Tell = Callable[[str], None]


# ---- Where prices and machine types come from


@dataclass
class Found:
    """SKUs as JSON, machine types as the library's objects."""

    skus: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    types: list[Any] = field(default_factory=list[Any])


def from_google(project: str, endpoint_url: str | None, tell: Tell) -> Found:
    """Asks both services. Raises ProviderError."""
    clients, found = Clients(endpoint_url), Found()
    for page in _sku_pages(clients):
        found.skus += page
        tell(f"Google's billing catalogue: {len(found.skus)} SKUs")
    request = compute_v1.AggregatedListMachineTypesRequest(project=project, max_results=TYPE_PAGE)
    with calling("machineTypes.aggregatedList"):
        for page in clients.machine_types.aggregated_list(request, **ONCE).pages:
            unread = [scope for scope, types in page.items.items() if types.warning.code == "UNREACHABLE"]
            if unread or page.unreachables:
                zones = ", ".join([*unread, *page.unreachables])
                raise ProviderError(f"Google can't read machine types of {zones} now: try again")
            found.types += [t for scope in page.items.values() for t in scope.machine_types]
            tell(f"machine types: {len(found.types)} of all zones")
    return found


def _sku_pages(clients: Clients) -> Iterator[list[dict[str, Any]]]:
    token = ""
    while True:
        query = {"currencyCode": "USD", "pageSize": str(SKU_PAGE)} | ({"pageToken": token} if token else {})
        with calling("skus.list"):
            page = clients.get("cloudbilling", f"/v1/{SERVICE}/skus", query).json()
        yield page.get("skus", [])
        if not (token := page.get("nextPageToken", "")):
            return


def from_folder(folder: Path, tell: Tell) -> Found:
    """Reads all its *.json: what a file holds, its contents tell. Raises ConfigError."""
    found = Found()
    for path in sorted(folder.glob("*.json")):
        try:
            _add(found, json.loads(path.read_bytes()))
        except (OSError, ValueError, AttributeError, TypeError, ParseError) as e:
            raise ConfigError(f"{path} holds neither SKUs nor machine types as Google answers them: {e}") from e
        tell(f"{path}: {len(found.skus)} SKUs, {len(found.types)} machine types")
    return found


def _add(found: Found, answer: Any) -> None:
    if isinstance(answer, dict) and "skus" in answer:
        found.skus += answer["skus"]
        return
    items = answer["items"] if isinstance(answer, dict) and "items" in answer else answer
    types = [t for scope in items.values() for t in scope.get("machineTypes", [])] if isinstance(items, dict) else items
    if not isinstance(types, list) or not all("guestCpus" in t for t in types):
        raise ValueError("no list of them is there")
    found.types += [compute_v1.MachineType.from_json(json.dumps(t), ignore_unknown_fields=True) for t in types]


# ---- What came of it


@dataclass(frozen=True, slots=True)
class Import:
    """A table that was written, beside the shipped one."""

    path: Path
    table: PriceTable
    left_out: dict[str, int]
    unknown_skus: dict[str, int]
    changed: list[Change]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        before, after = google_price_table.shipped(), self.table
        return {
            "path": str(self.path),
            "date": after.date.isoformat(),
            "prices": len(after.prices),
            "with_spot": sum(spot is not None for _, spot in after.prices.values()),
            "regions": len({region for region, _ in after.prices}),
            "machine_types": len({kind for _, kind in after.prices}),
            "left_out": self.left_out,
            "unknown_skus": self.unknown_skus,
            "shipped": {
                "date": before.date.isoformat(),
                "new": len(after.prices.keys() - before.prices.keys()),
                "gone": len(before.prices.keys() - after.prices.keys()),
                "changed": len(self.changed),
                "largest": [
                    {
                        "machine_type": c.machine_type,
                        "region": c.region,
                        "market": str(c.market),
                        "before_usd_micros_per_hour": c.before_usd_micros,
                        "after_usd_micros_per_hour": c.after_usd_micros,
                    }
                    for c in self.changed[:CHANGES_SHOWN]
                ],
            },
        }

    def as_text(self) -> str:
        """For people."""
        told = self.as_json()
        shipped = told["shipped"]
        lines = [
            f"{self.path}: {told['prices']} prices of {told['machine_types']} machine types in {told['regions']} regions, "
            f"{told['with_spot']} with a spot price, of {told['date']}",
            *_counted("left out", self.left_out),
            *_counted("SKUs of machines that are not understood", self.unknown_skus),
            f"beside the shipped table of {shipped['date']}: {shipped['changed']} prices differ, "
            f"{shipped['new']} rows are new, {shipped['gone']} are not there any more",
        ]
        for c in islice(self.changed, CHANGES_SHOWN):
            was, is_now = usd(c.before_usd_micros), usd(c.after_usd_micros)
            lines.append(f"  {c.market} {c.machine_type} in {c.region}: {was} -> {is_now} USD an hour ({c.share:+.1%})")
        return "\n".join(lines)


def _counted(what: str, counts: dict[str, int]) -> list[str]:
    if not counts:
        return []
    most = [f"  {count} x {name}" for name, count in islice(counts.items(), REASONS_SHOWN)]
    more = len(counts) - len(most)
    return [f"{what}: {sum(counts.values())}", *most, *([f"  … and of {more} other kinds (--json has all)"] if more else [])]


def imported(found: Found, path: Path) -> Import:
    """Computes the prices and writes the table. Raises ConfigError if there are none, or if the file can't be written."""
    rates: Rates = rates_of(found.skus)
    prices, left_out = priced(shapes_of(found.types), rates)
    if not prices:
        raise ConfigError(f"{len(found.skus)} SKUs and {len(found.types)} machine types give no price: {path} stays as it is.")
    table = PriceTable(prices, clock.utc().date())
    try:
        google_price_table.write(path, table)
    except OSError as e:
        raise ConfigError(f"{path} can't be written: {e}.") from e
    largest = changes(google_price_table.shipped().prices, prices)
    return Import(path, table, dict(left_out.most_common()), dict(rates.unknown.most_common()), largest)


if __name__ == "__main__":
    sys.exit(main())
