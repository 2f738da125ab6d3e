"""Plots as values, and an HTML page of one file that draws them as SVG, readable without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

# ---- Values


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name, in order of x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines, one for each policy."""

    title: str
    x: str
    y: str
    series: Sequence[Series]


@dataclass(frozen=True, slots=True)
class Stripes:
    """One run's timeline: rows of (name, what was held from when to when), in hours."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[float, float, str]]]]  # begin, end, kind: "spot" | "on-demand" | "available"


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of stacked parts; below zero, too. `rows`: name of a bar, its parts as name and value."""

    title: str
    y: str
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Plot = Lines | Stripes | Bars


# ---- Page

WIDTH, HEIGHT, LEFT, TOP = 760, 300, 64, 12
COLOURS = ("#0b66c3", "#c3410b", "#2e8b57", "#7a3fb0", "#b08900", "#5b6770", "#c2185b", "#00838f")
KINDS = {"spot": "#2e8b57", "on-demand": "#c3410b", "available": "#b9c4cc"}
STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430}"
    "table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}"
    "td,th{padding:.2rem .7rem;border-bottom:1px solid #dde3e8;text-align:right;white-space:pre}"
    "td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}text{font:12px system-ui,sans-serif}"
    "text:not([fill]){fill:currentColor}:root{color-scheme:light dark}"
    "@media(prefers-color-scheme:dark){body{background:#14191f;color:#dfe6ec}td,th,path{border-color:#3a444e;stroke:#3a444e}"
    "text[fill],rect,polyline{filter:brightness(1.5)}}"
)


def page(
    title: str, about: Mapping[str, object], columns: Sequence[str], rows: Sequence[Sequence[str]], plots: Sequence[Plot]
) -> str:
    """The whole page as HTML, with foreign text escaped. `about`: the settings behind the figures, and notes."""
    told = ", ".join(f"{escape(str(k))} {escape(str(v))}" for k, v in about.items())
    return _whole(title, f"<p>{told}.</p>{_table(columns, rows)}", plots)


def sheets(title: str, about: str, tables: Sequence[Sheet], plots: Sequence[Plot]) -> str:
    """A page of several tables, with plots between the first one and the others."""
    first, *others = [f"<h2>{escape(t.title)}</h2>{_table(t.columns, t.rows)}" for t in tables]
    return _whole(title, f"<p>{escape(about)}.</p>{first}", plots, "".join(others))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if any(columns) else ''}{body}</table>"


def plain(title: str, plots: Sequence[Plot]) -> str:
    """A page of plots alone, without empty ones."""
    there = [p for p in plots if not isinstance(p, Lines) or any(s.points for s in p.series)]
    return _whole(title, "", there)


def _whole(title: str, about: str, plots: Sequence[Plot], more: str = "") -> str:
    drawn = "".join(f"<h2>{escape(p.title)}</h2>{_drawn(p)}" for p in plots) + more
    title = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>'
        f"<body><h1>{title}</h1>{about}{drawn}</body></html>\n"
    )


def _drawn(plot: Plot) -> str:
    if isinstance(plot, Bars):
        return _bars(plot)
    return _lines(plot) if isinstance(plot, Lines) else _stripes(plot)


def _lines(plot: Lines) -> str:
    xs = [x for s in plot.series for x, _ in s.points]
    ys = [y for s in plot.series for _, y in s.points]
    if not xs:
        return "<p>Nothing to draw.</p>"
    x, y = _Scale(min(xs), max(xs), LEFT, WIDTH - 140), _Scale(min(ys), max(ys), HEIGHT - 40, TOP)
    parts = [_grid(x, y, (min(xs), max(xs)), (min(ys), max(ys)))]
    parts += [_line(s, i, x, y) for i, s in enumerate(plot.series)]
    parts.append(f'<text x="{(LEFT + WIDTH - 140) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(plot.x)}</text>')
    parts.append(f'<text x="12" y="{HEIGHT / 2}" transform="rotate(-90 12 {HEIGHT / 2})">{escape(plot.y)}</text>')
    return _svg(HEIGHT, parts)


