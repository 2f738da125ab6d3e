"""People who sign in at the organisation's own provider (OpenID Connect Core 1.0): checks its ID tokens, and asks for them.

An ID token opens the API as a bearer token until it expires; a browser gets one by the authorization code flow with PKCE.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from spotsurfer.model.access import OWNER, OidcRules, Principal, Role
from spotsurfer.model.errors import ConfigError, Denied

# By asymmetric keys alone: with a shared secret, whoever checks a token could make one.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"]
KEYS_LIVE, KEYS_AGAIN = timedelta(hours=12), timedelta(seconds=30)  # the provider's keys; asked again for an unknown one
AWAY = timedelta(seconds=5)
SIGN_IN_LIVES, SIGN_INS_MAX = timedelta(minutes=10), 10_000
ASK_SECONDS = 10.0
LEEWAY_SECONDS = 60  # between the provider's clock and ours
_log = structlog.get_logger(room="web")


@dataclass(frozen=True, slots=True)
class SignIn:
    """A browser on its way to the provider and back. `state` is also in its cookie, so that nobody is signed in as another."""

    state: str
    nonce: str
    verifier: str
    callback: str
    place: str  # where it wanted to go
    ends_at: datetime


class Oidc:
    """One provider. It is asked when it is first needed. May be called from several threads."""

    def __init__(self, rules: OidcRules, now: Callable[[], datetime]) -> None:
        """Raises ConfigError without the libraries."""
        try:
            import authlib  # noqa: F401
            import joserfc  # noqa: F401
            import requests  # noqa: F401
        except ImportError:
            raise ConfigError("[access.oidc] needs libraries: pip install 'spotsurfer[oidc]'") from None
        self._rules, self._now, self._lock = rules, now, threading.RLock()
        self._about: Mapping[str, Any] | None = None
        self._keys: Any = None
        self._keys_at: datetime | None = None
        self._away_at: datetime | None = None  # it was asked then and has not answered since
        self._sign_ins: OrderedDict[str, SignIn] = OrderedDict()

    @property
    def public_url(self) -> str | None:
        """The controller's own address for browsers, if the operator named it."""
        return self._rules.public_url

    # ------------------------------------------------------------ tokens

    def who(self, token: str) -> Principal | None:
        """Whom an ID token names; None if it is not good, or nobody of ours."""
        claims = self._claims(token) if token.count(".") == 2 else None
        return None if claims is None else principal_of(claims, self._rules)

    def _claims(self, token: str, nonce: str | None = None) -> Mapping[str, Any] | None:
        """What a good token says."""
        import requests
        from joserfc import jwt
        from joserfc.errors import JoseError

        expected: dict[str, Any] = {
            "iss": {"essential": True, "value": self._rules.issuer},
            "aud": {"essential": True, "value": self._rules.client_id},
            "exp": {"essential": True},
            "sub": {"essential": True},
        }
        if nonce is not None:
            expected["nonce"] = {"essential": True, "value": nonce}
        try:
            claims = self._decoded(token)
            registry = jwt.JWTClaimsRegistry(now=int(self._now().timestamp()), leeway=LEEWAY_SECONDS, **expected)
            registry.validate(claims)
        except (JoseError, ValueError, TypeError, KeyError) as e:
            _log.warning("oidc.refused", why=f"{type(e).__name__}: {e}")
            return None
        except requests.RequestException as e:
            _log.error("oidc.unreachable", issuer=self._rules.issuer, why=str(e) or type(e).__name__)
            return None
        presenter = claims.get("azp", self._rules.client_id)  # Core 3.1.3.7: whom it was made for, of several audiences
        return claims if presenter == self._rules.client_id else None

    def _decoded(self, token: str) -> dict[str, Any]:
        from joserfc import jwt
        from joserfc.errors import BadSignatureError, InvalidKeyIdError

        keys = self._known_keys(fresh=False)
        try:
            return dict(jwt.decode(token, keys, algorithms=ALGORITHMS).claims)
        except (BadSignatureError, InvalidKeyIdError, ValueError):  # the provider may have new keys
            newer = self._known_keys(fresh=True)
            if newer is keys:
                raise
            return dict(jwt.decode(token, newer, algorithms=ALGORITHMS).claims)

    def _known_keys(self, *, fresh: bool) -> Any:
        """The provider's keys; `fresh`: asked again, if that was not just done."""
        from joserfc.jwk import KeySet

        with self._lock:
            age = None if self._keys_at is None else self._now() - self._keys_at
            if age is None or age >= KEYS_LIVE or (fresh and age >= KEYS_AGAIN):
                self._keys = KeySet.import_key_set(self._asked(self._provider()["jwks_uri"]))
                self._keys_at = self._now()
            return self._keys

    def _provider(self) -> Mapping[str, Any]:
        """What the provider says of itself (OpenID Connect Discovery 1.0)."""
        with self._lock:
            if (about := self._about) is None:
                about = self._asked(self._rules.issuer.rstrip("/") + "/.well-known/openid-configuration")
                if about.get("issuer") != self._rules.issuer:
                    raise ValueError(f"the provider calls itself {about.get('issuer')!r}: set issuer in [access.oidc] to that")
                self._about = about
            return about

    def _asked(self, url: str) -> Any:
        """What it answers. One that did not answer is left alone for a while: each question would keep a thread waiting."""
        import requests

        if self._away_at is not None and self._now() - self._away_at < AWAY:
            raise requests.ConnectionError("it did not answer a moment ago")
        self._away_at = self._now()
        answer = requests.get(url, timeout=ASK_SECONDS, allow_redirects=False)
        answer.raise_for_status()
        self._away_at = None
        return answer.json()

    # ------------------------------------------------------------ browsers

    def begin(self, callback: str, place: str) -> tuple[str, str]:
        """Where the browser must go to sign in, and the `state` that its cookie must hold when it comes back to `callback`.

        Raises Denied if the provider can't be reached.
        """
        from authlib.common.security import generate_token

        now = self._now()
        state, nonce = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        one = SignIn(state, nonce, generate_token(48), callback, place, now + SIGN_IN_LIVES)
        with self._lock:
            self._sign_ins[one.state] = one
            while len(self._sign_ins) > SIGN_INS_MAX:
                self._sign_ins.popitem(last=False)
        with self._client(callback) as client:
            end = self._endpoint("authorization_endpoint")
            url, _ = client.create_authorization_url(end, state=one.state, nonce=one.nonce, code_verifier=one.verifier)
        return str(url), one.state

    def finish(self, url: str, state: str) -> tuple[str, str]:
        """The ID token and the place for a browser that came back to `url`; `state` is of its cookie. Raises Denied."""
        with self._lock:
            one = self._sign_ins.pop(state, None)
        if one is None or self._now() >= one.ends_at:
            raise Denied("This sign-in took too long, or was begun elsewhere: begin again.")
        import requests
        from authlib.common.errors import AuthlibBaseError

        try:
            with self._client(one.callback) as client:
                end = self._endpoint("token_endpoint")
                found = client.fetch_token(end, authorization_response=url, state=one.state, code_verifier=one.verifier)
        except (AuthlibBaseError, requests.RequestException, ValueError) as e:
            _log.warning("oidc.refused", why=f"{type(e).__name__}: {e}")
            raise Denied("The provider did not sign you in: begin again.") from None
        token = str(found.get("id_token") or "")
        claims = self._claims(token, one.nonce)
        if claims is None or principal_of(claims, self._rules) is None:
            raise Denied("You are signed in, but this controller has no place for you: ask its operator.")
        return token, one.place

    def _endpoint(self, name: str) -> str:
        import requests

        try:
            return str(self._provider()[name])
        except (requests.RequestException, ValueError, KeyError) as e:
            _log.error("oidc.unreachable", issuer=self._rules.issuer, why=f"{type(e).__name__}: {e}")
            raise Denied("The provider that signs people in can't be reached: try again, or use a token.") from None

    def _client(self, callback: str) -> Any:
        from authlib.integrations.requests_client import OAuth2Session

        rules = self._rules
        return OAuth2Session(
            client_id=rules.client_id,
            client_secret=rules.client_secret or None,
            token_endpoint_auth_method="client_secret_basic" if rules.client_secret else "none",
            scope="openid email profile",
            redirect_uri=callback,
            code_challenge_method="S256",
            default_timeout=ASK_SECONDS,
        )


def principal_of(claims: Mapping[str, Any], rules: OidcRules) -> Principal | None:
    """Who is meant by these claims of a good token; None if nobody of ours.

    An address that the provider did not verify names nobody: anybody could have entered it.
    """
    name = str(claims.get(rules.name_claim) or "")
    if not OWNER.fullmatch(name) or (rules.name_claim == "email" and claims.get("email_verified") is False):
        return None
    groups = _texts(claims.get(rules.role_claim))
    for role, some in ((Role.OPERATOR, rules.operators), (Role.VIEWER, rules.viewers), (Role.USER, rules.users)):
        if groups & some:
            return Principal(name, role, "oidc")
    return None if rules.users else Principal(name, Role.USER, "oidc")


def _texts(value: object) -> frozenset[str]:
    if isinstance(value, str):
        return frozenset({value})
    return frozenset(map(str, value)) if isinstance(value, Sequence) else frozenset()
