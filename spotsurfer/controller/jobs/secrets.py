"""Secrets of jobs: fetched from the clouds' secret services, sealed at submission, then forgotten.

The controller never stores or logs a secret, and answers only with names. It fetches the secrets of a cloud at submission, not
the machines. So a job goes on elsewhere with the very values that it began with, machines need no rights of their own, and the
submitter learns at once of a secret that can't be fetched.
"""

from __future__ import annotations

from collections.abc import Callable

from spotsurfer_wire import sealed_objects
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.sealed_objects import Secrets

from spotsurfer.jobspec.secrets import fitting, wrong
from spotsurfer.model.errors import InputMissing, JobFileError
from spotsurfer.model.job import JobSpec, fetched

Fetch = Callable[[str], bytes]  # a secret of a cloud by its name there; raises InputMissing or Denied


class Vault:
    """Seals the secrets of new jobs. `keys_of` are those of a lineage, `source` gives the cloud for a kind of secret."""

    def __init__(self, keys_of: Callable[[str], Keys], source: Callable[[str], Fetch]) -> None:
        self._keys_of, self._source = keys_of, source

    def sealed(self, job: str, spec: JobSpec, given: Secrets) -> bytes | None:
        """The object for the store, or None if the job has no secrets.

        Raises InputMissing for one that was not sent or can't be fetched, JobFileError for a value that no job can receive.
        """
        values = {**given, **{name: self._fetched(spec, name) for name in fetched(spec)}}
        self._check(spec, values)
        return sealed_objects.seal_secrets(values, self._keys_of(job), job) if values else None

    def passed_on(self, array: str, task: str, data: bytes) -> bytes:
        """The secrets of an array, sealed for one of its tasks: a sealed object opens for one job alone."""
        found = sealed_objects.unseal_secrets(data, self._keys_of(array), array)
        return sealed_objects.seal_secrets(found, self._keys_of(task), task)

    def holds(self, job: str, data: bytes, wanted: bytes) -> bool:
        """Whether two sealed objects of a job hold the same secrets."""
        keys = self._keys_of(job)
        return sealed_objects.unseal_secrets(data, keys, job) == sealed_objects.unseal_secrets(wanted, keys, job)

    def _fetched(self, spec: JobSpec, name: str) -> bytes:
        kind, _, place = spec.secrets[name]["from"].partition(":")
        return fitting(spec.secrets[name]["as"], self._source(kind)(place))

    def _check(self, spec: JobSpec, values: Secrets) -> None:
        for name in spec.secrets:
            if name not in values:
                raise InputMissing(f"secrets.{name}: its value was not sent; submit again")
        for name in values:
            if name not in spec.secrets and name != sealed_objects.REGISTRY_AUTH:
                raise JobFileError(f"secrets.{name} was sent, but the job names no such secret")
        for name, why in wrong(spec, values):
            raise JobFileError(f"secrets.{name} {why}")
