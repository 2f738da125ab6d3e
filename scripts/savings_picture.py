"""Draws docs/images/savings.svg: what 48 hours of work cost, from the table that `make bench-policies` wrote.

The table is `e1-whole` of docs/policies.md; `make docs` draws the picture.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs/policies.md", ROOT / "docs/images/savings.svg"
RESTART_HOURS = "0.2"
# Policy of the table -> its words, and its class in the picture; from the dearest to the cheapest.
LINES = {
    "on-demand": ("on-demand machines", "o"),
    "greedy": ("spot until it gets tight", "o"),
    "uniform-progress": ("uniform progress", "o"),
    "surf": ("spotsurfer", "s"),
    "optimum": ("if one knew the future", "f"),
}
ROW = re.compile(r"^\| (\d+) h, ([\d.]+) h \| ([a-z-]+) \| ([\d.]+) \|", re.MULTILINE)

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 44, 52  # of the axes within the picture
DEAREST_USD, STEP_USD = 150, 50
LABEL_PIXELS = 17  # between two labels at least
STYLE = """\
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2328}.t{font-weight:600}.g{stroke:#d1d9e0}.q{fill:#59636e}
path{fill:none;stroke-width:2}.o{stroke:#8c959f}.s{stroke:#0a7d6c;stroke-width:3.5}.f{stroke:#59636e;stroke-dasharray:3 4}
text.s{stroke:none;fill:#0a7d6c;font-weight:600}text.o,text.f{stroke:none;fill:#59636e}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#3d444d}.q,text.o,text.f{fill:#9198a1}.o{stroke:#6e7681}
.s{stroke:#4fd1b5}text.s{fill:#4fd1b5}.f{stroke:#9198a1}}"""


def figures(page: str) -> dict[str, dict[int, float]]:
    """Mean USD by policy and hours until the deadline."""
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    table = page.partition("<!-- e1-whole -->")[2].partition("<!-- /e1-whole -->")[0]
    for hours, restart, policy, usd in ROW.findall(table):
        if restart == RESTART_HOURS and policy in LINES:
            found[policy][int(hours)] = float(usd)
    if set(found) != set(LINES):
        raise SystemExit(f"{PAGE.name} has no figures of {', '.join(sorted(set(LINES) - set(found)))}")
    return found


def drawn(page: str) -> str:
    """The picture."""
    usd = figures(page)
    hours = sorted(usd["surf"])
    across = (WIDTH - LEFT - RIGHT) / (hours[-1] - hours[0])
    down = (HEIGHT - TOP - BOTTOM) / DEAREST_USD

    def x(hour: int) -> float:
        return LEFT + (hour - hours[0]) * across

    def y(amount: float) -> float:
        return HEIGHT - BOTTOM - amount * down

    parts = [f'<text class="t" x="{LEFT}" y="20">What 48 hours of work cost, in USD</text>']
    for amount in range(0, DEAREST_USD + 1, STEP_USD):
        parts.append(f'<path class="g" style="stroke-width:1" d="M{LEFT} {y(amount):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="q" x="{LEFT - 8}" y="{y(amount) + 4:.1f}" text-anchor="end">{amount}</text>')
    for hour in hours:
        parts.append(f'<text class="q" x="{x(hour):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{hour} h</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="q" x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">time until the deadline</text>')
    for policy, place in _labels({p: y(usd[p][hours[-1]]) for p in LINES}).items():
        words, kind = LINES[policy]
        points = " ".join(f"{x(h):.1f} {y(usd[policy][h]):.1f}" for h in hours)
        parts.append(f'<path class="{kind}" d="M{points}"/>')
        parts.append(f'<text class="{kind}" x="{WIDTH - RIGHT + 10}" y="{place + 4:.1f}">{words}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="Cost of 48 hours of work by the time until the deadline, for five policies">\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _labels(places: Mapping[str, float]) -> dict[str, float]:
    """Where labels stand, so that none covers another; the dearest policy comes first."""
    found: dict[str, float] = {}
    for policy, place in places.items():
        found[policy] = max(place, max(found.values(), default=0.0) + LABEL_PIXELS)
    return found


def main() -> None:
    """Draw it."""
    PICTURE.write_text(drawn(PAGE.read_text()))


if __name__ == "__main__":
    main()
