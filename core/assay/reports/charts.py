"""Small SVG charts drawn on the server: no script is needed to read them, and every point has its number."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 200, 48, 24, 12
COLOURS = ("#2b6cb0", "#c05621", "#9b2c2c", "#276749", "#6b46c1", "#718096")


def line_chart(
    title: str, xs: Sequence[float], ys: Sequence[float | None], *, band: Sequence[float | None] = ()
) -> str:
    """A line over `xs` with a band of +-`band` around it; a None is a gap."""
    points = [(x, y, band[i] if i < len(band) else None) for i, (x, y) in enumerate(zip(xs, ys, strict=True))]
    known = [(x, y, half or 0.0) for x, y, half in points if y is not None]
    if not known:
        return _frame(title, "", 0.0, 1.0, xs)
    low = min(y - half for _, y, half in known)
    high = max(y + half for _, y, half in known)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    place = _Scale(xs, low, high)
    upper = [f"{place.x(x):.1f},{place.y(y + half):.1f}" for x, y, half in known]
    lower = [f"{place.x(x):.1f},{place.y(y - half):.1f}" for x, y, half in reversed(known)]
    body = f'<polygon points="{" ".join(upper + lower)}" fill="{COLOURS[0]}" fill-opacity="0.18"/>'
    path = " ".join(f"{place.x(x):.1f},{place.y(y):.1f}" for x, y, _ in known)
    body += f'<polyline points="{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>'
    for x, y, half in known:
        label = escape(f"step {x:g}: {y:.3f}" + (f" +- {half:.3f}" if half else ""))
        body += f'<circle cx="{place.x(x):.1f}" cy="{place.y(y):.1f}" r="3" fill="{COLOURS[0]}">'
        body += f"<title>{label}</title></circle>"
    return _frame(title, body, low, high, xs)


def stacked_chart(title: str, xs: Sequence[float], series: Mapping[str, Sequence[float]]) -> str:
    """Bars over `xs`, one on top of another, one colour per series, with a legend in words."""
    totals = [sum(values[i] for values in series.values()) for i in range(len(xs))]
    high = max(totals, default=1.0) or 1.0
    place = _Scale(xs, 0.0, high)
    width = max(1.0, min(24.0, 0.7 * (WIDTH - LEFT) / max(1, len(xs))))
    body = ""
    for i, x in enumerate(xs):
        base = 0.0
        for colour, (name, values) in zip(COLOURS, series.items(), strict=False):
            top = base + values[i]
            body += (
                f'<rect x="{place.x(x) - width / 2:.1f}" y="{place.y(top):.1f}" width="{width:.1f}" '
                f'height="{max(0.0, place.y(base) - place.y(top)):.1f}" fill="{colour}">'
                f"<title>{escape(f'step {x:g}: {name} {values[i]:.4g}')}</title></rect>"
            )
            base = top
    legend = "".join(
        f'<text x="{LEFT + 150 * i}" y="{HEIGHT + 14}" fill="{colour}">&#9632; {escape(name)}</text>'
        for i, (colour, name) in enumerate(zip(COLOURS, series, strict=False))
    )
    return _frame(title, body + legend, 0.0, high, xs)


class _Scale:
    def __init__(self, xs: Sequence[float], low: float, high: float) -> None:
        self.first, self.last = (min(xs), max(xs)) if xs else (0.0, 1.0)
        self.low, self.high = low, high

    def x(self, value: float) -> float:
        span = (self.last - self.first) or 1.0
        inner = WIDTH - LEFT - 40
        return LEFT + 20 + inner * ((value - self.first) / span if self.last > self.first else 0.5)

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - self.low) / ((self.high - self.low) or 1.0))


def _frame(title: str, body: str, low: float, high: float, xs: Sequence[float]) -> str:
    base, first, last = HEIGHT - BOTTOM, min(xs, default=0), max(xs, default=0)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{escape(title)}">'
        f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{base}" stroke="#a0aec0"/>'
        f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH}" y2="{base}" stroke="#a0aec0"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{LEFT + 20}" y="{base + 14}" text-anchor="middle">{first:g}</text>'
        f'<text x="{WIDTH - 20}" y="{base + 14}" text-anchor="middle">{last:g}</text>{body}</svg>'
    )
