"""Takes a picture of each notebook, as `make notebooks` left it, and one of the demo, for docs/gallery.md.

They are kept in git, smaller and with fewer colours, so that the site shows them where no notebook has run.
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = {
    "quickstart": 0, "batching": 1, "million_odes": 1, "physics": 2, "rendering": 0, "sparse": 2, "chains": 0,
    "kernels": 0, "coming_from": 0, "throwing": 0, "settling": 1, "rays": 0,
    "particles": 0,
}  # fmt: skip
"""Notebook -> number of the picture among its pictures."""
WIDTH, COLOURS, LARGEST = 900, 128, 100_000


def pictures(name: str) -> Iterator[Image.Image]:
    """Yields the pictures that a notebook drew, in order."""
    done = nbformat.read(ROOT / "build/notebooks" / f"{name}.ipynb", as_version=4)
    for cell in done.cells:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                yield Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))


def keep(picture: Image.Image, name: str) -> None:
    """Writes a picture with as many of the colours and as large as fits."""
    picture = picture.convert("RGB")
    for width in (WIDTH, 700, 550, 400):
        size = min(width, picture.width), round(picture.height * min(width, picture.width) / picture.width)
        written = io.BytesIO()
        picture.resize(size, Image.Resampling.LANCZOS).quantize(COLOURS).save(written, "PNG", optimize=True)
        if written.tell() < LARGEST:
            break
    (Path(__file__).parent / f"{name}.png").write_bytes(written.getvalue())


def main(demo: str | None = None) -> None:
    """Keeps the pictures of all notebooks, and that of the demo if its path is given."""
    for name, number in CHOSEN.items():
        keep(list(pictures(name))[number], name)
    if demo is not None:
        keep(Image.open(demo), "predator-prey")


if __name__ == "__main__":
    main(*sys.argv[1:])
