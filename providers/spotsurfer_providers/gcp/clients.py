"""Clients of Google's services with application default credentials. Each is made when it is first needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from google.api_core import exceptions
from google.auth import impersonated_credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport import requests
from google.cloud import compute_v1
from google.oauth2 import sts

from spotsurfer_providers import google_credentials
from spotsurfer_providers.google_credentials import SCOPE

SECONDS = 25.0  # of one call
# Orders are sent once: the caller decides anew before each repetition, also whether another pool is better.
ONCE: dict[str, Any] = {"retry": None, "timeout": SECONDS}
_untyped: Any = (exceptions, impersonated_credentials, requests, sts)  # no function of theirs tells its types
_exceptions, _impersonated, _requests, _sts = _untyped
_EXCHANGE, _ACCESS_TOKEN = "urn:ietf:params:oauth:grant-type:token-exchange", "urn:ietf:params:oauth:token-type:access_token"


class Clients:
    """google-auth keeps and renews credentials, only in memory."""

    def __init__(self, endpoint_url: str | None) -> None:
        self._endpoint_url = endpoint_url  # of all of Google's services, for tests

    @cached_property
    def _credentials(self) -> Any:
        return google_credentials.default(self._endpoint_url is None)[0]  # raises in the call that needs them first

    def _client(self, kind: Any) -> Any:
        elsewhere = {"api_endpoint": self._endpoint_url, "universe_domain": google_credentials.ELSEWHERE}
        options = elsewhere if self._endpoint_url is not None else None
        return kind(credentials=self._credentials, client_options=options)

    @cached_property
    def instances(self) -> Any:
        """VMs."""
        return self._client(compute_v1.InstancesClient)

    @cached_property
    def operations(self) -> Any:
        """Operations of a zone. Our own client: the one that `result()` of an operation makes ignores the endpoint."""
        return self._client(compute_v1.ZoneOperationsClient)

    @cached_property
    def all_operations(self) -> Any:
        """Operations of all zones."""
        return self._client(compute_v1.GlobalOperationsClient)

    @cached_property
    def machine_types(self) -> Any:
        """What can be had in which zone."""
        return self._client(compute_v1.MachineTypesClient)

    # ---- services with one or two calls, without libraries of their own

    def _address(self, service: str) -> str:
        return self._endpoint_url or f"https://{service}.googleapis.com"

    @cached_property
    def _session(self) -> Any:
        return _requests.AuthorizedSession(self._credentials)

    def post(self, service: str, path: str, body: Mapping[str, Any]) -> Any:
        """The answer of a method, with its headers. Raises GoogleAPICallError, GoogleAuthError, RequestException."""
        return _checked(self._session.post(f"{self._address(service)}{path}", json=dict(body), timeout=SECONDS))

    def get(self, service: str, path: str, query: Mapping[str, str]) -> Any:
        """The same, of a method that only reads."""
        return _checked(self._session.get(f"{self._address(service)}{path}", params=dict(query), timeout=SECONDS))

    def token(self, account: str, options: Mapping[str, Any], seconds: int) -> tuple[str, float]:
        """A token of another account, which `options` cut down to some rights, and for how many seconds it is good.

        Raises GoogleAPICallError for a refusal, GoogleAuthError. The controller's account has to be allowed to make tokens of
        that account.
        """

        refusal: list[Any] = []

        def request(*args: Any, **named: Any) -> Any:
            answer = _requests.Request()(*args, **{"timeout": SECONDS, **named})
            refusal[:] = [answer] if answer.status >= 400 else []
            return answer

        own = None
        if self._endpoint_url is not None:
            own = f"{self._endpoint_url}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        whole = _impersonated.Credentials(self._credentials, account, [SCOPE], lifetime=seconds, iam_endpoint_override=own)
        try:
            return self._cut_down(whole, options, request, seconds)
        except GoogleAuthError as e:
            if refusal:  # google-auth does not tell what passes from what doesn't
                raise _exceptions.from_http_status(refusal[0].status, _message(refusal[0].data)) from e
            raise

    def _cut_down(self, whole: Any, options: Mapping[str, Any], request: Any, seconds: int) -> tuple[str, float]:
        whole.refresh(request)
        answer = _sts.Client(f"{self._address('sts')}/v1/token").exchange_token(
            request, _EXCHANGE, whole.token, _ACCESS_TOKEN,
            requested_token_type=_ACCESS_TOKEN, additional_options=dict(options),
        )  # fmt: skip
        return str(answer["access_token"]), float(answer.get("expires_in") or seconds)


def _message(data: bytes) -> str:
    """Of a refusal, which has no token in it."""
    try:
        told = json.loads(data)
        error = told["error"]
        return str(error["message"] if isinstance(error, dict) else told.get("error_description", error))
    except (ValueError, KeyError, TypeError):
        return data[:200].decode(errors="replace")


def _checked(answer: Any) -> Any:
    if answer.status_code != 200:
        raise _exceptions.from_http_response(answer)
    return answer
