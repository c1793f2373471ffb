"""The plot of tests/bench.py: times against numbers of memories, both in decades, as SVG."""

from __future__ import annotations

import math

WIDTH, HEIGHT = 700, 380
LEFT, TOP, ACROSS, DOWN = 70, 20, 420, 300  # the field in it; names of lines stand to its right

# Read on any ground: nothing is painted behind, and the colours follow the reader's scheme.
STYLE = """
text { font: 13px sans-serif; fill: #333 }
path { fill: none; stroke: #888 }
.grid { stroke-opacity: 0.25 }
polyline { fill: none; stroke-width: 2 }
.c0 { color: #0b62c4 } .c1 { color: #b4540a } .c2 { color: #2c7a39 }
.c0 *, .c1 *, .c2 * { stroke: currentColor }
.c0 text, .c1 text, .c2 text { fill: currentColor; stroke: none }
@media (prefers-color-scheme: dark) {
  text { fill: #ccc }
  .c0 { color: #6cb0ff } .c1 { color: #ffa657 } .c2 { color: #7fd18c }
}
"""


class Plot:
    """A field with logarithmic axes."""

    def __init__(self, lines: dict[str, list[tuple[int, float]]]) -> None:
        self.lines = lines
        points = [point for line in lines.values() for point in line]
        self.sizes = sorted({size for size, _ in points})
        self.low = math.floor(min(math.log10(ms) for _, ms in points))
        self.high = math.ceil(max(math.log10(ms) for _, ms in points))

    def x(self, size: float) -> float:
        """Where a number of memories stands."""
        first, last = math.log10(self.sizes[0]), math.log10(self.sizes[-1])
        return round(LEFT + ACROSS * (math.log10(size) - first) / ((last - first) or 1), 1)

    def y(self, ms: float) -> float:
        """Where a time stands."""
        return round(TOP + DOWN * (self.high - math.log10(ms)) / (self.high - self.low), 1)

    def axes(self) -> list[str]:
        """The grid, its numbers, and what they are."""
        bottom, middle = TOP + DOWN, TOP + DOWN / 2
        drawn = [f'<path d="M{LEFT} {TOP}v{DOWN}h{ACROSS}"/>']
        for power in range(self.low, self.high + 1):
            place = self.y(10.0**power)
            drawn.append(f'<path class="grid" d="M{LEFT} {place}h{ACROSS}"/>')
            drawn.append(text(LEFT - 8, place + 4, f"{10.0**power:g}", "end"))
        for size in self.sizes:
            drawn.append(f'<path class="grid" d="M{self.x(size)} {TOP}v{DOWN}"/>')
            drawn.append(text(self.x(size), bottom + 20, f"{size:,}", "middle"))
        drawn.append(text(LEFT + ACROSS / 2, bottom + 44, "memories in the file", "middle"))
        turned = text(0, 0, "milliseconds", "middle")
        return [*drawn, f'<g transform="translate(18 {middle}) rotate(-90)">{turned}</g>']

    def line(self, number: int, name: str) -> list[str]:
        """One line with its points and its name."""
        places = [(self.x(size), self.y(ms)) for size, ms in self.lines[name]]
        path = " ".join(f"{x},{y}" for x, y in places)
        dots = [f'<circle cx="{x}" cy="{y}" r="2" fill="currentColor"/>' for x, y in places]
        end = text(places[-1][0] + 10, places[-1][1] + 4, name, "start")
        return [f'<g class="c{number}">', f'<polyline points="{path}"/>', *dots, end, "</g>"]


def text(x: float, y: float, words: str, anchor: str) -> str:
    """Words at a place."""
    return f'<text x="{x}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def plot(lines: dict[str, list[tuple[int, float]]]) -> str:
    """An SVG file with these lines: (memories, milliseconds) by name."""
    field = Plot(lines)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
    drawn += ["<title>Recall time against memories in the file</title>", f"<style>{STYLE}</style>"]
    drawn += field.axes()
    for number, name in enumerate(lines):
        drawn += field.line(number, name)
    return "\n".join([*drawn, "</svg>", ""])
