"""Where secrets pass through the controller: they come with a job, are sealed at once, and are forgotten.

Nothing here is written down, logged or answered but names. Those of a cloud are fetched at submission and not by the machines:
so a job goes on elsewhere with the very values that it began with, machines need no rights of their own, and a secret that
can't be had is told to who submits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spotsurfer_agent import sealed
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.images import regauth
from spotsurfer_agent.sealed import Secrets

from spotsurfer.jobsecrets import fitting, wrong
from spotsurfer.model.errors import InputMissing, JobFileError
from spotsurfer.model.job import JobSpec, fetched

Fetch = Callable[[str], bytes]  # a secret of a cloud by its name there; raises InputMissing or Denied


class Vault:
    """Seals the secrets of new jobs. `keys_of` are those of a lineage, `sources` the clouds by the kind of a secret."""

    def __init__(self, keys_of: Callable[[str], Keys], sources: Mapping[str, Fetch]) -> None:
        self._keys_of, self._sources = keys_of, sources

    def sealed(self, job: str, spec: JobSpec, given: Secrets) -> bytes | None:
        """The object for the store, or None where the job has no secrets.

        Raises InputMissing for one that was not sent or can't be fetched, JobFileError for one that no job can be given.
        """
        values = {**given, **{name: self._fetched(spec, name) for name in fetched(spec)}}
        self._check(spec, values)
        return sealed.seal(values, self._keys_of(job), job) if values else None

    def holds(self, job: str, data: bytes, wanted: bytes) -> bool:
        """Whether two sealed objects of a job hold the same."""
        keys = self._keys_of(job)
        return sealed.unseal(data, keys, job) == sealed.unseal(wanted, keys, job)

    def _fetched(self, spec: JobSpec, name: str) -> bytes:
        kind, _, place = spec.secrets[name]["from"].partition(":")
        return fitting(spec.secrets[name]["as"], self._sources[kind](place))

    def _check(self, spec: JobSpec, values: Secrets) -> None:
        for name in spec.secrets:
            if name not in values:
                raise InputMissing(f"secrets.{name}: its value was not sent; submit again")
        for name in values:
            if name not in spec.secrets and name != regauth.REGISTRY_AUTH:
                raise JobFileError(f"secrets.{name} was sent, but the job names no such secret")
        for name, why in wrong(spec, values):
            raise JobFileError(f"secrets.{name} {why}")
