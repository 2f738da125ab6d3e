"""What machines are told of a job: its specification and sealed secrets in the store; of a task before its first machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Fetch, SelfSave, Share, Spec, Step
from spotsurfer_wire.store.port import FileStore, StoreError

from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.core.scheduling import placement
from spotsurfer.model.errors import Conflict, InputMissing
from spotsurfer.model.job import Job, JobId, JobSpec


@dataclass(frozen=True, slots=True)
class Specifications:
    """Writes them once. `interval_seconds`: between saves of jobs that name none; `kill_wait_seconds`: see `Spec`."""

    store: FileStore
    vault: Vault
    interval_seconds: float
    kill_wait_seconds: float

    def ready(self, job: Job) -> None:
        """Before its first machine: a task has no specification of its own until then. Raises StoreError.

        So an array of many tasks is submitted with one object, and what never begins leaves nothing behind.
        """
        if not job.array or self.store.get(object_keys.spec_key(job.id)) is not None:
            return
        data = self.store.get(object_keys.spec_key(job.array))
        if data is None:
            raise StoreError(f"the specification of {job.array} is gone from the store")
        array = json_codec.decode(Spec, data)
        if (bag := self.store.get(object_keys.secrets_key(job.array))) is not None:
            self.store.create(object_keys.secrets_key(job.id), self.vault.passed_on(job.array, job.id, bag))
        wire = self._wire(job.id, job.spec, job.owner, array.inputs, array.input_modes)
        self.store.create(object_keys.spec_key(job.id), json_codec.encode(replace(wire, array=job.array, task=job.task)))

    def lock_away(self, job: JobId, bag: bytes | None) -> None:
        """Write the sealed secrets to the store, before the specification that names them."""
        key = object_keys.secrets_key(job)
        if bag is None or self.store.create(key, bag):
            return
        there = self.store.get(key)  # of an earlier try with a lost answer, or of another submitter
        if there is None or not self.vault.holds(job, there, bag):
            raise Conflict(f"job {job} was submitted already with other secrets")

    def write(self, job: JobId, spec: JobSpec, modes: Mapping[str, int], owner: str) -> None:
        """Of a job, or what the tasks of an array are made of. Raises InputMissing, Conflict, StoreError."""
        prefix = object_keys.input_key(job, "")
        there = {x.key.removeprefix(prefix): x.size for x in self.store.list(prefix)} if modes else {}
        missing = sorted(set(modes) - set(there))
        if missing:
            raise InputMissing(f"input {missing[0]!r} was not uploaded; submit again")
        wire = self._wire(job, spec, owner, {p: there[p] for p in sorted(modes)}, dict(modes))
        wire = replace(wire, array=job) if spec.array else wire
        if not self.store.create(object_keys.spec_key(job), json_codec.encode(wire)):
            raise Conflict(f"job {job} exists already")

    def _wire(self, job: JobId, spec: JobSpec, owner: str, inputs: dict[str, int], modes: dict[str, int]) -> Spec:
        return Spec(
            job=job,
            command=list(spec.command),
            folder=spec.folder,
            inputs=inputs,
            input_modes=modes,
            fetches=[Fetch(f.source, f.to, f.sha256, f.version, f.options) for f in spec.fetches],
            shares=[Share(m.name, m.type, m.source, m.target, m.options, m.read_only) for m in spec.mounts],
            outputs=list(spec.outputs),
            outputs_optional=spec.outputs_optional,
            environment=spec.environment,
            user=spec.user,
            checkpoint_interval_seconds=spec.checkpoint_interval_seconds or self.interval_seconds,
            engine=spec.engine,
            app=_self_save(spec),
            tcp=spec.tcp,
            cpu=spec.cpu,
            before_freeze=list(spec.before_freeze),
            after_restore=list(spec.after_restore),
            before_thaw=list(spec.before_thaw),
            hook_seconds=spec.hook_seconds,
            image=spec.image,
            devices=list(spec.devices),
            gpus=placement.asked(spec),
            entry_point=None if spec.entry_point is None else list(spec.entry_point),
            steps=[Step(s.name, list(s.command), s.protect, s.always) for s in spec.steps],
            ports=[p.port for p in spec.ports],
            time_limit_seconds=spec.time_limit_seconds,
            kill_wait_seconds=self.kill_wait_seconds,
            warn_signal=spec.warn_signal,
            warn_seconds=spec.warn_seconds,
            secrets={name: secret["as"] for name, secret in spec.secrets.items()},
            home=spec.home,
            home_scope=object_keys.home_scope(owner, spec.home) if spec.home else "",
            home_tree=spec.home_tree,
            home_exclude=list(spec.home_exclude),
        )


def _self_save(spec: JobSpec) -> SelfSave | None:
    if not spec.saves_itself:
        return None
    return SelfSave(
        signal=spec.app_signal,
        command=list(spec.app_command),
        file=spec.app_file,
        deadline_seconds=spec.app_deadline_seconds,
        done_file=spec.app_done_file,
        done_output=spec.app_done_output,
        done_exit=spec.app_done_exit,
        restart_command=list(spec.app_restart_command),
    )
