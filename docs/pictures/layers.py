"""Draw docs/pictures/layers.svg: the layers of each package, as pyproject.toml declares them.

    python3 docs/pictures/layers.py

It needs Python 3.11 and no cluster.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).with_name("layers.svg")
WIDTH = 960  # pixels, as all measures here
MARGIN = 20
FOLDERS = {
    "slurmkit": ".",
    "slurmkit_accounting": "accounting",
    "slurmkit_containers": "containers",
    "slurmkit_tui": "tui",
}
SUBTITLES = {
    "slurmkit": "each box imports only from the bands below its own",
    "slurmkit_accounting": "imports slurmkit",
    "slurmkit_containers": "imports slurmkit",
    "slurmkit_tui": "imports slurmkit and slurmkit_accounting.read",
}
# The picture brings its own background, so it can be read on a light and on a dark page.
STYLE = """
  text { font-family: -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif; }
  .page { fill: #ffffff; stroke: #d0d7de; }
  .band { fill: #eef3f8; }
  .box { fill: #ffffff; stroke: #5b7da3; }
  .name { fill: #1f2328; text-anchor: middle; dominant-baseline: central; }
  .title { fill: #1f2328; font-weight: 600; }
  .note { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d; }
    .band { fill: #1b2430; }
    .box { fill: #0d1117; stroke: #6f95c0; }
    .name, .title { fill: #f0f6fc; }
    .note { fill: #9198a1; }
  }
"""


class Sizes(NamedTuple):
    """Measures of one panel, in pixels."""

    band: int
    gap: int
    box: int  # the widest a box gets
    font: int
    title: int


LARGE = Sizes(band=46, gap=7, box=210, font=15, title=18)
SMALL = Sizes(band=32, gap=5, box=130, font=11, title=14)


def read_layers() -> dict[str, list[list[str]]]:
    """Return the rows of layers of each package, the highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return {
        contract["containers"][0]: [
            [name.strip() for name in row.replace(":", "|").split("|")]
            for row in contract["layers"]
        ]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    }


def label(package: str, name: str) -> str:
    """Return `cli/` for a folder, `errors.py` for a file."""
    is_folder = (ROOT / FOLDERS[package] / package / name).is_dir()
    return f"{name}/" if is_folder else f"{name}.py"


def panel_height(rows: list[list[str]], sizes: Sizes) -> int:
    """Return the height of a panel with its title."""
    return 3 * sizes.title + len(rows) * (sizes.band + sizes.gap)


def draw_panel(
    package: str, rows: list[list[str]], *, left: int, top: int, width: int, sizes: Sizes
) -> Iterator[str]:
    """Draw the title of a package, a band for each row, and in it a box for each name."""
    yield text("title", left, top + sizes.title, sizes.title, package)
    yield text("note", left, top + 2 * sizes.title + 2, sizes.font - 1, SUBTITLES[package])
    y = top + 3 * sizes.title
    for row in rows:
        yield rectangle("band", left, y, width, sizes.band)
        step = min(sizes.box, (width - 2 * sizes.gap) // len(row))
        x = left + (width - step * len(row)) // 2
        for name in row:
            inner = step - sizes.gap
            yield rectangle(
                "box", x + sizes.gap // 2, y + sizes.gap, inner, sizes.band - 2 * sizes.gap
            )
            middle = x + sizes.gap // 2 + inner // 2
            yield text("name", middle, y + sizes.band // 2, sizes.font, label(package, name))
            x += step
        y += sizes.band + sizes.gap


def rectangle(kind: str, x: int, y: int, width: int, height: int) -> str:
    """Return a rectangle with round corners."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'


def text(kind: str, x: int, y: int, size: int, words: str) -> str:
    """Return one line of text."""
    return f'<text class="{kind}" x="{x}" y="{y}" font-size="{size}">{escape(words)}</text>'


def draw(layers: dict[str, list[list[str]]]) -> str:
    """Draw slurmkit over the whole width, and below it the other packages side by side."""
    below = ["slurmkit_accounting", "slurmkit_tui", "slurmkit_containers"]
    inner = WIDTH - 2 * MARGIN
    parts = [
        *draw_panel(
            "slurmkit", layers["slurmkit"], left=MARGIN, top=MARGIN, width=inner, sizes=LARGE
        )
    ]
    top = 2 * MARGIN + panel_height(layers["slurmkit"], LARGE)
    width = (inner - MARGIN * (len(below) - 1)) // len(below)
    for place, package in enumerate(below):
        left = MARGIN + place * (width + MARGIN)
        parts += draw_panel(package, layers[package], left=left, top=top, width=width, sizes=SMALL)
    height = top + max(panel_height(layers[package], SMALL) for package in below) + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Layers of slurmkit">'
    )
    page = f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", page, *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(read_layers()), "utf-8")
