"""Every way samples come in, and every way they can be wrong."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from harness.data.dataset import Dataset
from harness.data.npy_folder import natural_key
from harness.data.preprocess import Preprocess
from harness.data.source import open_dataset, random_dataset
from harness.errors import DataError, ExitCode
from harness.tensors import TensorSpec

IMAGE = TensorSpec("image", "float32", (1, 1, 4, 5))
BYTES = Preprocess.parse({"layout": "NCHW", "scale": "1/255"})
IDS = (TensorSpec("ids", "int64", (1, 8)), TensorSpec("mask", "int64", (1, 8)))
RNG = np.random.default_rng(3)


def floats(n: int = 6) -> np.ndarray:
    return RNG.random((n, 1, 4, 5), dtype=np.float32)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def refused(spec: Any, inputs: Any = (IMAGE,), preprocess: Preprocess | None = None) -> DataError:
    with pytest.raises(DataError) as caught:
        open_dataset(spec, inputs, preprocess)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.where
    return caught.value


# Round trips -----------------------------------------------------------------------------------------------------

TYPES = st.sampled_from(["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(), n=st.integers(1, 6), names=st.lists(st.sampled_from(["a", "b/0", "c:1"]), min_size=1, unique=True)
)
def test_every_container_gives_the_same_samples_and_digest(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, n: int, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("round")
    arrays, inputs = {}, []
    for name in names:
        dtype = np.dtype(data.draw(TYPES))
        shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=4))
        arrays[name] = data.draw(hnp.arrays(dtype, (n, *shape), elements=finite(dtype)))
        inputs.append(TensorSpec(name, dtype.name, (1, *shape)))
    labels = data.draw(hnp.arrays(np.int64, (n,), elements=st.integers(0, 9)))
    first = Dataset(arrays, None, labels, "memory")
    first.save_npz(folder / "x.npz")
    (folder / "npy").mkdir()
    for name, array in arrays.items():
        np.save(folder / "npy" / f"{name.replace('/', '_').replace(':', '_')}.npy", array)
    np.save(folder / "npy" / "labels.npy", labels)
    for opened in (open_dataset(folder / "x.npz", inputs, None), open_dataset(folder / "npy", inputs, None)):
        assert opened.digest == first.digest
        for name, array in arrays.items():
            np.testing.assert_array_equal(opened.inputs[name], array)
        np.testing.assert_array_equal(opened.labels, labels)


def finite(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    keep = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    return hnp.from_dtype(dtype, **keep)


def test_bytes_with_a_declaration_become_the_models_input(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (6, 4, 5), dtype=np.uint8)
    data = open_dataset(npz(tmp_path / "d.npz", image=images, labels=np.arange(6)), [IMAGE], BYTES)
    np.testing.assert_allclose(data.inputs["image"][:, 0], images / 255, rtol=1e-6)
    assert data.raw is not None
    np.testing.assert_array_equal(data.raw["image"], images)
    assert (len(data), data.inputs["image"].dtype) == (6, np.float32)


def test_arrays_cannot_be_changed(tmp_path: Path) -> None:
    data = open_dataset(npz(tmp_path / "d.npz", image=floats(), labels=np.arange(6)), [IMAGE], None)
    for array in (data.inputs["image"], data.labels, data.rows([0, 1]).inputs["image"]):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_folder_arrays_stay_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", floats())
    array = open_dataset(tmp_path, [IMAGE], None).inputs["image"]
    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_rows_keep_their_order_and_change_the_digest() -> None:
    data = Dataset({"x": np.arange(10.0)}, None, np.arange(10), "memory")
    part = data.rows([7, 2])
    assert part.inputs["x"].tolist() == [7.0, 2.0]
    assert part.labels is not None
    assert part.labels.tolist() == [7, 2]
    assert part.digest != data.rows([2, 7]).digest
    assert data.rows(slice(None)).digest == data.digest


def test_digest_sees_values_types_names_shapes_and_labels_but_not_byte_order_or_strides() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    base = Dataset({"x": values}, None, np.arange(3), "a").digest
    same = [
        Dataset({"x": values.astype(">f4")}, None, np.arange(3), "b"),
        Dataset({"x": np.asfortranarray(values)}, None, np.arange(3), "c"),
    ]
    other = [
        Dataset({"y": values}, None, np.arange(3), "a"),
        Dataset({"x": values + 1}, None, np.arange(3), "a"),
        Dataset({"x": values.astype(np.float64)}, None, np.arange(3), "a"),
        Dataset({"x": values.reshape(3, 2, 2)}, None, np.arange(3), "a"),
        Dataset({"x": values}, None, np.arange(3) + 1, "a"),
        Dataset({"x": values}, None, None, "a"),
    ]
    assert {d.digest for d in same} == {base}
    assert len({base, *(d.digest for d in other)}) == len(other) + 1


def test_saved_bytes_depend_on_the_content_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset({"b": np.ones(3), "a": np.zeros(3)}, None, np.arange(3), "memory")
    data.save_npz(tmp_path / "1.npz")
    monkeypatch.setattr("time.time", lambda: 4e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2096, 1, 1, 0, 0, 0, 0, 1, 0))
    Dataset(dict(reversed(list(data.inputs.items()))), None, np.arange(3), "x").save_npz(tmp_path / "2.npz")
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.npz", "2.npz"]


def test_what_is_saved_can_be_chosen(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (2, 4, 5), dtype=np.uint8)
    data = open_dataset(npz(tmp_path / "d.npz", image=images, labels=[0, 1]), [IMAGE], BYTES)
    data.save_npz(tmp_path / "board.npz", labels=False)
    data.save_npz(tmp_path / "raw.npz", raw=True)
    with np.load(tmp_path / "board.npz") as saved:
        assert list(saved) == ["image"]
        assert saved["image"].dtype == np.float32
    with np.load(tmp_path / "raw.npz") as saved:
        assert saved["image"].dtype == np.uint8
    with pytest.raises(DataError, match="no raw samples"):
        Dataset({"x": np.ones(2)}, None, None, "memory").save_npz(tmp_path / "y.npz", raw=True)


def test_an_input_called_labels_is_an_input(tmp_path: Path) -> None:
    spec = TensorSpec("labels", "int64", (1, 2))
    data = open_dataset(npz(tmp_path / "d.npz", labels=np.ones((3, 2), np.int64)), [spec], None)
    assert data.labels is None
    assert data.inputs["labels"].shape == (3, 2)


def test_spare_arrays_are_named_in_a_notice(tmp_path: Path) -> None:
    data = open_dataset(npz(tmp_path / "d.npz", image=floats(), index=np.arange(6)), [IMAGE], None)
    assert "'index'" in "".join(data.notices)


# Dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "wanted", "notice"),
    [
        (np.float64([0.5, 2.0]), "float32", True),
        (np.float16([0.5, 2.0]), "float32", False),
        (np.array([1, 2], ">f4"), "float32", False),
        (np.int32([1, 2]), "int64", False),
        (np.int64([1, 255]), "uint8", False),
        (np.array([True, False]), "int64", False),
    ],
)
def test_casts_that_lose_nothing_unsaid_are_made(tmp_path: Path, stored: np.ndarray, wanted: str, notice: bool) -> None:
    data = open_dataset(npz(tmp_path / "d.npz", x=stored), [TensorSpec("x", wanted, (1,))], None)
    assert data.inputs["x"].dtype == np.dtype(wanted)
    np.testing.assert_array_equal(data.inputs["x"], stored)
    assert bool(data.notices) == notice


@pytest.mark.parametrize(
    ("stored", "wanted", "message"),
    [
        (np.uint8([1, 2]), "float32", "expected float32, found uint8"),
        (np.int64([1, 2]), "float32", "expected float32, found int64"),
        (np.float32([1, 2]), "int64", "expected int64, found float32"),
        (np.int64([-1, 2]), "uint8", r"-1\.\.2 do not fit uint8"),
        (np.float64([1, 1e300]), "float32", "sample 1 has values beyond float32"),
        (np.array(["a", "b"]), "float32", "expected float32, found str"),
        (np.complex64([1, 2]), "float32", "found complex64"),
        (np.int64([1, 2]), "bool", "expected bool"),
        (np.float32([1, 2]), "bfloat16", "bfloat16"),
    ],
)
def test_other_casts_are_refused(tmp_path: Path, stored: np.ndarray, wanted: str, message: str) -> None:
    path = npz(tmp_path / "d.npz", x=stored)
    with pytest.raises(DataError, match=message):
        open_dataset(path, [TensorSpec("x", wanted, (1,))], None)


def test_bytes_without_a_declaration_show_the_file_to_write(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (6, 4, 5), dtype=np.uint8)
    for array in (images, images[:, np.newaxis]):
        path = npz(tmp_path / "d.npz", image=array)
        error = refused(path)
        assert "--preprocess" in error.hint
        shown = "\n".join(line.strip() for line in error.hint.splitlines()[1:])
        (tmp_path / "p.yaml").write_text(shown)
        data = open_dataset(path, [IMAGE], Preprocess.load(tmp_path / "p.yaml"))
        np.testing.assert_allclose(data.inputs["image"][:, 0], images / 255, rtol=1e-6)


# Bad .npz --------------------------------------------------------------------------------------------------------


def _objects(path: Path) -> Path:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}, {}], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("image.npy", buffer.getvalue())
    return path


def _truncated(path: Path) -> Path:
    npz(path, image=floats())
    path.write_bytes(path.read_bytes()[:-200])
    return path


def _flipped(path: Path) -> Path:
    npz(path, image=floats())
    content = bytearray(path.read_bytes())
    content[300] ^= 0xFF
    path.write_bytes(content)
    return path


def _huge(path: Path) -> Path:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1, 4, 5)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("image.npy", header.getvalue())
    return path


def _with(**arrays: Any) -> Callable[[Path], Path]:
    return lambda path: npz(path, **arrays)


def _spoiled(value: float) -> np.ndarray:
    array = floats()
    array[3, 0, 1, 1] = value
    return array


def _text(path: Path) -> Path:
    path.write_text("not a zip")
    return path


def _single(path: Path) -> Path:
    with path.open("wb") as stream:
        np.save(stream, floats())
    return path


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (_with(imgae=floats()), "no array 'image'", "'imgae'"),
        (_with(x=floats()), "no array 'image'", "Rename it to 'image'"),
        (_with(), "no array 'image'", "inputs are 'image'"),
        (_with(image=floats(), label=np.arange(6)), "called 'label'", "Rename"),
        (_with(image=floats(), y=np.arange(6)), "called 'y'", "Rename"),
        (_with(image=floats(), labels=np.arange(5)), "6 samples but 5 labels", "one label per sample"),
        (_with(image=floats(0)), "empty", ""),
        (_with(image=np.float32(3)), "no sample axis", ""),
        (_with(image=floats()[:, 0]), "expected [samples, 1, 4, 5], found [6, 4, 5]", "--preprocess"),
        (_with(image=floats().transpose(0, 2, 3, 1)), "found [6, 4, 5, 1]", "layout: NCHW"),
        (_with(image=floats().reshape(6, 20)), "found [6, 20]", ""),
        (_with(image=_spoiled(np.nan)), "NaN in sample 3", "Remove"),
        (_with(image=_spoiled(-np.inf)), "infinity in sample 3", "Remove"),
        (_with(image=floats(), labels=np.array([0, 1, np.nan, 0, 0, 0])), "'labels' has NaN in sample 2", ""),
        (_with(image=floats(), labels=np.array([1j] * 6)), "labels have dtype complex128", ""),
        (_objects, "Python objects", "numeric"),
        (_truncated, "not a readable .npz", "truncated"),
        (_flipped, "'image' cannot be read", "damaged"),
        (_huge, "GiB of memory", "fewer samples"),
        (_text, "not a readable .npz", ""),
        (_single, "not a readable .npz", "single .npy"),
    ],
)
def test_bad_npz_files_are_explained(tmp_path: Path, make: Callable[[Path], Path], message: str, hint: str) -> None:
    path = make(tmp_path / "d.npz")
    error = refused(path)
    assert message in error.message
    assert hint in error.hint
    assert error.where == str(path)


def test_inputs_of_different_lengths_or_dimensions_are_named(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz", ids=np.ones((3, 8), np.int64), mask=np.ones((4, 8), np.int64))
    assert "'ids' has 3, 'mask' has 4" in refused(path, IDS).message
    free = [TensorSpec(n, "int64", ("batch", "tokens")) for n in ("ids", "mask")]
    path = npz(tmp_path / "e.npz", ids=np.ones((3, 8), np.int64), mask=np.ones((3, 9), np.int64))
    assert "'tokens' is 9 in input 'mask' and 8 in 'ids'" in refused(path, free).message


def test_what_preprocessing_gives_must_fit_too(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz", image=np.zeros((6, 9, 9), np.uint8))
    error = refused(path, preprocess=BYTES)
    assert "found [6, 1, 9, 9] after preprocessing" in error.message
    assert "size" in error.hint
    error = refused(path, preprocess=Preprocess.parse({"layout": "NCHW", "mean": [1, 2]}))
    assert "2 numbers" in error.message


@pytest.mark.parametrize("name", ["missing.npz", "folder/missing.npz", "not a spec"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    assert "no such file" in refused(tmp_path / name).message


def test_a_close_file_name_is_offered_and_other_kinds_refused(tmp_path: Path) -> None:
    npz(tmp_path / "evaluation.npz", image=floats())
    assert "'evaluation.npz'" in refused(tmp_path / "evalution.npz").hint
    (tmp_path / "data.csv").write_text("1,2")
    assert "'.csv'" in refused(tmp_path / "data.csv").message


def test_models_without_a_sample_axis_are_refused() -> None:
    assert "scalar" in refused("x.npz", [TensorSpec("x", "float32", ())]).message
    assert "no inputs" in refused("x.npz", []).message


# Folders of .npy -------------------------------------------------------------------------------------------------


def test_one_file_per_sample_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        np.save(tmp_path / f"s{number}.npy", np.full((1, 4, 5), number, np.float32))
    np.save(tmp_path / "labels.npy", np.array([1, 2, 10]))
    data = open_dataset(tmp_path, [IMAGE], None)
    assert data.labels is not None
    assert data.inputs["image"][:, 0, 0, 0].tolist() == data.labels.tolist() == [1, 2, 10]


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=1))
def test_natural_order_is_the_order_of_the_numbers(numbers: list[int]) -> None:
    names = [f"img_{n}.x" for n in numbers]
    assert sorted(names, key=natural_key) == [f"img_{n}.x" for n in sorted(numbers)]


def test_bad_npy_folders_are_explained(tmp_path: Path) -> None:
    def folder(**arrays: Any) -> Path:
        made = tmp_path / str(len(list(tmp_path.iterdir())))
        made.mkdir()
        for name, array in arrays.items():
            np.save(made / f"{name}.npy", array, allow_pickle=True)
        return made

    assert "Rename it to image.npy" in refused(folder(images=floats())).hint
    assert "a sample of [2, 4, 5]" in refused(folder(a=floats(1)[0], b=np.ones((2, 4, 5), np.float32))).message
    assert "no array 'mask'" in refused(folder(ids=np.ones((3, 8), np.int64)), IDS).message
    assert "no .npy file besides the labels" in refused(folder(labels=np.arange(3))).message
    assert "Python objects" in refused(folder(image=np.array([{}], dtype=object))).message
    assert "6 samples but 2 labels" in refused(folder(image=floats(), labels=np.arange(2))).message
    broken = folder(image=floats())
    (broken / "image.npy").write_bytes((broken / "image.npy").read_bytes()[:-8])
    error = refused(broken)
    assert ("not a readable .npy" in error.message, error.where) == (True, str(broken / "image.npy"))


# Image folders ---------------------------------------------------------------------------------------------------

SIZED = Preprocess.parse({"size": [4, 5], "layout": "NCHW", "scale": "1/255"})
COLOUR = TensorSpec("image", "float32", (1, 3, 4, 5))


def picture(path: Path, value: int, mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in {"L", "I", "F"} else (value, 0, 0)).save(path)


def test_class_folders_are_labelled_in_sorted_order(tmp_path: Path) -> None:
    for name, value in (("dog", 20), ("cat", 10), ("emu", 30)):
        picture(tmp_path / name / "a.png", value)
        picture(tmp_path / name / "deep" / "b.png", value + 1)
    (tmp_path / "cat" / "readme.txt").write_text("no image")
    (tmp_path / ".cache").mkdir()
    data = open_dataset(tmp_path, [COLOUR], SIZED)
    assert data.labels is not None
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2]
    red = np.rint(data.inputs["image"][:, 0, 0, 0] * 255).astype(int)
    assert red.tolist() == [10, 11, 20, 21, 30, 31]
    assert data.inputs["image"].shape == (6, 3, 4, 5)


def test_classes_txt_and_numbered_folders_say_the_labels(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        picture(tmp_path / "a" / name / "x.png", 1)
    (tmp_path / "a" / "classes.txt").write_text("dog\nfish\ncat\n")
    named = open_dataset(tmp_path / "a", [COLOUR], SIZED).labels
    for name in ("10", "2"):
        picture(tmp_path / "b" / name / "x.png", int(name))
    numbered = open_dataset(tmp_path / "b", [COLOUR], SIZED)
    assert named is not None
    assert numbered.labels is not None
    assert named.tolist() == [2, 0]
    assert numbered.labels.tolist() == [10, 2]
    assert "numbers" in numbered.notices[0]


def test_images_without_class_folders_have_no_labels(tmp_path: Path) -> None:
    for number in (10, 9):
        picture(tmp_path / f"{number}.png", number)
    data = open_dataset(tmp_path, [COLOUR], SIZED)
    assert data.labels is None
    assert "no labels" in data.notices[0]
    assert np.rint(data.inputs["image"][:, 0, 0, 0] * 255).tolist() == [9, 10]


def test_colour_follows_the_models_channels(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 100)
    grey = open_dataset(tmp_path, [IMAGE], SIZED)
    assert grey.raw is not None
    assert grey.raw["image"].shape == (1, 4, 5)
    assert int(grey.raw["image"][0, 0, 0]) == 30  # 0.299 of red
    bgr = open_dataset(tmp_path, [COLOUR], Preprocess.parse({**_keys(SIZED), "channel_order": "BGR"}))
    assert np.rint(bgr.inputs["image"][0, :, 0, 0] * 255).tolist() == [0, 0, 100]


def _keys(preprocess: Preprocess) -> dict[str, Any]:
    assert preprocess.image is not None
    return preprocess.image.model_dump(exclude_unset=True)


def test_the_orientation_a_camera_stored_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (5, 4))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "a.png", exif=exif)
    data = open_dataset(tmp_path, [COLOUR], SIZED)
    assert data.inputs["image"][0, 0, 3, 4] == pytest.approx(1.0)
    assert data.inputs["image"][0, 0, 0, 0] == 0.0


def test_bad_image_folders_are_explained(tmp_path: Path) -> None:
    def fresh() -> Path:
        made = tmp_path / str(len(list(tmp_path.iterdir())))
        made.mkdir()
        return made

    folder = fresh()
    assert "no images" in refused(folder, [COLOUR], SIZED).message
    picture(folder / "cat" / "a.png", 1)
    error = refused(folder, [COLOUR])
    assert "needs a preprocessing" in error.message
    assert "size: [4, 5]" in error.hint
    assert "needs size" in refused(folder, [COLOUR], BYTES).message
    assert "the model has 2" in refused(folder, IDS, SIZED).message
    (folder / "cat" / "bad.png").write_bytes(b"junk")
    error = refused(folder, [COLOUR], SIZED)
    assert error.where == str(folder / "cat" / "bad.png")
    (folder / "cat" / "bad.png").write_bytes((folder / "cat" / "a.png").read_bytes()[:-20])
    picture(folder / "cat" / "bad.png", 1, size=(200, 200))
    (folder / "cat" / "bad.png").write_bytes((folder / "cat" / "bad.png").read_bytes()[:150])
    error = refused(folder, [COLOUR], SIZED)
    assert ("decode" in error.message, error.where) == (True, str(folder / "cat" / "bad.png"))

    folder = fresh()
    picture(folder / "cat" / "a.png", 1)
    (folder / "dog").mkdir()
    assert refused(folder, [COLOUR], SIZED).where == str(folder / "dog")
    picture(folder / "loose.png", 1)
    assert "beside class folders" in refused(folder, [COLOUR], SIZED).message

    folder = fresh()
    picture(folder / "cat" / "a.png", 1)
    for text, message in (("dog\ncats\n", "'cat' is not in"), ("cat\ncat\n", "second time"), ("\ncat\n", "empty line")):
        (folder / "classes.txt").write_text(text)
        assert message in refused(folder, [COLOUR], SIZED).message

    folder = fresh()
    Image.new("I;16", (5, 4)).save(folder / "deep.png")
    assert "more than 8 bits" in refused(folder, [COLOUR], SIZED).message


# module:function -------------------------------------------------------------------------------------------------

MODULE = """
import numpy as np
def dicts():
    for i in range(3):
        yield {"image": np.full((2, 1, 4, 5), i, np.float32), "labels": np.array([i, i])}
