"""The WSGI application: reads each call, writes it down, applies rules, answers itself or lets moto answer."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

from moto.core.exceptions import ServiceException
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from support.ec2 import calllog, fasttags, mended, sessions, sigv4, wire
from support.ec2.cloud import Cloud
from support.ec2.control import control
from support.ec2.errors import refusal
from support.ec2.handlers import HANDLERS
from support.ec2.rights import rights_of
from support.ec2.rules import spoil
from support.ec2.s3calls import ASKED, S3Call, deleted_keys, s3_call
from support.ec2.shapes import exceeded
from support.ec2.wire import Answer, Call, Refused

Environ = dict[str, Any]
Start = Callable[..., Any]


class Front:
    """The application."""

    def __init__(self, cloud: Cloud) -> None:
        fasttags.install()
        mended.install()
        self.cloud = cloud
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/_test/"):
            return _send(start, control(self.cloud, environ["REQUEST_METHOD"], path.removeprefix("/_test/"), _body(environ)))
        if path.startswith("/moto-api"):
            return list(self._moto(environ, start))
        query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        parts = wire.credential(environ, query)
        service = parts[3] if len(parts) == 5 else ""
        service = wire.SIGNED_AS.get(service, service)
        key_id, region = (parts[0], parts[2]) if len(parts) == 5 else (None, "us-east-1")
        if service == "s3" or (not service and "CONTENT_TYPE" not in environ and "Action" not in query):
            return self._s3(environ, start, query, key_id)
        return _send(start, self._api(environ, service or "sts", region, key_id))

    # ------------------------------------------------------------ S3

    def _s3(self, environ: Environ, start: Start, query: Mapping[str, str], key_id: str | None) -> Iterable[bytes]:
        headers = {name: environ.get("HTTP_" + name.upper().replace("-", "_"), "") for name in ASKED}
        found = s3_call(environ["REQUEST_METHOD"], environ["PATH_INFO"], query, headers)
        if found.operation == "DeleteObjects":
            body = _body(environ)
            environ["wsgi.input"] = io.BytesIO(body)
            found = replace(found, keys=deleted_keys(body))
        flat = {"Bucket": found.bucket, "Key": found.key, "Prefix": found.prefix}
        call = Call("s3", found.operation, "us-east-1", key_id, flat, flat)
        rule = self.cloud.rules.take(call)
        if rule is not None and rule.delay_seconds:
            time.sleep(rule.delay_seconds)
        if code := self._not_who_it_says(environ, "s3", key_id, None):
            return self._refuse_s3(environ, start, found, call, Refused(code, code, 403 if code != "ExpiredToken" else 400))
        if rule is not None and rule.code and not rule.after:
            return self._refuse_s3(environ, start, found, call, Refused(rule.code, rule.message, rule.status))
        if why := sessions.forbidden(calllog.principal(key_id), found):
            return self._refuse_s3(environ, start, found, call, Refused("AccessDenied", why, 403))
        said: list[int] = []

        def note(status: str, headers: Any, exc_info: Any = None) -> Any:
            said.append(int(status.split()[0]))
            return start(status, headers)

        body = self._moto(environ, note)
        self._note_s3(found, call, said[0] if said else 0)
        return body

    def _not_who_it_says(self, environ: Environ, service: str, key_id: str | None, body: bytes | None) -> str | None:
        """The code for a request that AWS would not believe."""
        now = self.cloud.now() + timedelta(seconds=self.cloud.skew_seconds)
        if calllog.expired(key_id, now):
            return "RequestExpired" if service == "ec2" else "ExpiredToken"
        known = calllog.secret_of(key_id)
        if known is None:
            return None
        code = sigv4.problem(environ, body, *known, now)
        return "AuthFailure" if service == "ec2" and code in ("SignatureDoesNotMatch", "InvalidClientTokenId") else code

    def _refuse_s3(self, environ: Environ, start: Start, found: S3Call, call: Call, refused: Refused) -> Iterable[bytes]:
        _drain(environ)
        self._note_s3(found, call, refused.status, refused.code)
        return _send(start, wire.write_error("s3", refused))

    def _note_s3(self, found: S3Call, call: Call, status: int, code: str | None = None) -> None:
        resources = [{"arn": a} for a in found.arns]
        who = calllog.principal(call.key_id)
        line = calllog.needed("s3", found.operation, found.right, who, resources, conditions=found.conditions)
        self.cloud.log.add({**line, "region": call.region, "parameters": dict(call.params), "status": status, "error": code})
        if found.copied_from:
            line = calllog.needed("s3", found.operation, "s3:GetObject", who, [{"arn": f"arn:aws:s3:::{found.copied_from}"}])
            self.cloud.log.add(
                {**line, "region": call.region, "parameters": {}, "status": status, "error": code, "part_of": found.operation}
            )

    # ------------------------------------------------------------ all others

    def _api(self, environ: Environ, service: str, region: str, key_id: str | None) -> Answer:
        body = _body(environ)
        try:
            call = _call(environ, service, region, key_id, body)
        except Refused as e:
            return wire.write_error(service, e)
        result: dict[str, Any] | None = None
        rule = self.cloud.rules.take(call)
        if rule is not None and rule.delay_seconds:
            time.sleep(rule.delay_seconds)
        try:
            if rule is not None and rule.code and not rule.after:
                raise Refused(rule.code, rule.message, rule.status)
            if code := self._not_who_it_says(environ, service, key_id, body):
                raise Refused(code, "The request's signature or security token is not good.", 400 if service == "ec2" else 403)
            answer, result = self._answer(environ, call, body)
            if rule is not None and rule.code:
                raise Refused(rule.code, rule.message, rule.status)
            answer = spoil(rule, answer) if rule is not None else answer
        except Refused as e:
            answer = wire.write_error(service, e)
        self._note(call, answer, result)
        return answer

    def _answer(self, environ: Environ, call: Call, body: bytes) -> tuple[Answer, dict[str, Any] | None]:
        def forward(params: Mapping[str, Any]) -> dict[str, Any]:
            answer = self._ask_moto(environ, wire.encode_form(call.service, call.action, params))
            if answer.status >= 300:
                raise Refused(wire.error_code(answer), _message(answer), answer.status)
            return wire.read_answer(call.service, call.action, answer)

        if call.params and (wrong := exceeded(wire.operation(call.service, call.action).input_shape, call.params)):
            raise Refused("InvalidParameterValue" if call.service == "ec2" else "ValidationException", wrong)
        handler = HANDLERS.get((call.service, call.action))
        if handler is None:
            return self._ask_moto(environ, body), None
        if call.flat and (unknown := _unknown(call)):
            raise refusal("UnknownParameter", name=unknown[0])
        try:
            result = handler(self.cloud, call, forward)
        except ServiceException as e:  # of moto's backends
            raise Refused(getattr(e, "code", type(e).__name__), str(getattr(e, "message", e))) from e
        return wire.write_answer(call.service, call.action, result), result

    def _ask_moto(self, environ: Environ, body: bytes) -> Answer:
        asked = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        asked.pop("HTTP_TRANSFER_ENCODING", None)
        said: list[Any] = []
        data = b"".join(self._moto(asked, lambda status, headers, exc_info=None: said.extend((status, headers))))
        return Answer(int(said[0].split()[0]), list(said[1]), data)

    def _note(self, call: Call, answer: Answer, result: Mapping[str, Any] | None) -> None:
        error = wire.error_code(answer) if answer.status >= 300 else None
        who = calllog.principal(call.key_id)
        parameters = json.loads(json.dumps(call.params, default=_plain))
        for n, (action, resources, conditions) in enumerate(rights_of(self.cloud, call, result)):
            line = calllog.needed(call.service, call.action, action, who, resources, conditions=conditions)
            more = {"part_of": call.action} if n else {}
            self.cloud.log.add(
                {**line, "region": call.region, "parameters": parameters, "status": answer.status, "error": error, **more}
            )


def _call(environ: Environ, service: str, region: str, key_id: str | None, body: bytes) -> Call:
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        action, params = target.rpartition(".")[2], json.loads(body or b"{}")
        flat = {k: v if isinstance(v, str) else json.dumps(v) for k, v in params.items()}
        return Call(service, action, region, key_id, params, flat)
    if body and wire.QUERY_TYPE in environ.get("CONTENT_TYPE", ""):
        action, flat, params = wire.parse_form(service, body)
        return Call(service, action, region, key_id, params, flat)
    return Call(service, f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", region, key_id, {})


def _unknown(call: Call) -> list[str]:
    if call.service != "ec2":
        return []
    return wire.unknown_parameters(call.service, call.action, call.flat, call.params)


def _body(environ: Environ) -> bytes:
    data: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return data


def _drain(environ: Environ) -> None:
    """Read what the client still sends: it would read its next answer from the middle of it otherwise."""
    left = int(environ.get("CONTENT_LENGTH") or 0)
    while left > 0 and (piece := environ["wsgi.input"].read(min(left, 1 << 20))):
        left -= len(piece)


def _send(start: Start, answer: Answer) -> Iterable[bytes]:
    start(f"{answer.status} {'OK' if answer.status < 300 else 'Refused'}", answer.headers)
    return [answer.body]


def _message(answer: Answer) -> str:
    found = re.search(r"<Message>(.*?)</Message>", answer.body.decode(errors="replace"), re.DOTALL)
    return found[1] if found else answer.body.decode(errors="replace")[:300]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
