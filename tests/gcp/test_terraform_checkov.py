"""checkov on the Terraform module for Google: what it finds is mended, or stands here with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.checkov import failed
from support.tree import ROOT

pytestmark = [pytest.mark.slow]
# (check, resource) -> why it stays as it is
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("CKV2_GCP_18", "google_compute_network.machines"): "it has rules; this check does not see those that count makes",
    ("CKV_GCP_26", "google_compute_subnetwork.machines"): "logs of all connections cost money and nothing reads them",
    ("CKV_GCP_37", "google_compute_disk.controller"): "encrypted by Google's own key; who loses a key of theirs loses all",
    ("CKV_GCP_38", "google_compute_instance.controller"): "encrypted by Google's own key",
    ("CKV_GCP_40", "google_compute_instance.controller"): "only where internet = address asks for it, and nobody reaches it",
    ("CKV_GCP_62", "google_storage_bucket.store"): "logs of access cost money and nothing reads them",
    ("CKV_GCP_78", "google_storage_bucket.store"): "objects never change: old versions would only be paid for",
    ("CKV_GCP_83", "google_pubsub_topic.preemptions"): "names of VMs, for ten minutes",
}


def test_findings_are_explained() -> None:
    assert failed(ROOT / "terraform/gcp") == set(EXCEPTIONS), "mend it, or say why it stays; and remove what is mended"


def test_a_public_bucket_would_be_found(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "terraform/gcp", tmp_path / "gcp")
    bucket = tmp_path / "gcp/bucket.tf"
    text = bucket.read_text()
    wanted = "uniform_bucket_level_access = true"
    assert wanted in text
    bucket.write_text(text.replace(wanted, "uniform_bucket_level_access = false"))
    assert {check for check, _ in failed(tmp_path) - set(EXCEPTIONS)} >= {"CKV_GCP_29"}
