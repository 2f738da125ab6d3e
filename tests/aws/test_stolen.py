"""What a thief of one machine's credentials can do in the store: on the test EC2, which holds sessions to their policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from spotsurfer_wire import object_keys
from support import aws
from support.ec2.client import TestEC2
from support.keys import by_kind, keys_of

pytestmark = pytest.mark.real

BUCKET, HOME, LAB = "spotsurfer-tests", "fleet/", "lab"
MINE, OTHER = "asm-1", "asm-12"
HEAD = HOME + object_keys.head_key(MINE, 1)
WRITTEN = ("spec_key", "secrets_key", "input_key", "image_key", "inputs_key", "head_key", "desired_key", "condemned_key")
WRITTEN += ("manifest_key", "proven_key", "protected_key", "chunk_key", "pack_key")


@pytest.fixture(scope="module")
def owner(server: TestEC2) -> Any:
    """A client with all rights, and a store in which two jobs have everything that a job can have."""
    s3 = server.client("s3")
    for bucket in (BUCKET, LAB):
        s3.create_bucket(Bucket=bucket)
    for key in keys_of(MINE, OTHER):
        s3.put_object(Bucket=BUCKET, Key=HOME + key, Body=b"as it was")
    for key in ("reads/x", "private/x"):
        s3.put_object(Bucket=LAB, Key=key, Body=b"theirs")
    return s3


@pytest.fixture
def thief(cloud: TestEC2, owner: Any, family: str, tmp_path: Path) -> Iterator[Any]:
    """Has what the machine of attempt 2 was handed: by exactly the call that the controller makes."""
    inputs = ["s3://lab/reads/", f"s3://{BUCKET}/{HOME}jobs/{OTHER}/", f"s3://{BUCKET}/"]
    given = aws.provider(cloud, family, tmp_path).credentials(MINE, 2, inputs).values
    names = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key", "token": "aws_session_token"}
    yield cloud.client("s3", 1, **{theirs: given[ours] for ours, theirs in names.items()})


def denied(call: Callable[..., Any], **arguments: Any) -> None:
    with pytest.raises(ClientError) as e:
        call(**{"Bucket": BUCKET, **arguments})
    assert e.value.response["Error"]["Code"] in ("AccessDenied", "403"), arguments


def test_nothing_of_another_job_is_read_or_touched(thief: Any, owner: Any) -> None:
    own = {object_keys.live_key(MINE, 2)}
    closed = by_kind(MINE)["handout_key"] | by_kind(MINE)["voucher_key"] | by_kind(MINE)["live_key"]
    for key in (keys_of(OTHER) | closed) - own:
        at = HOME + key
        denied(thief.get_object, Key=at)
        denied(thief.head_object, Key=at)
        denied(thief.put_object, Key=at, Body=b"forged")
        denied(thief.put_object, Key=at + "-new", Body=b"forged", IfNoneMatch="*")
        denied(thief.copy_object, Key=HOME + object_keys.order_key(MINE), CopySource={"Bucket": BUCKET, "Key": at})
        denied(thief.delete_object, Key=at)
        assert owner.get_object(Bucket=BUCKET, Key=at)["Body"].read() == b"as it was"


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_the_job_wrote_is_not_rewritten(kind: str, thief: Any, owner: Any) -> None:
    for key in by_kind(MINE)[kind]:
        at = HOME + key
        tag = owner.head_object(Bucket=BUCKET, Key=at)["ETag"]
        denied(thief.put_object, Key=at, Body=b"forged")
        denied(thief.put_object, Key=at, Body=b"forged", IfMatch=tag)
        denied(thief.create_multipart_upload, Key=at)
        denied(thief.copy_object, Key=at, CopySource={"Bucket": BUCKET, "Key": HOME + object_keys.order_key(MINE)})
        denied(thief.delete_object, Key=at)
        denied(thief.delete_objects, Delete={"Objects": [{"Key": at}]})
        with pytest.raises(ClientError, match=r"PreconditionFailed|AccessDenied"):
            thief.put_object(Bucket=BUCKET, Key=at, Body=b"forged", IfNoneMatch="*")
        assert thief.get_object(Bucket=BUCKET, Key=at)["Body"].read() == b"as it was"


def test_an_upload_that_somebody_else_began_is_not_completed_over_a_head(thief: Any, owner: Any) -> None:
    upload = owner.create_multipart_upload(Bucket=BUCKET, Key=HEAD)["UploadId"]
    part = owner.upload_part(Bucket=BUCKET, Key=HEAD, UploadId=upload, PartNumber=1, Body=b"forged")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    denied(thief.upload_part, Key=HEAD, UploadId=upload, PartNumber=2, Body=b"forged")
    denied(thief.complete_multipart_upload, Key=HEAD, UploadId=upload, MultipartUpload=parts)
    owner.abort_multipart_upload(Bucket=BUCKET, Key=HEAD, UploadId=upload)


def test_no_orders_and_no_proofs_are_forged(thief: Any) -> None:
    for key in (
        object_keys.desired_key(MINE, 4),
        object_keys.proven_key(MINE, "000002-000009"),
        object_keys.protected_key(MINE, "000002-000009"),
    ):
        denied(thief.put_object, Key=HOME + key, Body=b"forged", IfNoneMatch="*")


def test_inputs_are_read_and_nothing_beside_them(thief: Any) -> None:
    """The job named another one's folder and the whole of the store's bucket, too: neither was granted."""
    assert thief.get_object(Bucket=LAB, Key="reads/x")["Body"].read() == b"theirs"
    denied(thief.get_object, Bucket=LAB, Key="private/x")
    denied(thief.put_object, Bucket=LAB, Key="reads/x", Body=b"forged")
    denied(thief.delete_object, Bucket=LAB, Key="reads/x")


def test_what_an_agent_does_is_still_done(thief: Any) -> None:
    """Else all of the above could be a slip of the pen."""
    for key in (
        object_keys.head_key(MINE, 9),
        object_keys.intent_key(MINE, "000002-000009"),
        object_keys.chunk_key(MINE, "ff" * 32),
    ):
        thief.put_object(Bucket=BUCKET, Key=HOME + key, Body=b"1", IfNoneMatch="*")
    for key in (object_keys.live_key(MINE, 2), object_keys.log_key(MINE, 2, "out", 0, 5), object_keys.order_key(MINE)):
        thief.put_object(Bucket=BUCKET, Key=HOME + key, Body=b"1")
    large = HOME + object_keys.output_prefix(MINE, 2) + "large"
    upload = thief.create_multipart_upload(Bucket=BUCKET, Key=large)["UploadId"]
    part = thief.upload_part(Bucket=BUCKET, Key=large, UploadId=upload, PartNumber=1, Body=b"1")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    thief.complete_multipart_upload(Bucket=BUCKET, Key=large, UploadId=upload, MultipartUpload=parts)
    thief.delete_object(Bucket=BUCKET, Key=HOME + object_keys.intent_key(MINE, "000002-000009"))
    with pytest.raises(ClientError, match="NoSuchKey"):
        thief.get_object(Bucket=BUCKET, Key=HOME + object_keys.head_key(MINE, 10))
