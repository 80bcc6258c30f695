"""The firmware on QEMU's bare riscv32 machine: the same core and engine, cross-compiled, behind a UART."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from device_agents.contract import BlockRequest, RuntimeOptions
from device_agents.firmware.build import NoCompiler, build
from device_agents.serial.agent import SerialAgent
from device_agents.serial.port import SerialTarget
from tests.serial.host_firmware import builds_folder, running

pytestmark = pytest.mark.slow

MODEL = Path(__file__).parents[1] / "espdl/golden/tiny_images-esp32p4-w8a8.espdl"
SHA256 = hashlib.sha256(MODEL.read_bytes()).hexdigest()
QEMU = "qemu-system-riscv32"
MACHINE = ["-M", "virt", "-m", "128M", "-bios", "none", "-display", "none", "-monitor", "none", "-icount", "shift=0"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in (QEMU, "riscv64-unknown-elf-gcc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    try:
        return build("bt_qemu.elf", builds_folder(tmp_path_factory.getbasetemp()))
    except NoCompiler as error:
        pytest.skip(str(error))


@contextmanager
def machine(image: Path, folder: Path) -> Iterator[SerialAgent]:
    command = [QEMU, *MACHINE, "-serial", "pty", "-kernel", str(image)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = process.stdout.readline().decode()
    found = re.search(r"/dev/pts/\d+", said)
    agent = SerialAgent("qemu", SerialTarget(folder / "locks", port=found[0] if found else said, reset="none"))
    try:
        agent.connect()
        yield agent
    finally:
        agent.close()
        process.kill()
        process.communicate()


def run(agent: SerialAgent) -> tuple[dict[str, np.ndarray], np.ndarray, bool]:
    """(outputs, times, whether the model's own test passed)."""
    agent.deploy(MODEL, SHA256)
    report = agent.load(SHA256, RuntimeOptions())
    rng = np.random.default_rng(4)
    inputs = {name: rng.standard_normal((4, *shape[1:])).astype(np.float32) for name, _, shape in report.inputs}
    outputs = agent.infer(report.session, inputs).outputs
    # The same row each time, so that the same instructions run.
    one = {name: array[:1] for name, array in inputs.items()}
    block = agent.measure(report.session, one, BlockRequest(5, 1, 10**12))
    return dict(outputs), block.samples_ns, agent.test_model(report.session).passed


def test_same_bytes_as_the_host_and_the_same_instructions_every_time(
    image: Path, host_binary: Path, tmp_path: Path
) -> None:
    with machine(image, tmp_path) as agent:
        assert agent.describe().machine == "esp32p4"
        assert agent.self_test()["arithmetic"].startswith("ok")
        outputs, times, passed = run(agent)
    with machine(image, tmp_path) as agent:
        again = run(agent)[1]
    assert passed
    assert len(set(times.tolist())) == 1
    np.testing.assert_array_equal(times, again)
    with running(host_binary, tmp_path, "--target", "esp32p4") as board:
        host = SerialAgent("host", board.target())
        host.connect()
        expected = run(host)[0]
        host.close()
    assert set(outputs) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)
