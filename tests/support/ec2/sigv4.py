"""Signatures of requests, checked as AWS does: Signature Version 4, of keys whose secret is known here.

Canonical request, string to sign and key: "Create a signed AWS API request" in the IAM User Guide. All `x-amz-` headers must be
signed, and a session's token must be there.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, unquote_plus

SKEW = timedelta(minutes=15)  # of S3; other services allow five minutes


def problem(environ: Mapping[str, Any], body: bytes | None, secret: str, token: str | None, now: datetime) -> str | None:
    """The code of the error that AWS would answer, or None. `body` None: it is streamed, and its digest is in a header."""
    given = _given(environ)
    if given is None:
        return _presigned_problem(environ, secret, now)
    scope, names, signature = given
    at = environ.get("HTTP_X_AMZ_DATE", "")
    headers = {n: " ".join(_header(environ, n).split()) for n in names}
    unsigned = {k[5:].lower().replace("_", "-") for k in environ if k.startswith("HTTP_X_AMZ_")} - set(names)
    if "host" not in names or unsigned:
        return "SignatureDoesNotMatch"  # AWS: "There were headers present in the request which were not signed"
    if token is not None and environ.get("HTTP_X_AMZ_SECURITY_TOKEN") != token:
        return "InvalidClientTokenId"
    if not _is_near(at, now):
        return "RequestTimeTooSkewed" if "/s3/" in scope else "RequestExpired"
    digest = environ.get("HTTP_X_AMZ_CONTENT_SHA256") or hashlib.sha256(body or b"").hexdigest()
    asked = _canonical(environ, headers, digest, "/s3/" in scope, drop=())
    return None if hmac.compare_digest(_sign(secret, at, scope, asked), signature) else "SignatureDoesNotMatch"


def _presigned_problem(environ: Mapping[str, Any], secret: str, now: datetime) -> str | None:
    query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    if "X-Amz-Signature" not in query:
        return None
    at, scope = query["X-Amz-Date"], query["X-Amz-Credential"].partition("/")[2]
    begin = _time(at)
    if begin is None or not begin <= now + SKEW or now > begin + timedelta(seconds=int(query["X-Amz-Expires"])):
        return "AccessDenied"
    headers = {n: _header(environ, n) for n in query["X-Amz-SignedHeaders"].split(";")}
    asked = _canonical(environ, headers, "UNSIGNED-PAYLOAD", True, drop=("X-Amz-Signature",))
    same = hmac.compare_digest(_sign(secret, at, scope, asked), query["X-Amz-Signature"])
    return None if same else "SignatureDoesNotMatch"


def _given(environ: Mapping[str, Any]) -> tuple[str, list[str], str] | None:
    """Scope, signed headers and signature of the Authorization header."""
    text = environ.get("HTTP_AUTHORIZATION", "")
    if not text.startswith("AWS4-HMAC-SHA256"):
        return None
    parts = dict(p.strip().split("=", 1) for p in text.removeprefix("AWS4-HMAC-SHA256").split(","))
    return parts["Credential"].partition("/")[2], parts["SignedHeaders"].split(";"), parts["Signature"]


def _header(environ: Mapping[str, Any], name: str) -> str:
    plain = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
    return str(environ.get(plain.get(name, "HTTP_" + name.upper().replace("-", "_")), ""))


def _canonical(environ: Mapping[str, Any], headers: Mapping[str, str], digest: str, as_is: bool, drop: tuple[str, ...]) -> str:
    path, _, query = str(environ["RAW_URI"]).partition("?")
    pairs = [(unquote_plus(k), unquote_plus(v)) for k, _, v in (p.partition("=") for p in query.split("&") if p)]
    coded = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in pairs if k not in drop)
    return "\n".join(
        [
            environ["REQUEST_METHOD"],
            path if as_is else quote(path, safe="/-_.~"),  # S3 takes the path as it came, others code it once more
            "&".join(f"{k}={v}" for k, v in coded),
            *(f"{n}:{v.strip()}" for n, v in sorted(headers.items())),
            "",
            ";".join(sorted(headers)),
            digest,
        ]
    )


def _sign(secret: str, at: str, scope: str, asked: str) -> str:
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(asked.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def _is_near(text: str, now: datetime) -> bool:
    at = _time(text)
    return at is not None and abs(at - now) <= SKEW
