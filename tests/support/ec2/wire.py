"""Requests and answers of AWS, read and written by botocore's own service models."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from botocore.model import OperationNotFoundError
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from moto.core.loaders import create_loader
from moto.core.model import OperationModel, ServiceModel
from moto.core.parse import EC2QueryParser, QueryParser
from moto.core.serialize import EC2Serializer, JSONSerializer, SerializationContext
from werkzeug.datastructures import MultiDict

# Names in signatures that differ from botocore's names of the services.
SIGNED_AS = {
    "servicequotas": "service-quotas",
    "elasticfilesystem": "efs",
    "monitoring": "cloudwatch",
    "api.pricing": "pricing",
}
QUERY_TYPE = "application/x-www-form-urlencoded"


class Refused(Exception):
    """An error as AWS answers it."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


@dataclass(frozen=True)
class Answer:
    """What goes back over the wire."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class Call:
    """One call. `service` is botocore's name; `action` the operation; `flat` the parameters as they came, for rules."""

    service: str
    action: str
    region: str
    key_id: str | None
    params: Mapping[str, Any]
    flat: Mapping[str, str] = field(default_factory=dict)


@functools.cache
def model(service: str) -> ServiceModel:
    """A service's model."""
    return ServiceModel(create_loader().load_service_model(service, "service-2"), service)


def operation(service: str, action: str) -> OperationModel:
    """An operation's model. Raises Refused for one that there is not."""
    try:
        found = model(service).operation_model(action)
    except OperationNotFoundError as e:
        raise Refused("InvalidAction", f"The action {action} is not valid for this web service.") from e
    assert isinstance(found, OperationModel)
    return found


def parse_form(service: str, body: bytes) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Action, flat parameters and parsed parameters of a form."""
    flat = dict(parse_qsl(body.decode(), keep_blank_values=True))
    action = flat.get("Action", "")
    op = operation(service, action)
    parser = (EC2QueryParser if op.service_model.metadata["protocol"] == "ec2" else QueryParser)(op)
    values = MultiDict(flat)
    request: Any = {"query_string": "", "body": values, "values": values, "url_path": "/", "headers": {}, "method": "POST"}
    return action, flat, parser.parse(request)


def unknown_parameters(service: str, action: str, flat: Mapping[str, str], params: Mapping[str, Any]) -> list[str]:
    """Parameters of a form that its operation does not have: what is lost where it is written anew."""
    known = dict(parse_qsl(encode_form(service, action, params).decode(), keep_blank_values=True))
    return sorted(set(flat) - set(known) - {"Action", "Version"})


def encode_form(service: str, action: str, params: Mapping[str, Any]) -> bytes:
    """The form that asks for `action`."""
    request = create_serializer(model(service).metadata["protocol"]).serialize_to_request(params, operation(service, action))
    return urlencode(request["body"]).encode()


def read_answer(service: str, action: str, answer: Answer) -> dict[str, Any]:
    """What botocore makes of an answer."""
    parser = create_parser(model(service).metadata["protocol"])
    response = {"status_code": answer.status, "headers": dict(answer.headers), "body": answer.body}
    parsed: dict[str, Any] = parser.parse(response, operation(service, action).output_shape)
    parsed.pop("ResponseMetadata", None)
    return parsed


def write_answer(service: str, action: str, result: Mapping[str, Any]) -> Answer:
    """An answer that says `result`."""
    op = operation(service, action)
    writer = EC2Serializer if service == "ec2" else JSONSerializer
    made = writer(op, SerializationContext(str(uuid.uuid4()))).serialize(result)
    text = made["body"]
    body = text if isinstance(text, bytes) else text.encode()
    kind = "text/xml;charset=UTF-8" if service == "ec2" else "application/x-amz-json-1.1"
    return Answer(200, [("Content-Type", kind), ("Content-Length", str(len(body)))], body)


def write_error(service: str, refused: Refused) -> Answer:
    """An error in the dialect of a service."""
    protocol = "rest-xml" if service == "s3" else model(service).metadata["protocol"] if service else "ec2"
    request, text = uuid.uuid4(), _escape(refused.message)
    if protocol in ("json", "rest-json"):
        body = json.dumps({"__type": refused.code, "message": refused.message})
        return _plain(refused.status, "application/x-amz-json-1.1", body, [("x-amzn-errortype", refused.code)])
    if protocol == "rest-xml":
        inner = f"<Code>{refused.code}</Code><Message>{text}</Message>"
        return _plain(refused.status, "application/xml", f"<Error>{inner}<RequestId>{request}</RequestId></Error>")
    if protocol == "query":
        inner = f"<Error><Type>Sender</Type><Code>{refused.code}</Code><Message>{text}</Message></Error>"
        return _plain(refused.status, "text/xml", f"<ErrorResponse>{inner}<RequestId>{request}</RequestId></ErrorResponse>")
    inner = f"<Errors><Error><Code>{refused.code}</Code><Message>{text}</Message></Error></Errors>"
    return _plain(refused.status, "text/xml;charset=UTF-8", f"<Response>{inner}<RequestID>{request}</RequestID></Response>")


def error_code(answer: Answer) -> str:
    """The code that an answer of an error names, or its status."""
    text = answer.body[:2000].decode(errors="replace")
    if "<Code>" in text:
        return text.split("<Code>")[1].split("</Code>")[0]
    if '"__type"' in text:
        return str(json.loads(answer.body).get("__type", answer.status)).split("#")[-1]
    return str(answer.status)


def credential(headers: Mapping[str, str], query: Mapping[str, str]) -> list[str]:
    """Key id, date, region, service and terminator of a signature (version 4), or nothing."""
    found = headers.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition(",")[0]
    return unquote(found or query.get("X-Amz-Credential", "")).strip().split("/")


def _plain(status: int, kind: str, text: str, more: list[tuple[str, str]] | None = None) -> Answer:
    body = text.encode()
    return Answer(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *(more or [])], body)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
