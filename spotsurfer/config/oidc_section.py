"""[access.oidc]: the provider at which people sign in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from spotsurfer.config.notify_section import lines_of
from spotsurfer.config.section import AbsolutePath, Section
from spotsurfer.model.access import OidcRules

LOCAL = r"http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"  # for tests: anything else must be HTTPS


class OidcSection(Section):
    """[access.oidc]: an OpenID Connect provider, and which of its groups are what here."""

    issuer: Annotated[str, Field(pattern=rf"^(https://[^/?#@\s]+|{LOCAL})(/[^?#\s]*)?$")]
    client_id: Annotated[str, Field(min_length=1)]
    client_secret_file: AbsolutePath | None = None
    public_url: Annotated[str, Field(pattern=rf"^(https://[^/?#@\s]+|{LOCAL})/?$")] | None = None
    name_claim: Annotated[str, Field(min_length=1)] = "email"
    role_claim: Annotated[str, Field(min_length=1)] = "groups"
    operators: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_role_each(self) -> OidcSection:
        named = [*self.operators, *self.viewers, *self.users]
        if len(set(named)) < len(named):
            raise ValueError("names a group twice in operators, viewers and users: each has one role")
        return self

    def as_rules(self) -> OidcRules:
        """With the secret from its file. Raises ConfigError."""
        file = self.client_secret_file
        secret = "" if file is None else lines_of(file, "[access.oidc] client_secret_file")[0]
        groups = frozenset(self.operators), frozenset(self.viewers), frozenset(self.users)
        return OidcRules(self.issuer, self.client_id, secret, self.public_url, self.name_claim, self.role_claim, *groups)
