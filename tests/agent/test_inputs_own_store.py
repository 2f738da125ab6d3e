"""What lies in spotsurfer's own store is no input, however its address is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.prepare.inputs.sources import InputTrouble, Seen, Sources
from spotsurfer_wire.input_addresses import KEPT, OwnStore
from spotsurfer_wire.messages import Fetch

AWS = OwnStore("s3://lab/fleet/")
TOP = OwnStore("s3://lab")
OURS = OwnStore("s3://lab/fleet", "https://storage.example.org:9000")
GOOGLE = OwnStore("gs://lab/fleet")

KEPT_THERE = [
    (AWS, "s3://lab/fleet/jobs/other-abc123/chunks/ab/x"),
    (AWS, "s3://lab/fleet/jobs/"),
    (AWS, "s3://lab/fleet/live/other.000001"),
    (AWS, "s3://lab/fleet/access/other.000001"),
    (AWS, "s3://lab/fleet/runtime/x.tar.gz"),
    (AWS, "s3://lab/fleet/controller/00000001.json"),
    (AWS, "s3://lab/fleet/spotsurfer.json"),
    (AWS, "s3://lab/fleet/pulse"),
    (AWS, "s3://lab/fleet/puls*"),
    (AWS, "s3://lab/fleet/pulse*"),
    (AWS, "https://s3.amazonaws.com/lab/fleet/pulse?versionId=1"),
    (AWS, "s3://lab//fleet///jobs//other/x"),
    (AWS, "s3://lab/data/../fleet/jobs/other/x"),
    (AWS, "s3://lab/./fleet/jobs/other/x"),
    (AWS, "s3://lab/fleet%2Fjobs%2fother/x"),
    (AWS, "s3://lab/fleet/%6Aobs/other/x"),
    (AWS, "s3://lab/fleet/%256Aobs/other/x"),
    (AWS, "s3://lab/data/%2e%2e/fleet/jobs/other/x"),
    (AWS, "s3://lab/fleet/jobs/*/chunks/**"),
    (AWS, "s3://lab/f*/jobs/other/x"),
    (AWS, "s3://lab/fleet/j?bs/other/x"),
    (AWS, "s3://lab/fleet/"),
    (AWS, "s3://lab/"),
    (AWS, "s3://lab/*.fq"),
    (AWS, "https://lab.s3.eu-central-1.amazonaws.com/fleet/jobs/other/x"),
    (AWS, "https://LAB.S3.amazonaws.com./fleet/jobs/other/x?X-Amz-Signature=1"),
    (AWS, "https://lab.s3.dualstack.eu-central-1.amazonaws.com:443/fleet/jobs/other/x"),
    (AWS, "https://s3.eu-central-1.amazonaws.com/lab/fleet/jobs/other/x"),
    (AWS, "https://s3.amazonaws.com//lab/fleet/jobs/other/x"),
    (AWS, "http://s3.amazonaws.com/l%61b/fleet/jobs/other/x"),
    (TOP, "s3://lab/jobs/other/x"),
    (TOP, "s3://lab/j*"),
    (OURS, "https://storage.example.org:9000/lab/fleet/jobs/other/x"),
    (OURS, "http://storage.example.org/lab/fleet/jobs/other/x"),
    (OURS, "https://lab.storage.example.org:9000/fleet/jobs/other/x"),
    (GOOGLE, "gs://lab/fleet/jobs/other/x"),
    (GOOGLE, "s3://lab/fleet/jobs/other/x"),
    (GOOGLE, "https://storage.googleapis.com/lab/fleet/jobs/other/x"),
    (GOOGLE, "https://storage.cloud.google.com/lab/fleet/jobs/other/x"),
]
ELSEWHERE = [
    (AWS, "s3://lab/reads/x.fq"),
    (AWS, "s3://lab/fleet-data/jobs/x"),
    (AWS, "s3://lab/fleet/reads/*.fq"),
    (AWS, "s3://lab/reads/"),
    (AWS, "s3://lab/fleet/pulse-ox/x.csv"),
    (AWS, "s3://lab/fleet/pulse-ox/*.csv"),
    (AWS, "s3://lab/fleet/spotsurfer.json.txt"),
    (TOP, "s3://lab/pulses/"),
    (AWS, "s3://other/fleet/jobs/x"),
    (AWS, "s3://lab/jobs/x"),
    (AWS, "gs://other/jobs/x"),
    (AWS, "https://example.org/lab/fleet/jobs/other/x"),
    (AWS, "https://lab.example.org/fleet/jobs/other/x"),
    (AWS, "https://s3.amazonaws.com/other/fleet/jobs/x"),
    (AWS, "https://notamazonaws.com/lab/fleet/jobs/other/x"),
    (TOP, "s3://lab/reads/jobs/x"),
    (TOP, "s3://lab/reads/*.fq"),
    (TOP, "s3://lab/jobs.csv"),
    (OwnStore("file:///srv/store"), "s3://store/jobs/other/x"),
    (OwnStore("memory:///"), "https://example.org/jobs/x"),
]


@pytest.mark.parametrize(("store", "source"), KEPT_THERE, ids=[s for _, s in KEPT_THERE])
def test_it_is_recognised(store: OwnStore, source: str) -> None:
    assert store.holds(source)


@pytest.mark.parametrize(("store", "source"), ELSEWHERE, ids=[s for _, s in ELSEWHERE])
def test_what_lies_elsewhere_is_not_taken_for_it(store: OwnStore, source: str) -> None:
    assert not store.holds(source)


@pytest.mark.parametrize(
    "name", ["endpoint", "aws_endpoint", "endpoint_url", "aws_endpoint_url", "AWS_ENDPOINT_URL", "aws_endpoint_url_s3"]
)
def test_the_stores_own_service_is_known_by_each_of_its_names(name: str) -> None:
    store = OwnStore.of("s3://lab/fleet", {"region": "eu-west-1", name: "https://storage.example.org:9000"})
    assert store == OURS


@pytest.mark.parametrize("scheme", ["S3", "s3a", "S3A", "file", "HTTPS"])
def test_other_spellings_of_a_scheme_are_no_addresses_at_all(scheme: str) -> None:
    with pytest.raises(ValueError, match="unknown beginning"):
        AWS.holds(f"{scheme}://lab/fleet/jobs/other/x")


@given(st.sampled_from(KEPT), st.text(st.characters(codec="ascii"), max_size=8), st.integers(0, 3), st.booleans())
def test_no_way_of_writing_it_gets_past(kept: str, tail: str, coded: int, up: bool) -> None:
    inside = tail.replace("\0", "").replace(".", "").replace("%", "") if kept.endswith("/") else ""
    text = ("reads/../" if up else "") + "fleet/" + kept + inside
    for _ in range(coded):
        text = "".join(c if c.isalnum() and i % 2 else f"%{ord(c):02x}" for i, c in enumerate(text))
    assert AWS.holds(f"s3://lab/{text}")


def test_a_machine_does_not_ask_for_it_either() -> None:
    """A job that was submitted before this was refused, or a list of inputs that somebody changed in the store."""
    sources = Sources(own=OwnStore("s3://lab/fleet"))
    fetch = Fetch("s3://lab/fleet/jobs/other/SPEC.json", "x")
    with pytest.raises(InputTrouble, match="lies in the store of spotsurfer, where each job reads what is its own alone"):
        sources.look(fetch)
    seen = Seen(Fetch("s3://lab/reads/x", "x"), fetch.source, "fleet/jobs/other/SPEC.json", "x", 1, "")
    with pytest.raises(InputTrouble, match="lies in the store of spotsurfer"):
        next(sources.read(seen, 0, 1))
