"""The controller's process and the commands that a user types, as real programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from spotsurfer.cli.client import connect
from spotsurfer.model.errors import HostUnfit, SpotsurferError

START_SECONDS = 30
STOP_SECONDS = 20
SELF = [sys.executable, "-m", "spotsurfer"]


class Stage:
    """One configuration; knows the one controller process that it started."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.config = config
        self._folder = folder
        self._log = folder / "controller.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {**os.environ, "SPOTSURFER_CONFIG": str(config)}

    @property
    def pid(self) -> int:
        """The controller's process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the controller and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*SELF, "serve"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            if (
                subprocess.run([*SELF, "list", "--json"], env=self._environment, capture_output=True, check=False).returncode
                == 0
            ):
                return
            time.sleep(0.2)
        raise HostUnfit(f"the controller did not start: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def kill(self) -> None:
        """What a power cut would do to the controller."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the controller as an operator would."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def call(self, *words: str) -> Any:
        """`spotsurfer WORDS --json`, its answer; raises SpotsurferError with what it said."""
        done = subprocess.run([*SELF, *words, "--json"], env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SpotsurferError(f"spotsurfer {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def ask(self, path: str) -> Any:
        """A question to the controller's API."""
        return connect(self.config).get(path)

    def clean(self) -> Any:
        """End every box of this configuration and mend what is left of them."""
        return self.call("local", "clean", "--all")