def _line(series: Series, number: int, x: _Scale, y: _Scale) -> str:
    colour = COLOURS[number % len(COLOURS)]
    points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in series.points)
    name = f'<text x="{WIDTH - 130}" y="{TOP + 14 + 16 * number}" fill="{colour}">{escape(series.name)}</text>'
    return f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>{name}'


class _Scale:
    """From values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._span = low, (high - low) or 1.0
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) / self._span * self._length


def _grid(x: _Scale, y: _Scale, xs: tuple[float, float], ys: tuple[float, float]) -> str:
    parts = []
    for i in range(5):
        at, level = xs[0] + (xs[1] - xs[0]) * i / 4, ys[0] + (ys[1] - ys[0]) * i / 4
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{at:.4g}</text>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(level) + 4:.1f}" text-anchor="end">{level:.4g}</text>')
        parts.append(f'<path d="M{LEFT} {y(level):.1f}H{WIDTH - 140}" stroke="#dde3e8"/>')
    return "".join(parts)


def _stripes(plot: Stripes) -> str:
    last = max((end for _, pieces in plot.rows for _, end, _ in pieces), default=1.0)
    x = _Scale(0.0, last, 150, WIDTH - 10)
    parts, y = [], TOP
    for name, pieces in plot.rows:
        parts.append(f'<text x="4" y="{y + 14}">{escape(name)}</text>')
        for begin, end, kind in pieces:
            width = max(x(end) - x(begin), 0.5)
            parts.append(f'<rect x="{x(begin):.1f}" y="{y}" width="{width:.1f}" height="18" fill="{KINDS.get(kind, "#999")}"/>')
        y += 26
    parts += [
        f'<text x="{x(last * i / 4):.1f}" y="{y + 14}" text-anchor="middle">{last * i / 4:.4g} h</text>' for i in range(5)
    ]
    return _svg(y + 20, parts)


def _bars(plot: Bars) -> str:
    """Parts above zero are stacked upward, those below it downward."""
    if not any(parts for _, parts in plot.rows):
        return "<p>Nothing to draw.</p>"
    names = list(dict.fromkeys(name for _, parts in plot.rows for name, _ in parts))
    high = max(sum(max(v, 0.0) for _, v in parts) for _, parts in plot.rows)
    low = min(sum(min(v, 0.0) for _, v in parts) for _, parts in plot.rows)
    y, room = _Scale(low, high, HEIGHT - 40, TOP), (WIDTH - 160 - LEFT) / len(plot.rows)
    drawn = []
    for level in sorted({low, 0.0, high}):
        drawn.append(f'<text x="{LEFT - 6}" y="{y(level) + 4:.1f}" text-anchor="end">{level:.4g}</text>')
        drawn.append(f'<path d="M{LEFT} {y(level):.1f}H{WIDTH - 160}" stroke="#dde3e8"/>')
    for i, (label, parts) in enumerate(plot.rows):
        up = down = 0.0
        x, wide = LEFT + i * room, max(room * 0.8, 0.5)
        for name, value in parts:
            begin = up if value >= 0 else down
            top, bottom = sorted((y(begin), y(begin + value)))
            up, down = (up + value, down) if value >= 0 else (up, down + value)
            colour, told = COLOURS[names.index(name) % len(COLOURS)], escape(f"{label}: {name} {value:.6g}")
            place = f'x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{bottom - top:.1f}"'
            drawn.append(f'<rect {place} fill="{colour}"><title>{told}</title></rect>')
        if i % -(-len(plot.rows) // 10) == 0:
            drawn.append(f'<text x="{x + wide / 2:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{escape(label)}</text>')
    for i, name in enumerate(names if len(names) > 1 else ()):
        colour = COLOURS[i % len(COLOURS)]
        drawn.append(f'<text x="{WIDTH - 150}" y="{TOP + 14 + 16 * i}" fill="{colour}">{escape(name)}</text>')
    drawn.append(f'<text x="12" y="{HEIGHT / 2}" transform="rotate(-90 12 {HEIGHT / 2})">{escape(plot.y)}</text>')
    return _svg(HEIGHT, drawn)


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
