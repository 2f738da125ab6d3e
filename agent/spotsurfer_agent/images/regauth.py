"""The name of a registry's credentials among a job's secrets."""

from __future__ import annotations

REGISTRY_AUTH = ":registry_auth"  # how a job's containers-auth.json is called among its secrets; the job never sees it
