"""Reader of image folders: one subfolder per class, or images without labels directly in the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from harness.data.npy_folder import natural_key
from harness.data.preprocess import InputPreprocess, suggest
from harness.data.stored import Array, Stored, check_fits
from harness.data.transform import resize_image
from harness.errors import DataError
from harness.suggest import did_you_mean
from harness.tensors import TensorSpec

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})
CLASSES_FILE = "classes.txt"
_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})


def read_image_folder(
    folder: Path, spec: TensorSpec, declared: InputPreprocess | None
) -> tuple[Stored, InputPreprocess]:
    """Decoded, resized images uint8 [samples, H, W] or [samples, H, W, 3], and the declaration completed.

    A class's label is its place in ``classes.txt`` (one name a line) if there is one; the number itself where all
    folder names are numbers; otherwise the place of its name in sorted order. Raises :class:`DataError`.
    """
    images, labels, notices = _list(folder)
    if declared is None or declared.size is None or declared.layout is None:
        lacks = "a preprocessing" if declared is None else "size and layout in its preprocessing"
        raise DataError(
            f"an image folder needs {lacks}",
            where=folder,
            hint=f"Give --preprocess FILE with, for example:\n{suggest(spec, None)}",
        )
    grey = _is_grey(spec, declared)
    complete = declared.model_copy(
        update={"raw_layout": None, "channel_order": "GRAY" if grey else declared.channel_order}
    )
    shape = (len(images), *declared.size, *(() if grey else (3,)))
    check_fits(shape, np.dtype(np.uint8), f"{len(images)} images", str(folder))
    raw = np.empty(shape, dtype=np.uint8)
    for row, path in enumerate(images):
        raw[row] = resize_image(_decode(path, "L" if grey else "RGB"), complete)
    return Stored({spec.name: raw}, labels, notices), complete


def _is_grey(spec: TensorSpec, declared: InputPreprocess) -> bool:
    if declared.channel_order is not None or declared.layout == "NHW":
        return declared.channel_order == "GRAY" or declared.layout == "NHW"
    channel_axis = {"NCHW": 1, "NHWC": 3}[declared.layout or "NCHW"]
    return len(spec.shape) == 4 and spec.shape[channel_axis] == 1


def _list(folder: Path) -> tuple[list[Path], Array | None, tuple[str, ...]]:
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    classes = [p for p in entries if p.is_dir()]
    loose = [p for p in entries if p.suffix.lower() in SUFFIXES and p.is_file()]
    if classes and loose:
        raise DataError(
            f"images ({loose[0].name}, …) beside class folders ({classes[0].name}, …)",
            where=folder,
            hint="Put every image in the folder of its class, or none.",
        )
    if not classes:
        if not loose:
            raise DataError("no images", where=folder, hint=f"Known suffixes: {', '.join(sorted(SUFFIXES))}.")
        notice = f"{folder.name}: no class folders, so the images have no labels"
        return sorted(loose, key=lambda p: natural_key(p.name)), None, (notice,)
    numbers, notices = _label_numbers(folder, [p.name for p in classes])
    images: list[Path] = []
    labels: list[int] = []
    for path in classes:
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not files:
            raise DataError("a class folder without images", where=path, hint="Remove it or fill it.")
        images += files
        labels += [numbers[path.name]] * len(files)
    return images, np.array(labels, dtype=np.int64), notices


def _label_numbers(folder: Path, names: Sequence[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    listing = folder / CLASSES_FILE
    if listing.is_file():
        try:
            lines = [line.strip() for line in listing.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read: {error}", where=listing) from None
        while lines and not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines):
            if not line or lines.index(line) != number:
                problem = "an empty line" if not line else f"class {line!r} a second time"
                raise DataError(problem, where=f"{listing}:{number + 1}", hint="One class name a line.")
        for name in names:
            if name not in lines:
                raise DataError(
                    f"class folder {name!r} is not in {CLASSES_FILE}", where=folder, hint=did_you_mean(name, lines)
                )
        return {name: lines.index(name) for name in names}, ()
    if all(name.isascii() and name.isdigit() for name in names):
        numbers = {name: int(name) for name in names}
        if len(set(numbers.values())) < len(numbers):
            raise DataError("two class folders have the same number", where=folder)
        return numbers, (f"{folder.name}: class folders are numbers, taken as the labels",)
    return {name: place for place, name in enumerate(sorted(names))}, ()


def _decode(path: Path, mode: str) -> Array:
    try:
        with Image.open(path) as image:
            if image.mode in _DEEP_MODES:
                raise DataError(
                    f"an image of more than 8 bits a channel (mode {image.mode})",
                    where=path,
                    hint="Convert it to 8 bits, or give the data as .npz.",
                )
            upright = ImageOps.exif_transpose(image)
            return np.asarray(upright.convert(mode))
    except UnidentifiedImageError:
        raise DataError("not an image Pillow can decode", where=path) from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"the image cannot be decoded: {error}", where=path) from None
