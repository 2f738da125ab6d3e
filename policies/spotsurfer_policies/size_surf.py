"""`surf` for sizes: plans by earlier runs of the same named step where there are any, else ski rental that learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotsurfer.ports.parameters import Parameter, parameters
from spotsurfer.ports.size import Moment, SizeChoice, SizeTerms
from spotsurfer_policies.size_recall import Recall, Recalling
from spotsurfer_policies.size_rental import Rental


class Surf:
    """One of two policies, by whether the step ran before."""

    def __init__(self, stretch: bool = False) -> None:
        """`stretch` False: no choice of fewer cores than the job uses; True: money alone counts, and the run takes longer."""
        self._rental = Rental(stretch)
        self._recall = Recall(self._rental, stretch)

    def begin(self, terms: SizeTerms) -> tuple[Any, int]:
        """The type that was asked for, or what the plan begins on."""
        return self._recall.begin(terms) if terms.earlier else self._rental.begin(terms)

    def look(self, memory: Any, moment: Moment) -> tuple[Any, SizeChoice]:
        """See the two."""
        return self._recall.look(memory, moment) if isinstance(memory, Recalling) else self._rental.look(memory, moment)


@parameters(
    Parameter("stretch", False, "true: fewer cores than the job uses, too, where work gets cheaper: the run takes longer")
)
def make(settings: Mapping[str, object]) -> Surf:
    """Move when not having moved has cost as much as a move there and back; plan by earlier runs of the same step."""
    stretch = settings.get("stretch", False)
    if not isinstance(stretch, bool) or set(settings) - {"stretch"}:
        raise ValueError("size.surf: its one parameter is stretch, true or false")
    return Surf(stretch)
