"""The portable C engine computes the very bytes of the interpreter, and survives bytes that are no model."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics
from tests.espdl.compiled_engine import COMPILER, ENGINE, SANITIZERS, WARNINGS, Engine, Refused, compile_engine
from tests.espdl.espdl_random import random_model
from tests.espdl.espdl_writer import Constant, Graph, Step, Value
from tests.espdl.golden_models import GOLDEN, GOLDEN_8, target_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("engine")
    compile_engine(folder, *WARNINGS, "-O0", *SANITIZERS, main=("run_engine", "fuzz_engine"))
    return Engine(folder / "run_engine", folder)


@pytest.mark.parametrize("path", GOLDEN_8, ids=lambda path: path.stem)
def test_the_self_test_finds_every_value_of_esp_ppq(engine: Engine, path: Path) -> None:
    said = engine.self_test(path.read_bytes(), target_of(path), "reference")
    assert said.startswith("ok ")
    assert int(said.split()[1]) >= len(read_model(path).nodes) - 3


@pytest.mark.parametrize("semantics", list(Semantics))
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_outputs_of_golden_models_are_the_interpreters_to_the_byte(
    engine: Engine, path: Path, semantics: Semantics
) -> None:
    _compare(engine, path.read_bytes(), target_of(path), semantics, 7)


@pytest.mark.parametrize("target", ["esp32s3", "esp32p4", "esp32"])
@pytest.mark.parametrize("bits", [8, 16])
def test_outputs_of_random_models_are_the_interpreters_to_the_byte(engine: Engine, target: str, bits: int) -> None:
    for seed in range(1000, 1010):
        data = random_model(seed, target, bits).to_bytes()
        for semantics in Semantics:
            _compare(engine, data, target, semantics, seed)


def _compare(engine: Engine, data: bytes, target: str, semantics: Semantics, seed: int) -> None:
    model = read_model(data)
    random = np.random.default_rng(seed)
    (value,) = model.inputs
    most = 128 if value.dtype == 3 else 32768
    samples = random.integers(-most, most, (3, *value.shape)).astype(np.int8 if value.dtype == 3 else np.int16)
    samples[0] = random.choice([-most, most - 1], value.shape)
    expected = Interpreter(model, target, semantics).run({value.name: samples})
    bytes_ = b"".join(expected[out.name][i].tobytes() for i in range(len(samples)) for out in model.outputs)
    assert engine.run(data, model, target, semantics.value, list(samples)) == bytes_, f"seed {seed}"


@pytest.mark.parametrize("semantics", ["device", "reference"])
@pytest.mark.parametrize("exponents", [(-127, 127), (127, -127), (0, 54), (60, 0)])
def test_exponents_far_apart_are_refused_or_run_but_overflow_nothing(
    engine: Engine, exponents: tuple[int, int], semantics: str
) -> None:
    first, second = exponents
    shape, most = (1, 4, 4, 2), np.asarray([-32768, 32767] * 16, np.int16)
    window = {"kernel_shape": (2, 2)}
    steps = {
        "RequantizeLinear": {}, "Clip": {}, "Relu": {}, "MaxPool": window, "AveragePool": window,
        "GlobalAveragePool": {}, "Concat": {"axis": 1}, "Sigmoid": {}, "Softmax": {},
    }  # fmt: skip
    for op, attributes in steps.items():
        graph = Graph(
            [Value("x", shape, first, 5)], [Value("y", shape, second, 5)], steps=[Step(op, ("x",), ("y",), attributes)],
            tests_in=[Constant("x", most, shape, (first,))], tests_out=[Constant("nothing", most, shape)],
        )  # fmt: skip
        with contextlib.suppress(Refused):  # a sanitizer's finding is no refusal
            engine.self_test(graph.to_bytes(), "esp32p4", semantics)


def test_a_wrong_test_value_is_named(engine: Engine) -> None:
    graph = Graph(
        [Value("x", (1, 4), -4)], [Value("y", (1, 4), -3)], steps=[Step("RequantizeLinear", ("x",), ("y",))],
        tests_in=[Constant("x", np.asarray([2, 4, 6, 8], np.int8), (1, 4), (-4,))],
        tests_out=[Constant("y", np.asarray([1, 2, 3, 5], np.int8), (1, 4), (-3,))],
    )  # fmt: skip
    with pytest.raises(Refused) as caught:
        engine.self_test(graph.to_bytes(), "esp32s3", "device")
    error = caught.value
    assert (error.status, error.where, error.index, error.expected, error.got) == ("mismatch", "y", 3, 5, 4)


def test_an_unknown_operator_is_named(engine: Engine) -> None:
    graph = Graph([Value("x", (1, 4))], [Value("y", (1, 4))], steps=[Step("GRU", ("x",), ("y",), name="/gru")])
    with pytest.raises(Refused) as caught:
        engine.self_test(graph.to_bytes(), "esp32s3", "device")
    assert (caught.value.status, caught.value.op, caught.value.where) == ("unsupported operator", "GRU", "/gru")


@pytest.mark.parametrize(
    ("place", "value", "status"), [(0, b"P", "bad model"), (4, b"\x01", "encrypted"), (8, b"\xff\xff\xff", "bad model")]
)
def test_headers_that_are_none(engine: Engine, place: int, value: bytes, status: str) -> None:
    data = bytearray(GOLDEN[0].read_bytes())
    data[place : place + len(value)] = value
    with pytest.raises(Refused) as caught:
        engine.self_test(bytes(data), "esp32", "device")
    assert caught.value.status == status


def test_two_thousand_corrupted_models_do_no_harm(engine: Engine, tmp_path: Path) -> None:
    program = engine.folder / "fuzz_engine"
    files = [str(path) for path in GOLDEN]
    for seed in range(4):
        path = tmp_path / f"{seed}.espdl"
        path.write_bytes(random_model(seed, "esp32s3").to_bytes())
        files.append(str(path))
    done = subprocess.run([str(program), "2000", "5", *files], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no finding" in done.stdout
    outcomes = dict(part.strip().rsplit(" ", 1) for part in done.stdout.split(":")[1].split(",")[:-1])
    assert int(outcomes["bad model"]) > 100
    assert int(outcomes["ok"]) > 100


@pytest.mark.slow
def test_the_engine_compiles_for_riscv32(tmp_path: Path) -> None:
    compiler = shutil.which("riscv64-unknown-elf-gcc")
    if compiler is None:
        pytest.skip("riscv64-unknown-elf-gcc is not installed")
    flags = ("-march=rv32imac", "-mabi=ilp32", "-misa-spec=2.2", "--specs=picolibc.specs", "-O2")
    for source in sorted(ENGINE.glob("*.c")):
        out = tmp_path / f"{source.stem}.o"
        command = [compiler, *flags, *WARNINGS, "-c", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
    names = subprocess.run(
        ["riscv64-unknown-elf-nm", *map(str, tmp_path.glob("*.o"))], capture_output=True, text=True, check=True
    ).stdout
    outside = {line.split()[-1] for line in names.splitlines() if " U " in line}
    inside = {line.split()[-1] for line in names.splitlines() if " T " in line}
    libc = outside - inside - {name for name in outside if name.startswith("__")}  # __: the compiler's own arithmetic
    assert libc <= {"memcpy", "memset", "memmove", "memcmp", "memchr", "strcmp", "strncmp", "strlen"}


@pytest.mark.slow
def test_coverage_guided_fuzzing_finds_nothing(tmp_path: Path) -> None:
    compiler = shutil.which("clang")
    if compiler is None:
        pytest.skip("clang is not installed")
    options = (
        "-std=c99",
        "-g",
        "-O1",
        "-fsanitize=fuzzer,address,undefined",
        "-fno-sanitize-recover=all",
        "-DLIBFUZZER",
    )
    try:
        program = compile_engine(tmp_path, *options, main=("fuzz_engine",), compiler=compiler) / "fuzz_engine"
    except AssertionError as error:
        if "libclang_rt" not in str(error):
            raise
        pytest.skip("clang has no libFuzzer here")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index, path in enumerate(GOLDEN):
        (corpus / path.stem).write_bytes(bytes([index]) + path.read_bytes())
    command = [
        str(program),
        str(corpus),
        "-max_total_time=30",
        "-seed=1",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-verbosity=0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
