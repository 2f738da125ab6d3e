"""Engine `none`: nothing is saved, the job starts over on the next machine. The last rung of the ladder."""

from __future__ import annotations

from spotsurfer_agent.engines.hosted import Hosted
from spotsurfer_agent.engines.port import EngineError, SaveRequest
from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.protocol import SaveFacts, Spec


class NoneEngine(Hosted):
    """The job of one base folder, without checkpoints."""

    name = "none"

    def save(self, request: SaveRequest) -> SaveFacts:
        """Refused."""
        raise EngineError(
            "save", f"{request.checkpoint} can't be made: the job is run without checkpoints and starts over elsewhere"
        )

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Refused."""
        raise EngineError(
            "refused",
            f"checkpoint {manifest.id} of {spec.job} was made by engine {manifest.engine!r}, this job is run without one",
        )
