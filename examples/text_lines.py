"""Lines of text drawn with Pillow, whose labels are exact because the text was there first.

Words are those of boardtune's own licence, fonts those of Matplotlib (DejaVu): both are there wherever boardtune is.
The same seed gives the same text everywhere, and the same pixels with the same versions of Pillow and Matplotlib.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
)
LICENCE = Path(__file__).resolve().parents[1] / "LICENSE"
LONGEST = 22
"""Characters of a line."""
PADDING = 128
"""Grey right of a line: the level nearest to PP-OCR's own padding, zero after ``(x / 255 - 0.5) / 0.5``."""


@cache
def words() -> tuple[str, ...]:
    """Every word of the licence of two letters or more, sorted."""
    return tuple(sorted(set(re.findall(r"[A-Za-z]{2,}", LICENCE.read_text(encoding="utf-8")))))


def draw_text(generator: np.random.Generator, vocabulary: Sequence[str]) -> str:
    """One to three words, numbers and dates, with single spaces between, at most :data:`LONGEST` characters."""
    parts: list[str] = []
    while True:
        part = _draw_part(generator, vocabulary)
        if parts and len(" ".join([*parts, part])) > LONGEST:
            break
        parts.append(part)
        if len(parts) == 3 or generator.random() < 0.25:
            break
    return " ".join(parts)


def _draw_part(generator: np.random.Generator, vocabulary: Sequence[str]) -> str:
    kind = generator.random()
    if kind < 0.75:
        word = str(generator.choice(np.array(vocabulary)))
        return word.upper() if generator.random() < 0.1 else word
    if kind < 0.9:
        return str(generator.integers(0, 10 ** int(generator.integers(2, 7))))
    day, month, year = (int(generator.integers(low, high)) for low, high in ((1, 29), (1, 13), (1990, 2030)))
    return f"{day:02d}.{month:02d}.{year}"


def draw_line(
    generator: np.random.Generator, text: str, size: tuple[int, int], *, upside_down: bool = False
) -> npt.NDArray[np.uint8]:
    """``text`` as uint8 [height, width], grey: any font, size, ink and paper, a little turned, blurred and noisy.

    Scaled to the height, its aspect kept unless it is too wide; :data:`PADDING` on the right, whichever way up it is.
    """
    height, width = size
    font = _font(str(generator.choice(FONTS)), int(generator.integers(14, 40)))
    left, top, right, bottom = font.getbbox(text)
    margins = [int(margin) for margin in generator.integers(1, 8, 4)]
    drawn = (int(right - left) + margins[0] + margins[2], int(bottom - top) + margins[1] + margins[3])
    paper = int(generator.integers(120, 256))
    ink = int(generator.integers(0, paper - 50))
    if generator.random() < 0.3:
        paper, ink = 255 - paper, 255 - ink
    image = Image.new("L", drawn, paper)
    ImageDraw.Draw(image).text((margins[0] - left, margins[1] - top), text, fill=ink, font=font)
    angle = float(generator.uniform(-2, 2))
    image = image.rotate(angle, resample=Image.Resampling.BICUBIC, fillcolor=paper, expand=True)
    image = image.filter(ImageFilter.GaussianBlur(float(generator.uniform(0, 1.2))))
    noise = generator.normal(0, generator.uniform(0, 12), (image.height, image.width))
    image = Image.fromarray(np.clip(np.asarray(image, np.float64) + noise, 0, 255).astype(np.uint8))
    if upside_down:
        image = image.transpose(Image.Transpose.ROTATE_180)
    scaled = min(width, max(1, round(image.width * height / image.height)))
    line = np.full((height, width), PADDING, np.uint8)
    line[:, :scaled] = np.asarray(image.resize((scaled, height), Image.Resampling.BILINEAR))
    return line


@cache
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"), size)
