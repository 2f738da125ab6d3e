"""Prices from the billing catalogue: which SKUs count, what they come to, and the table that is made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.catalog import google_price_table
from spotsurfer_providers.price_import import __main__ as price_import
from spotsurfer_providers.price_import.billing_skus import Kind, Part, part_of, rate_of, rates_of
from spotsurfer_providers.price_import.machine_prices import Shape, changes, priced
from spotsurfer_wire import clock
from support import gcp
from support.gce.document import problems
from support.gce.errors import Refused
from support.gce.server import TestGce
from support.gce.skus import machine, sku

from spotsurfer.model.errors import ConfigError
from spotsurfer.model.market import Market

HERE = "us-central1"
N2 = Shape("n2-standard-2", HERE, 2, 8192)
# Published for the Americas. A2 and A100 are SKUs 2922-40C5-B19F, 2390-DCAF-DA38 and 039F-D0DA-4055 of the catalogue.
PUBLISHED = [
    *machine("N2 Instance", "0.031611", "0.004237"),
    *machine("N2D AMD Instance", "0.027502", "0.003686"),
    *machine("E2 Instance", "0.02181159", "0.00292353"),
    *machine("A2 Instance", "0.031611", "0.004237"),
    sku("Nvidia Tesla A100 GPU running in Americas", "2.933908"),
]
SPOT = [
    *machine("Spot Preemptible N2 Instance", "0.0125", "0.0026", "Iowa", (HERE,)),
    sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas", "0.2"),
]
LOOKALIKES = [
    sku("N2 Custom Instance Core running in Americas", "9"),
    sku("N2 Sole Tenancy Instance Core running in Americas", "9"),
    sku("Sole Tenancy Premium for N2 Sole Tenancy Instance Core running in Americas", "9"),
    sku("Commitment v1: N2 Cpu in Americas for 1 Year", "9", usage="Commit1Yr"),
    sku("DWS Defined Duration A3 Core running in Americas", "9"),
    sku("Reserved Nvidia H100 80GB GPU in Americas in Calendar Mode", "9"),
    sku("Nvidia Tesla A100 GPU attached to Sole Tenancy VMs running in Americas", "9"),
    sku("Licensing Fee for Windows Server 2022 Datacenter Edition (CPU cost)", "9"),
    sku("Network Internet Data Transfer Out from Americas to Americas", "9", unit="GiBy.mo"),
]


# ---- SKUs


def test_these_skus_are_as_google_describes_them() -> None:
    assert not [p for s in PUBLISHED + SPOT + LOOKALIKES for p in problems("cloudbilling.v1", "Sku", s)]


@pytest.mark.parametrize(
    ("description", "part"),
    [
        ("N2 Instance Core running in Americas", Part(Kind.CORE, "N2")),
        ("Spot Preemptible N2 Instance Ram running in Netherlands", Part(Kind.RAM, "N2")),
        ("N1 Predefined Instance Ram running in Salt Lake City", Part(Kind.RAM, "N1 Predefined")),
        ("Compute optimized Core running in Americas", Part(Kind.CORE, "Compute optimized")),
        ("Compute optimized Instance Core running in Dallas", Part(Kind.CORE, "Compute optimized")),
        ("Spot Preemptible A3Plus Instance Ram running in Tokyo", Part(Kind.RAM, "A3Plus")),
        ("Nvidia Tesla A100 80GB GPU running in Americas", Part(Kind.GPU, "nvidia-a100-80gb")),
        (
            "Nvidia H100 80GB Mega GPU attached to Spot Preemptible VMs running in Tokyo",
            Part(Kind.GPU, "nvidia-h100-mega-80gb"),
        ),
        ("H200 141GB GPU running in Netherlands", Part(Kind.GPU, "nvidia-h200-141gb")),
        ("SSD backed Local Storage", Part(Kind.SSD, "")),
        ("SSD backed Local Storage attached to Spot Preemptible VMs in Paris", Part(Kind.SSD, "")),
        ("Spot Preemptible C4D Instance Local SSD running in Frankfurt", Part(Kind.SSD, "C4D")),
        ("M3 Memory-optimized Instance Core running in Warsaw", None),
        ("Nvidia Tesla T4 GPU running in Americas", None),
        ("SSD backed PD Capacity in Paris", None),
    ],
)
def test_what_a_description_names(description: str, part: Part | None) -> None:
    assert part_of(description) == part


def test_lookalikes_count_for_nothing() -> None:
    rates = rates_of(LOOKALIKES)
    assert not rates.of and not rates.unknown


def test_a_sku_of_an_unknown_kind_is_named() -> None:
    places = ("Americas", "Paris")
    rates = rates_of([*(sku(f"N9 Instance Core running in {p}", "0.03") for p in places), *PUBLISHED])
    assert rates.unknown == {"N9 Instance Core": 2}
    assert rates.of[Part(Kind.CORE, "N2"), Market.ON_DEMAND, "us-east1"] == Decimal("0.031611")


@pytest.mark.parametrize(
    ("found", "kind", "usd"),
    [
        (sku("x", "2.933908"), Kind.GPU, "2.933908"),
        (sku("x", "0.000000001"), Kind.CORE, "0.000000001"),
        (sku("x", "0.003495578", unit="GBy.h"), Kind.RAM, "0.003753348"),
        (sku("x", "0.003495578", unit="GiBy.h"), Kind.RAM, "0.003495578"),
        (sku("x", "0.08", unit="GiBy.mo"), Kind.SSD, "0.000109589"),
        (sku("x", "0.03", "0.02"), Kind.CORE, "0.03"),
        (sku("x", "0", "0.02"), Kind.CORE, "0.02"),
    ],
)
def test_units_and_tiers(found: Mapping[str, Any], kind: Kind, usd: str) -> None:
    assert round(rate_of(found, kind), 9) == Decimal(usd)


def _yen() -> dict[str, Any]:
    found = sku("N2 Instance Core running in Japan", "4")
    found["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]["currencyCode"] = "JPY"
    return found


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (sku("N2 Instance Core running in Japan", "0.03", unit="mo"), "its unit is mo"),
        (sku("N2 Instance Ram running in Japan", "0.03"), "its unit is h"),
        (sku("N2 Instance Core running in Japan", "0"), "it costs nothing"),
        (_yen(), "its currency is JPY"),
        ({**sku("N2 Instance Core running in Japan", "0.03"), "pricingInfo": []}, "index"),
    ],
)
def test_a_sku_that_cant_be_read_gives_no_price_and_is_named(found: Mapping[str, Any], why: str) -> None:
    rates = rates_of([found])
    assert not rates.of
    assert [why in name for name in rates.unknown] == [True]


def test_newer_prices_and_dearer_skus_win() -> None:
    newer = sku("N2 Instance Core running in Americas", "0.04")
    older = sku("N2 Instance Core running in Americas", "0.09")
    newer["pricingInfo"] = older["pricingInfo"] + newer["pricingInfo"]
    cheaper = sku("N2 Instance Core running in Iowa", "0.01", regions=(HERE,))
    for order in ([newer, cheaper], [cheaper, newer]):
        assert rates_of(order).of[Part(Kind.CORE, "N2"), Market.ON_DEMAND, HERE] == Decimal("0.04")


def test_a_spot_sku_that_is_filed_under_on_demand_is_one_of_spot() -> None:
    found = sku("SSD backed Local Storage attached to Spot Preemptible VMs", "0.04", unit="GiBy.mo", usage="OnDemand")
    assert {market for _, market, _ in rates_of([found]).of} == {Market.SPOT}


# ---- Machine types

MEMORY_GIB = {"standard": 4, "highmem": 8, "highcpu": 1}  # a core, of N2, N2D and E2


def _shipped(family: str, region: str) -> dict[tuple[str, str], tuple[int, int | None]]:
    found = google_price_table.shipped().prices.items()
    return {key: price for key, price in found if key[0] == region and key[1].startswith(f"{family}-")}


def _shape(region: str, name: str) -> Shape | None:
    _, kind, count = (*name.split("-"), "")[:3]
    if kind not in MEMORY_GIB or name == "n2-highmem-128":
        return None
    return Shape(name, region, int(count), int(count) * MEMORY_GIB[kind] * 1024)


@pytest.mark.parametrize("family", ["n2", "n2d", "e2"])
def test_published_rates_give_the_shipped_prices(family: str) -> None:
    shipped = _shipped(family, HERE)
    shapes = [shape for region, name in shipped if (shape := _shape(region, name))]
    found, left_out = priced(shapes, rates_of(PUBLISHED))
    assert len(found) > 10 and not left_out
    assert {key: price for key, (price, _) in found.items()} == {key: shipped[key][0] for key in found}


def test_gpus_are_added() -> None:
    gpus = (("nvidia-tesla-a100", 1),)
    found, _ = priced([Shape("a2-highgpu-1g", HERE, 12, 85 * 1024, gpus)], rates_of(PUBLISHED))
    assert found[HERE, "a2-highgpu-1g"] == (_shipped("a2", HERE)[HERE, "a2-highgpu-1g"][0], None) == (3_673_385, None)


def test_the_shipped_table_follows_the_same_rule_in_every_region() -> None:
    """Its rates, found from two large types of a family, give all other types, spot included."""
    regions = {region for region, _ in google_price_table.shipped().prices}
    checked = 0
    for family, name, size in (("n2", "N2", 80), ("n2d", "N2D AMD", 80), ("e2", "E2", 16)):
        for region in regions:
            shipped = _shipped(family, region)
            if not {(region, f"{family}-{kind}-{size}") for kind in ("standard", "highmem")} <= shipped.keys():
                continue
            skus: list[dict[str, Any]] = []
            for i, spot in enumerate(("", "Spot Preemptible ")):
                standard, highmem = (Decimal(shipped[region, f"{family}-{k}-{size}"][i] or 0) for k in ("standard", "highmem"))
                ram = (highmem - standard) / (4 * size)
                core = standard / size - 4 * ram
                core_usd, ram_usd = (str(round(x / 10**6, 9)) for x in (core, ram))
                skus += machine(f"{spot}{name} Instance", core_usd, ram_usd, "here", (region,))
            found, _ = priced([s for _, kind in shipped if (s := _shape(region, kind))], rates_of(skus))
            for key, prices in found.items():
                for now, then in zip(prices, shipped[key], strict=True):
                    assert abs((now or 0) - (then or 0)) <= 4, (key, now, then)
                    checked += 1
    assert checked > 3000


def test_local_ssds_that_belong_to_a_type_are_added() -> None:
    shapes = [
        Shape("c3-standard-4-lssd", HERE, 4, 16384, ssds=1),
        Shape("c4-standard-4-lssd", HERE, 4, 15 * 1024, ssds=1),
    ]
    skus = [
        *machine("C3 Instance", "0.03465", "0.003938"), *machine("C4 Instance", "0.03465", "0.003938"),
        sku("SSD backed Local Storage", "0.08", unit="GiBy.mo"),
        sku("C4 Instance Local SSD running in Americas", "0.16", unit="GiBy.mo"),
    ]  # fmt: skip
    found, _ = priced(shapes, rates_of(skus))
    shipped = google_price_table.shipped().prices
    assert {key: price[0] for key, price in found.items()} == {(HERE, s.name): shipped[HERE, s.name][0] for s in shapes}


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (Shape("m3-ultramem-32", HERE, 32, 999424), "m3: its SKUs are not known"),
        (Shape("n1-megamem-96", HERE, 96, 1468006), "n1: its SKUs are not known"),
        (Shape("e2-small", HERE, 2, 2048, shares_cpu=True), "e2: it shares a core"),
        (Shape("a2-ultragpu-1g", HERE, 12, 174080), "a2: Google does not tell how many local SSDs it has"),
        (Shape("c4-standard-288-lssd-metal", HERE, 288, 1105920, ssds=6), "c4: the size of its local SSDs is not known"),
        (
            Shape("a2-highgpu-1g", HERE, 12, 87040, (("nvidia-b200", 1),)),
            "a2: no on-demand price of GPU nvidia-b200 in its region",
        ),
        (Shape("n2-standard-2", "europe-west4", 2, 8192), "n2: no on-demand price of core N2 in its region"),
    ],
)
def test_what_has_no_price_is_left_out_and_counted(shape: Shape, why: str) -> None:
    found, left_out = priced([shape, N2], rates_of(PUBLISHED))
    assert set(found) == {(HERE, N2.name)}
    assert left_out == {why: 1}


def test_spot_needs_a_price_of_every_part() -> None:
    found, _ = priced([N2], rates_of(PUBLISHED + SPOT))
    assert found[HERE, N2.name] == (97_118, 45_800)
    found, _ = priced([N2], rates_of(PUBLISHED + SPOT[:1]))
    assert found[HERE, N2.name] == (97_118, None)


def test_changes_are_told_the_largest_first() -> None:
    before = {("r", "a"): (100, 50), ("r", "b"): (100, None), ("r", "gone"): (1, 1)}
    after = {("r", "a"): (101, 20), ("r", "b"): (140, 70), ("r", "new"): (1, 1)}
    told = changes(before, after)
    assert [(c.machine_type, c.market, c.after_usd_micros) for c in told] == [
        ("a", Market.SPOT, 20),
        ("b", Market.ON_DEMAND, 140),
    ]


# ---- The command


def test_google_is_asked_page_by_page_and_the_provider_takes_the_table(
    gce: TestGce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gce.cloud.page = 3
    gce.cloud.skus = PUBLISHED + SPOT + LOOKALIKES
    out = tmp_path / "prices.csv.gz"
    assert price_import.main(["--project", "lab-123456", "--endpoint-url", gce.endpoint, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prices"] == 4 and told["with_spot"] == 2 and told["regions"] == 1
    assert told["left_out"]["e2: it shares a core"] == 2  # regions
    assert told["shipped"]["largest"][0]["machine_type"].startswith("n2-standard-")
    assert gce.calls.count("cloudbilling.services.skus.list") > 5 and gce.calls.count("compute.machineTypes.aggregatedList") > 5
    assert google_price_table.read(out).date == clock.utc().date()
    offers = gcp.provider(gce, tmp_path, prices=str(out)).offers()
    prices = {(o.pool.instance_type, o.market): o.price_usd_micros_per_hour for o in offers}
    assert prices[N2.name, Market.ON_DEMAND] == 97_118 and prices[N2.name, Market.SPOT] == 45_800
    assert "g2-standard-4" not in {o.pool.instance_type for o in offers}
    assert not gce.failures


def test_saved_answers_do_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = tmp_path / "saved", tmp_path / "prices.csv.gz"
    saved.mkdir()
    zone = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
    kinds = [{"name": f"n2-standard-{n}", "zone": zone, "guestCpus": n, "memoryMb": n * 4096} for n in (2, 4)]
    kinds += [
        {**kinds[0], "name": "n2-arm-2", "architecture": "ARM64"},
        {**kinds[0], "name": "n2-old-2", "deprecated": {"state": "DEPRECATED"}},
    ]
    for name, answer in {
        "a": {"skus": PUBLISHED[:1]}, "b": {"skus": PUBLISHED[1:2], "nextPageToken": ""},
        "c": {"items": {"zones/us-central1-a": {"machineTypes": kinds[:1]}}}, "d": kinds[1:],
    }.items():  # fmt: skip
        (saved / f"{name}.json").write_text(json.dumps(answer))
    assert price_import.main(["--from", str(saved), "--out", str(out)]) == 0
    assert dict(google_price_table.read(out).prices) == {
        (HERE, "n2-standard-2"): (97_118, None),
        (HERE, "n2-standard-4"): (194_236, None),
    }
    assert "2 prices of 2 machine types in 1 regions, 0 with a spot price" in capsys.readouterr().out


@pytest.mark.parametrize("answer", [None, {"skus": []}, {"error": {"code": 403}}, [{"name": "x"}], "x"])
def test_answers_that_give_no_price_leave_the_table_as_it_is(
    answer: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "prices.csv.gz"
    google_price_table.write(out, google_price_table.shipped())
    before = out.read_bytes()
    if answer is not None:
        (tmp_path / "a.json").write_text(json.dumps(answer))
    assert price_import.main(["--from", str(tmp_path), "--out", str(out)]) != 0
    assert out.read_bytes() == before
    assert capsys.readouterr().err.startswith("price_import: ")


def test_a_refusal_names_the_call(gce: TestGce, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gce.answers["cloudbilling.services.skus.list"] = [Refused(403, "SERVICE_DISABLED", "Cloud Billing API is disabled")]
    arguments = ["--project", "lab-123456", "--endpoint-url", gce.endpoint, "--out", str(tmp_path / "prices.csv.gz")]
    assert price_import.main(arguments) != 0
    told = capsys.readouterr().err
    assert "skus.list" in told and "Cloud Billing API is disabled" in told


def test_a_zone_that_cant_be_read_ends_it(gce: TestGce, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gce.cloud.skus, gce.cloud.unreachable = PUBLISHED, {"us-central1-b"}
    out = tmp_path / "prices.csv.gz"
    assert price_import.main(["--project", "lab-123456", "--endpoint-url", gce.endpoint, "--out", str(out)]) != 0
    assert "us-central1-b" in capsys.readouterr().err and not out.exists()


def test_progress_is_told_after_two_seconds_and_not_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(clock, "running", lambda: now[0])
    progress = price_import.Progress()
    for at in (101.0, 102.0, 103.0, 104.5):
        now[0] = at
        progress(f"at {at}")
    assert capsys.readouterr().err.split("\n") == ["  at 102.0", "  at 104.5", ""]


# ---- The table


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    google_price_table.write(tmp_path / "t.csv.gz", google_price_table.shipped())
    assert google_price_table.read(tmp_path / "t.csv.gz") == google_price_table.shipped()


@pytest.mark.parametrize("data", [None, b"", b"machine_type,region\n", b"\x1f\x8b\x08\x00"])
def test_a_bad_table_is_told_at_the_start(data: bytes | None, gce: TestGce, tmp_path: Path) -> None:
    path = tmp_path / "prices.csv.gz"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"\[provider.gcp\] prices: .* is no table of prices"):
        gcp.provider(gce, tmp_path, prices=str(path))
