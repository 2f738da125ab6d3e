"""checkov on the Terraform module: what it finds is mended, or stands here with the reason."""

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
    (
        "CKV2_AWS_5",
        "aws_security_group.machines",
    ): "it hangs on the launch template; machines are the controller's, not Terraform's",
    ("CKV2_AWS_62", "aws_s3_bucket.store"): "nobody waits for events of the bucket: the store is polled",
    ("CKV_AWS_126", "aws_instance.controller"): "metrics by the minute cost two dollars a month and nothing reads them",
    (
        "CKV_AWS_144",
        "aws_s3_bucket.store",
    ): "checkpoints are gone within days, and a copy elsewhere would cost more than they save",
    (
        "CKV_AWS_145",
        "aws_s3_bucket.store",
    ): "a KMS key would be asked for each chunk; what is secret is encrypted before it is sent",
    (
        "CKV_AWS_18",
        "aws_s3_bucket.store",
    ): "they cost money and nothing reads them; who needs them adds them to the bucket of the output",
    ("CKV_AWS_189", "aws_ebs_volume.controller"): "encrypted by the account's own key for disks",
    ("CKV_AWS_21", "aws_s3_bucket.store"): "objects are created and never changed: old versions would only be paid for",
    ("CKV_AWS_24", "aws_security_group_rule.ssh[0]"): "made only for ssh_cidrs, whose check refuses 0.0.0.0/0",
    ("CKV_AWS_300", "aws_s3_bucket_lifecycle_configuration.store"): "its first rule does; this check wants it in each rule",
    ("CKV_AWS_382", "aws_security_group_rule.controller_out"): "package indexes and AWS have no fixed addresses",
}


def test_findings_are_explained() -> None:
    assert failed(ROOT / "terraform/aws") == set(EXCEPTIONS), "mend it, or say why it stays; and remove what is mended"


def test_a_public_bucket_would_be_found(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "terraform/aws", tmp_path / "aws")
    bucket = tmp_path / "aws/bucket.tf"
    bucket.write_text(bucket.read_text().replace("block_public_acls       = true", "block_public_acls       = false"))
    assert {check for check, _ in failed(tmp_path) - set(EXCEPTIONS)} >= {"CKV_AWS_53"}
