"""The surfed run: follow the job, ask for a move, kill the controller in the middle of it, start it again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from spotsurfer.demo.stage import Stage
from spotsurfer.model.errors import SpotsurferError

Json = dict[str, Any]
LOOK_SECONDS = 0.5
SETTLED_SECONDS = 12  # the user asks for a move when the second machine has worked for so long
LIMIT_SECONDS = 1500


@dataclass
class Story:
    """What happened so far."""

    job: str
    moments: list[Json] = field(default_factory=list)
    show: Json = field(default_factory=dict)
    controller_kills: int = 0
    asked: bool = False


class Director:
    """Plays the user and the accident; everything else is the scenario's and spotsurfer's doing."""

    def __init__(self, stage: Stage, story: Story, tell: Callable[[str], None]) -> None:
        self._stage = stage
        self._story = story
        self._tell = tell

    def play(self, draw: Callable[[Story], None]) -> Story:
        """Until the job has ended; raises SpotsurferError when it takes too long."""
        story = self._story
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            story.show = self._stage.ask(f"/v1/jobs/{story.job}")
            story.moments = self._stage.ask(f"/v1/jobs/{story.job}/timeline")["moments"]
            draw(story)
            if story.show["state"] in ("succeeded", "failed", "cancelled") and self._released():
                return story
            self._act()
            time.sleep(LOOK_SECONDS)
        raise SpotsurferError(f"the job did not end within {LIMIT_SECONDS} s: see `spotsurfer show {story.job}`")

    def _released(self) -> bool:
        return all(a["state"] in ("released", "refused") for a in self._story.show["attempts"])

    def _act(self) -> None:
        second = [a for a in self._story.show["attempts"] if a["number"] == 2 and a["state"] == "running"]
        if second and not self._story.asked and _age(second[0]["since"]) >= SETTLED_SECONDS:
            self._story.asked = True
            self._tell("the user asks for a move: spotsurfer move assembly")
            self._stage.call("move", self._story.job)
        if self._story.asked and not self._story.controller_kills and self._in_the_middle():
            self._tell("the controller is killed with -9 in the middle of the move")
            self._stage.kill()
            self._story.controller_kills += 1
            time.sleep(3)
            self._tell("and started again")
            self._stage.start()

    def _in_the_middle(self) -> bool:
        """The old machine was told to save for the last time, the new one waits."""
        states = {a["state"] for a in self._story.show["attempts"]}
        return "draining" in states or ("running" in states and bool(states & {"booting", "ready"}))


def _age(since: str) -> float:
    return (datetime.now(datetime.fromisoformat(since).tzinfo) - datetime.fromisoformat(since)).total_seconds()  # noqa: TID251