def pairs():
    for i in range(3):
        yield np.full((2, 1, 4, 5), i, np.float32), [i, i]
def arrays():
    return [np.full((2, 1, 4, 5), i, np.float32) for i in range(3)]
def one():
    return {"image": np.zeros((6, 1, 4, 5), np.float32)}
def endless():
    while True:
        yield np.zeros((4096, 1, 4, 5), np.float32)
ITERABLE = arrays()
def raises():
    yield np.zeros((2, 1, 4, 5), np.float32)
    raise RuntimeError("disk on fire")
def nothing():
    return iter(())
def hollow():
    yield np.zeros((0, 1, 4, 5), np.float32)
def ragged():
    yield np.zeros((2, 1, 4, 5), np.float32)
    yield np.zeros((2, 1, 4, 6), np.float32)
def uneven():
    yield np.zeros((2, 1, 4, 5), np.float32), [1]
def changing():
    yield np.zeros((2, 1, 4, 5), np.float32), [1, 2]
    yield np.zeros((2, 1, 4, 5), np.float32)
def misnamed():
    yield {"img": np.zeros((2, 1, 4, 5), np.float32)}
def objects():
    yield {"image": np.array([{}, {}], dtype=object)}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "user_batches.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_batches", raising=False)
    return "user_batches"


