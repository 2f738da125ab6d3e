"""`watch --live`: a screen of the terminal that is drawn anew each second, until a key or the job's end closes it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from spotsurfer.cli import live_view
from spotsurfer.cli.live_view import Screen, Story
from spotsurfer.cli.printing import put
from spotsurfer.model.errors import NoController, SpotsurferError
from spotsurfer.model.job import ENDED
from spotsurfer.ports.clock import SystemClock
from spotsurfer.web.client import PATIENCE_SECONDS, Client, Json, job_path

LOOK_SECONDS = 1.0
LOG_SECONDS = 3.0  # each look at the output lists objects of the store
LOG_LINES = 40
MOMENTS = 1000  # asked for at first; most are steps in between
QUIT = frozenset("qQ\x03\x04")


def possible() -> bool:
    """Whether stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


class Keys:
    """The keyboard, key by key, as long as it is open."""

    def __enter__(self) -> Self:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        if self._fd is not None:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._fd is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def quit(self, seconds: float) -> bool:
        """Whether a key that ends the view was pressed within that time."""
        if self._fd is None:
            time.sleep(seconds)
            return False
        if not select.select([self._fd], [], [], seconds)[0]:
            return False
        pressed = os.read(self._fd, 64)
        return not pressed or bool(QUIT & set(pressed.decode("latin-1")))


class _Watched:
    """What the controller told last of one job, or of all."""

    def __init__(self, client: Client, jobs: Sequence[str]) -> None:
        self._client, self._jobs = client, jobs
        self._one = jobs[0] if len(jobs) == 1 else None
        self._path = job_path(self._one, "timeline") if self._one is not None else "/v1/timeline"
        self._next, self._log_at, self._story = 0, 0.0, Story(self._one is None, jobs if self._one is None else ())
        self._log: list[str] = []
        self.found: list[Json] = []

    def look(self) -> None:
        """Ask the controller. Raises its errors."""
        if self._one is not None:
            self.found = [self._client.get(job_path(self._one))]
        else:
            found = self._client.get("/v1/jobs", ended=bool(self._jobs))["jobs"]
            self.found = [job for job in found if not self._jobs or job["id"] in self._jobs]
        first = {} if self._next else {"last": MOMENTS}
        told = self._client.get(self._path, after=self._next, **first)
        self._next = told["next"]
        self._story.add(told["moments"])
        if self._one is not None and time.monotonic() - self._log_at >= LOG_SECONDS:
            self._log_at = time.monotonic()
            pieces, _ = self._client.framed(job_path(self._one, "log"), tail=LOG_LINES)
            self._log = live_view.log_lines(pieces, LOG_LINES)

    @property
    def over(self) -> bool:
        """Whether all jobs that were named have ended."""
        return bool(self._jobs) and all(job["state"] in ENDED for job in self.found)

    def drawn(self, screen: Screen) -> list[Text]:
        """What there is to see."""
        if not self.found and self._one is not None:
            return [Text(screen.trouble)]
        if self._one is not None:
            return live_view.job_screen(self.found[0], self._story, self._log, screen)
        return live_view.fleet_screen(self.found, self._story, screen)


def show(client: Client, jobs: Sequence[str]) -> None:
    """Draw one job, some, or all open ones (none named). Returns as the jobs that were named have ended.

    Raises KeyboardInterrupt if the user quits, NoController if the controller is away for long.
    """
    watched, trouble, well_at = _Watched(client, jobs), "", time.monotonic()
    watched.look()  # an unknown job is an error in plain words, not on a screen
    console = Console(markup=False, highlight=False, emoji=False)
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while not watched.over:
            screen = Screen(console.width, console.height, SystemClock().now(), trouble)
            live.update(Group(*(_line(text, screen.width) for text in watched.drawn(screen))), refresh=True)
            if keys.quit(LOOK_SECONDS):
                raise KeyboardInterrupt
            try:
                watched.look()
                trouble, well_at = "", time.monotonic()
            except NoController:
                if time.monotonic() - well_at > PATIENCE_SECONDS:
                    raise
                trouble = "The controller does not answer; jobs go on without it. What you see is old."
            except SpotsurferError as e:
                trouble = str(e)
    for job in watched.found:
        put(live_view.ended(job))


def _line(text: Text, width: int) -> Text:
    """Exactly one row of the screen."""
    text.no_wrap, text.overflow = True, "crop"
    text.truncate(width)
    return text
