"""Draws docs/images/session.svg: a real session of `spotsurfer`, as a terminal shows it, in light and dark.

`.venv/bin/python scripts/terminal_picture.py --record` (root) plays the session anew and keeps it as docs/images/session.cast
in the format of asciinema. Without `--record` the picture is drawn from what was kept.
"""

from __future__ import annotations

import html
import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAST, PICTURE = ROOT / "docs/images/session.cast", ROOT / "docs/images/session.svg"
COLUMNS, SILENT_SECONDS, LIMIT_SECONDS = 104, 0.2, 600.0
PROMPT = "$ "
PROGRAM = """\
import hashlib, time
digest = b"start"
for step in range(1, 41):
    for _ in range(100_000): digest = hashlib.sha256(digest).digest()
    print(f"step {step}: {digest.hex()[:16]}", flush=True)
    time.sleep(0.9)
open("answer.txt", "w").write(digest.hex())
"""
# Lines that are typed, and what is waited for before the next one; None: it is typed at once.
SESSION = (
    ("spotsurfer submit --name count --in count.py --out answer.txt -- python3 count.py", "step 5:"),
    ("spotsurfer local reclaim --notice 30s    # the cloud wants its machine back", None),
    ("spotsurfer watch count", None),
    ("spotsurfer report count | head -n 4", None),
)
SCENERY = """\
export SPOTSURFER_CONTROLLER__DATA_DIR=$PWD/data
spotsurfer serve >serve.log 2>&1 &
until spotsurfer list >/dev/null 2>&1; do sleep 1; done
"""

# ---- Recording


def record() -> None:
    """Play the session in a pseudo-terminal. Raises CalledProcessError or TimeoutError if a command fails or does not end."""
    with tempfile.TemporaryDirectory(prefix="session-") as place:
        Path(place, "count.py").write_text(PROGRAM)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "SPOTSURFER_CONTROLLER__DATA_DIR": f"{place}/data", "TERM": "xterm-256color"}
        environment |= {"COLUMNS": str(COLUMNS), "LINES": "50", "SPOTSURFER_RUNTIME__PATH": str(ROOT / "build/runtime")}
        shell = subprocess.Popen(
            ["bash", "-c", f"{SCENERY}\ntouch ready; wait"], cwd=place, env=environment, start_new_session=True
        )
        try:
            _until(lambda: Path(place, "ready").exists())
            _keep(_played(place, environment))
        finally:
            os.killpg(shell.pid, 15)
            shell.wait()
            subprocess.run(["spotsurfer", "local", "clean", "--all"], env=environment, cwd=place, check=False)


def _played(place: str, environment: dict[str, str]) -> Iterator[tuple[float, str]]:
    """What the terminal showed, and when; waits between commands are left out."""
    clock = 0.0
    for typed, until in SESSION:
        yield clock, f"{PROMPT}{typed}\r\n"
        for pause, text in _shown(typed, place, environment):
            clock += pause
            yield clock, text
        if until is not None:
            asked = ["spotsurfer", "logs", "count"]
            _until(lambda asked=asked, until=until: until in _said(asked, place, environment))


def _shown(typed: str, place: str, environment: dict[str, str]) -> Iterator[tuple[float, str]]:
    """A command's output with the pauses before it."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", typed], cwd=place, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    last = end = time.monotonic()
    while (end := time.monotonic()) and (running.poll() is None or select.select([ours], [], [], SILENT_SECONDS)[0]):
        if select.select([ours], [], [], SILENT_SECONDS)[0]:
            try:
                text = os.read(ours, 1 << 16).decode(errors="replace")
            except OSError:  # the last process has closed it
                break
            yield end - last, text
            last = end
    os.close(ours)
    if running.wait():
        raise subprocess.CalledProcessError(running.returncode, typed)


def _said(asked: list[str], place: str, environment: dict[str, str]) -> str:
    return subprocess.run(asked, cwd=place, env=environment, capture_output=True, text=True, check=False).stdout


def _until(good: object) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not good():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError("what the session waits for did not come")
        time.sleep(0.5)


def _keep(shown: Iterator[tuple[float, str]]) -> None:
    lines = [json.dumps([round(at, 2), "o", text], ensure_ascii=False) for at, text in shown]
    header = json.dumps({"version": 2, "width": COLUMNS, "height": 50})
    CAST.write_text("\n".join([header, *lines]) + "\n")


# ---- Drawing

CHARACTER, LINE, EDGE = 7.8, 18, 16  # of a cell and of the frame, in pixels
STYLE = """\
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;fill:#1f2328}
.w{fill:#f6f8fa;stroke:#d1d9e0}.p{fill:#0a7d6c;font-weight:600}.d{fill:#59636e}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.w{fill:#0d1117;stroke:#3d444d}.p{fill:#4fd1b5}.d{fill:#9198a1}}"""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d) UTC")


def screen(cast: str) -> list[str]:
    """The lines that the session left behind. A carriage return writes over a line; moments are told without their date."""
    shown = CONTROL.sub("", "".join(json.loads(line)[2] for line in cast.splitlines()[1:])).replace("\r\n", "\n")
    return [MOMENT.sub(r"\1", line.rpartition("\r")[2]).rstrip() for line in shown.rstrip().split("\n")]


def drawn(cast: str) -> str:
    """The picture."""
    lines = [line[: COLUMNS - 1] + "…" if len(line) > COLUMNS else line for line in screen(cast)]
    width, height = round(COLUMNS * CHARACTER) + 2 * EDGE, len(lines) * LINE + 2 * EDGE
    rows = [_row(line, EDGE + (n + 1) * LINE - 4) for n, line in enumerate(lines) if line]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="A session of spotsurfer: a job is submitted, its machine is reclaimed, and it goes on elsewhere">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="w" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def _row(line: str, y: int) -> str:
    command, mark, comment = line.partition("    #") if line.startswith(PROMPT) else (line, "", "")
    text = html.escape(command, quote=False)
    if line.startswith(PROMPT):
        text = f'<tspan class="p">{text}</tspan>' + (f'<tspan class="d">{html.escape(mark + comment)}</tspan>' if mark else "")
    return f'<text x="{EDGE}" y="{y}">{text}</text>'


def main() -> None:
    """Record if asked to, then draw."""
    if "--record" in sys.argv[1:]:
        record()
    PICTURE.write_text(drawn(CAST.read_text()))


if __name__ == "__main__":
    main()