def test_functions_give_batches_in_several_forms(module: str) -> None:
    dicts = open_dataset(f"{module}:dicts", [IMAGE], None)
    assert dicts.inputs["image"][:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert open_dataset(f"{module}:pairs", [IMAGE], None).digest == dicts.digest
    bare = open_dataset(f"{module}:arrays", [IMAGE], None)
    assert bare.labels is None
    assert open_dataset(f"{module}:ITERABLE", [IMAGE], None).digest == bare.digest
    assert len(open_dataset(f"{module}:one", [IMAGE], None)) == 6


def test_an_endless_function_is_cut_with_a_notice(module: str) -> None:
    data = open_dataset(f"{module}:endless", [IMAGE], None)
    assert len(data) == 10_000
    assert "first 10000 samples" in data.notices[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "RuntimeError: disk on fire"),
        ("nothing", "gave no batch"),
        ("hollow", "no or unequal"),
        ("ragged", "batch 1: samples of 'image'"),
        ("uneven", "no or unequal"),
        ("changing", "those before had"),
        ("misnamed", "no array 'image'"),
        ("objects", "Python objects"),
        ("absent", "has no 'absent'"),
    ],
)
def test_bad_functions_are_explained(module: str, name: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(f"{module}:{name}", [IMAGE], None)
    assert message in caught.value.message


def test_code_runs_only_where_it_is_allowed(module: str) -> None:
    with pytest.raises(DataError, match="not run from here"):
        open_dataset(f"{module}:dicts", [IMAGE], None, allow_code=False)
    assert "user_batches" not in sys.modules
    with pytest.raises(DataError, match="no module 'user_batchs'"):
        open_dataset("user_batchs:dicts", [IMAGE], None)


# Random ----------------------------------------------------------------------------------------------------------


def test_random_data_is_seeded_typed_and_says_so() -> None:
    inputs = (
        IMAGE, *IDS, TensorSpec("b", "uint8", (1, 500)), TensorSpec("c", "int8", (1, 500)),
        TensorSpec("d", "bool", (1, 50)), TensorSpec("e", "float16", (1, 3)),
    )  # fmt: skip
    data = random_dataset(inputs, 5, 11)
    assert data.digest == random_dataset(tuple(reversed(inputs)), 5, 11).digest != random_dataset(inputs, 5, 12).digest
    assert "random" in data.notices[0]
    assert "11" in data.notices[0]
    for spec in inputs:
        assert data.inputs[spec.name].dtype == np.dtype(spec.dtype)
        assert data.inputs[spec.name].shape == (5, *spec.shape[1:])
    assert set(np.unique(data.inputs["ids"])) == {0, 1}
    assert data.inputs["b"].max() > 250
    assert data.inputs["c"].min() < -120
    assert 0 <= data.inputs["image"].min() < data.inputs["image"].max() < 1


@pytest.mark.parametrize(
    ("spec", "n", "message"),
    [
        (TensorSpec("x", "float32", (1, "tokens")), 1, "free dimension 'tokens'"),
        (TensorSpec("x", "float32", ()), 1, "scalar"),
        (TensorSpec("x", "bfloat16", (1, 2)), 1, "bfloat16"),
        (TensorSpec("x", "str", (1, 2)), 1, "give data"),
        (TensorSpec("x", "float32", (1, 2)), 0, "at least 1"),
    ],
)
def test_random_data_that_cannot_be_made(spec: TensorSpec, n: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        random_dataset([spec], n, 0)
