"""Declared preprocessing: reading it, and doing it as the board's runner would."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from device_agents.runner.pipeline import Pipeline as BoardPipeline
from harness.data.preprocess import InputPreprocess, Preprocess, suggest
from harness.data.transform import resize_image
from harness.errors import ConfigError
from harness.tensors import TensorSpec

IMAGE = TensorSpec("image", "float32", (1, 1, 28, 28))
RNG = np.random.default_rng(7)


def declare(**keys: Any) -> Preprocess:
    return Preprocess.parse(keys)


def ready(preprocess: Preprocess, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return preprocess.apply({spec.name: array}, [spec])[1][spec.name]


def load(tmp_path: Path, text: str) -> Preprocess:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return Preprocess.load(path)


# Arithmetic ------------------------------------------------------------------------------------------------------


def test_fashion_mnist_bytes_become_floats_in_0_to_1_with_a_channel_axis() -> None:
    images = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    result = ready(declare(layout="NCHW", scale="1/255"), images, IMAGE)
    assert (result.shape, result.dtype) == ((5, 1, 28, 28), np.float32)
    np.testing.assert_allclose(result[:, 0], images / 255.0, rtol=1e-6)
    assert 0.0 <= result.min() <= result.max() <= 1.0


def test_imagenet_style_mean_and_std_are_per_channel_in_the_models_order() -> None:
    images = RNG.integers(0, 256, (2, 6, 4, 3), dtype=np.uint8)
    spec = TensorSpec("x", "float32", (1, 3, 6, 4))
    result = ready(declare(layout="NCHW", channel_order="BGR", mean=[104, 117, 124], std=[1, 2, 4]), images, spec)
    for channel, (mean, std) in enumerate([(104, 1), (117, 2), (124, 4)]):
        np.testing.assert_array_equal(result[:, channel], (images[..., 2 - channel].astype(np.float32) - mean) / std)


@settings(max_examples=80, deadline=None)
@given(
    layout=st.sampled_from(["NCHW", "NHWC", "NHW", None]),
    order=st.sampled_from(["RGB", "BGR", "GRAY", None]),
    stored=st.sampled_from(["HW", "HWC", "CHW"]),
    scale=st.sampled_from([1.0, 1 / 255, 0.5, -3.0]),
    moments=st.sampled_from(["none", "one", "channels"]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_boards_pipeline_gives_bit_for_bit_what_apply_gives(
    layout: Any, order: Any, stored: str, scale: float, moments: str, dtype: Any, seed: int
) -> None:
    if layout is None or (layout == "NHW" and order in {"RGB", "BGR"}):
        order = None
    shape = {"HW": (3, 5, 7), "HWC": (3, 5, 7, 3), "CHW": (3, 3, 5, 7)}[stored]
    images = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    colour = order in {"RGB", "BGR"} or (stored != "HW" and order != "GRAY" and layout not in {None, "NHW"})
    count = {"none": 0, "one": 1, "channels": 3 if colour else 1}[moments]
    preprocess = declare(
        layout=layout,
        channel_order=order,
        raw_layout=None if layout is None else stored,
        scale=scale,
        mean=[0.1, 0.2, 0.3][:count],
        std=[0.5, 0.25, 3.0][:count],
        dtype=dtype,
    )
    spec = TensorSpec("x", dtype, ("n", "a", "b", "c"))
    raw, result = preprocess.apply({"x": images}, [spec])
    on_board = BoardPipeline(asdict(preprocess.to_pipeline([spec], raw))).before(raw["x"])
    assert on_board.dtype == result["x"].dtype == np.dtype(dtype)
    np.testing.assert_array_equal(on_board, result["x"])


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    images = RNG.integers(0, 256, (9, 28, 28), dtype=np.uint8)
    preprocess = declare(layout="NCHW", scale="1/255", mean=0.3)
    whole = ready(preprocess, images, IMAGE)
    monkeypatch.setattr("harness.data.transform._CHUNK_BYTES", 2 * 28 * 28 * 4)
    np.testing.assert_array_equal(ready(preprocess, images, IMAGE), whole)


def test_features_are_scaled_on_their_last_axis() -> None:
    table = RNG.normal(size=(4, 3)).astype(np.float32)
    spec = TensorSpec("x", "float32", (1, 3))
    result = ready(declare(mean=[1, 2, 3], std=[2, 2, 2]), table, spec)
    np.testing.assert_array_equal(result, (table - np.float32([1, 2, 3])) / np.float32(2))


def test_integer_inputs_take_stored_integers_as_they_are() -> None:
    images = RNG.integers(0, 256, (2, 4, 4), dtype=np.uint8)
    spec = TensorSpec("x", "uint8", (1, 4, 4, 1))
    np.testing.assert_array_equal(ready(declare(layout="NHWC"), images, spec)[..., 0], images)
    with pytest.raises(ConfigError, match=r"200\.\.200 do not fit int8"):
        ready(declare(layout="NHWC"), np.full((1, 4, 4), 200, np.uint8), TensorSpec("x", "int8", (1, 4, 4, 1)))
    with pytest.raises(ConfigError, match="cannot hold"):
        ready(declare(layout="NHWC", scale="1/255"), images, spec)


# Geometry --------------------------------------------------------------------------------------------------------


def test_grey_is_pillows_luma() -> None:
    images = RNG.integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)
    raw, _ = declare(layout="NCHW", channel_order="GRAY").apply({"image": images}, [IMAGE])
    expected = [np.asarray(Image.fromarray(image).convert("L")) for image in images]
    np.testing.assert_array_equal(raw["image"], expected)


def test_a_grey_image_becomes_three_equal_channels_for_rgb() -> None:
    images = RNG.integers(0, 256, (2, 4, 5), dtype=np.uint8)
    result = ready(declare(layout="NCHW", channel_order="RGB"), images, TensorSpec("x", "float32", (1, 3, 4, 5)))
    assert result.shape == (2, 3, 4, 5)
    assert all((result[:, c] == images).all() for c in range(3))


def test_stretch_is_pillows_resize() -> None:
    image = RNG.integers(0, 256, (40, 30, 3), dtype=np.uint8)
    declared = InputPreprocess(size=(16, 20), resize="bicubic", layout="NHWC")
    expected = Image.fromarray(image).resize((20, 16), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(resize_image(image, declared), np.asarray(expected))


def test_center_crop_is_resize_to_256_and_crop_224() -> None:
    image = RNG.integers(0, 256, (300, 500, 3), dtype=np.uint8)
    declared = InputPreprocess(size=(224, 224), fit="center-crop", crop_fraction=0.875, layout="NCHW")
    whole = np.asarray(Image.fromarray(image).resize((427, 256), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resize_image(image, declared), whole[16:240, 101:325])


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint8])
def test_images_of_other_types_and_channel_counts_are_resized_by_plane(dtype: type) -> None:
    image = np.full((10, 8, 4), 77, dtype=dtype)
    resized = resize_image(image, InputPreprocess(size=(5, 4), layout="NHWC"))
    assert resized.shape == (5, 4, 4)
    assert (resized == 77).all()


# Reading ---------------------------------------------------------------------------------------------------------


def test_a_file_names_inputs_or_is_about_the_only_image(tmp_path: Path) -> None:
    one = load(tmp_path, "layout: NCHW\nscale: 1/255\nsize: 28\nmean: [0.5]\n")
    named = load(tmp_path, "inputs:\n  image:\n    layout: NCHW\n    scale: 1/255\n    size: [28, 28]\n    mean: 0.5\n")
    mask = TensorSpec("mask", "int64", (1, 16))
    assert one.by_input([mask, IMAGE]) == named.by_input([mask, IMAGE])
    assert one.by_input([mask, IMAGE])["image"].scale == 1 / 255


def test_digest_is_of_the_meaning_not_of_the_text(tmp_path: Path) -> None:
    text = load(tmp_path, "scale: 1/255\nlayout: NCHW\n").digest
    assert text == load(tmp_path, "layout: NCHW\nscale: 0.00392156862745098\nfit: stretch\n").digest
    assert text != load(tmp_path, "layout: NCHW\nscale: 1/256\n").digest


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("layout: NCHW\nsclae: 1/255\n", 2, "unknown key 'sclae'", "'scale'"),
        ("input:\n  image: {}\n", 1, "unknown key 'input'", "'inputs'"),
        ("inputs:\n  image:\n    layout: NCHW\n    chanel_order: RGB\n", 4, "chanel_order", "'channel_order'"),
        ("layout: NCWH\n", 1, "'NCHW', 'NHWC'", ""),
        ("layout: NCHW\nsize: [28, 28, 3]\n", 2, "size", ""),
        ("layout: NCHW\nsize: [28, x]\n", 2, "size", ""),
        ("layout: NCHW\nsize: 0\n", 2, "size", ""),
        ("scale: 1/0\n", 1, "fraction such as 1/255", ""),
        ("scale: .nan\n", 1, "scale", ""),
        ("scale: 0\n", 1, "scale must not be 0", ""),
        ("mean: [0.1, a]\n", 1, "mean", ""),
        ("std: [1, 0]\n", 1, "std must not be 0", ""),
        ("size: 28\n", 1, "size needs layout", ""),
        ("layout: NCHW\ncrop_fraction: 0.5\n", 1, "crop_fraction needs fit", ""),
        ("layout: NCHW\nfit: center-crop\n", 1, "needs size", ""),
        ("layout: NHW\nchannel_order: RGB\n", 1, "no channel axis", ""),
        ("dtype: uint8\nscale: 1/255\n", 1, "cannot hold", ""),
        ("dtype: complex64\n", 1, "dtype", ""),
        ("layout: NCHW\nlayout: NHWC\n", 2, "given twice", ""),
        ("scale: 1/255\ninputs: {}\n", 1, "side by side", "'scale'"),
        ("inputs:\n  image: 3\n", 2, "image", ""),
        ("layout: [\n", 2, "not YAML", ""),
        ("- layout\n", None, "must be a mapping", ""),
        ("", None, "found nothing", ""),
    ],
)
def test_mistakes_are_shown_with_their_line(
    tmp_path: Path, text: str, line: int | None, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.where == str(tmp_path / "p.yaml") + (f":{line}" if line else "")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        Preprocess.load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="cannot read"):
        Preprocess.load(tmp_path / "binary.yaml")


def test_yaml_tags_construct_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not YAML"):
        load(tmp_path, "scale: !!python/object/apply:os.getcwd []\n")


def test_an_input_the_model_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="'imgae'") as caught:
        Preprocess.parse({"inputs": {"imgae": {"scale": 2}}}).by_input([IMAGE])
    assert "'image'" in caught.value.hint


def test_a_single_declaration_needs_an_image_among_several_inputs() -> None:
    specs = [TensorSpec("ids", "int64", (1, 8)), TensorSpec("mask", "int64", (1, 8))]
    with pytest.raises(ConfigError, match="which input"):
        declare(scale=2).by_input(specs)


@pytest.mark.parametrize(
    ("shape", "keys", "message"),
    [
        ((2, 5, 6, 7), {"layout": "NCHW"}, "which axis"),
        ((2, 3, 6, 3), {"layout": "NCHW"}, "which axis"),
        ((2, 5), {"layout": "NCHW"}, "which axis"),
        ((2, 5, 6), {"layout": "NCHW", "raw_layout": "HWC"}, "needs samples of 3 axes"),
        ((2, 5, 6, 3), {"layout": "NCHW", "mean": [1, 2]}, "2 numbers for 3 channel"),
        ((2, 5, 6), {"layout": "NCHW", "std": [1, 2, 3]}, "3 numbers for 1 channel"),
        ((2, 5, 6, 1), {"layout": "NCHW", "channel_order": "BGR"}, "three channels"),
        ((2, 5, 6, 4), {"layout": "NHW", "raw_layout": "HWC"}, "grey of 4"),
    ],
)
def test_stored_shapes_that_do_not_fit_are_named(shape: tuple[int, ...], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare(**keys).apply({"image": np.zeros(shape, np.uint8)}, [IMAGE])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((2, 4, 4), "a"), "str32 cannot be preprocessed"),
        (np.zeros((2, 4, 4), np.complex64), "complex64 cannot be preprocessed"),
        (np.zeros((2, 0, 4), np.uint8), "are empty"),
    ],
)
def test_stored_values_that_are_no_images_are_named(array: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare(layout="NCHW", size=28, scale="1/255").apply({"image": array}, [IMAGE])


def test_the_files_in_the_documentation_load(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "data-and-metrics.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    loaded = [load(tmp_path, block) for block in blocks]
    assert len(loaded) == 3
    assert loaded[0] == declare(layout="NCHW", scale=1 / 255)
    assert set(loaded[2].inputs) == {"image", "features"}


def test_models_of_several_inputs_have_no_pipeline() -> None:
    specs = [IMAGE, TensorSpec("mask", "int64", (1, 16))]
    with pytest.raises(ConfigError, match="2"):
        declare(layout="NCHW").to_pipeline(specs, {"image": np.zeros((1, 28, 28))})


@pytest.mark.parametrize(
    ("shape", "stored"), [((1, 1, 28, 28), (28, 28)), ((1, 3, 32, 32), (32, 32, 3)), ((1, 16, 16, 3), (64, 64, 3))]
)
def test_the_suggested_file_works(tmp_path: Path, shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    spec = TensorSpec("x", "float32", shape)
    text = "\n".join(line.strip() for line in suggest(spec, stored).splitlines())
    result = ready(load(tmp_path, text), np.zeros((2, *stored), np.uint8), spec)
    assert result.shape == (2, *shape[1:])
