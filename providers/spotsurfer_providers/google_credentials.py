"""Application default credentials, for everything that asks Google."""

from __future__ import annotations

from typing import Any

SCOPE = "https://www.googleapis.com/auth/cloud-platform"  # what an account may do, its roles say
ELSEWHERE = "elsewhere.example"


def default(is_google: bool = True) -> tuple[Any, str | None]:
    """Credentials and their own project, as far as they know one. Raises GoogleAuthError, ModuleNotFoundError.

    `is_google` is false if the services are asked at another address. For an account of Google's own universe google-auth asks
    Google beside each call in which regions it may be used, whatever the address of the call.
    """
    import google.auth

    default: Any = google.auth.default  # its types are those of the class that all credentials share
    found, project = default(scopes=[SCOPE])
    return found if is_google else found.with_universe_domain(ELSEWHERE), project
