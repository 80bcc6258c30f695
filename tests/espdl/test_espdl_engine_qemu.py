"""The engine as riscv32 firmware under QEMU: the bytes it has on this machine and the interpreter has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from device_agents.emulated.espdl.interpreter import Interpreter
from device_agents.emulated.espdl.reader import read_model
from device_agents.emulated.espdl.target import Semantics
from tests.espdl.compiled_engine import ENGINE
from tests.espdl.espdl_random import random_model
from tests.espdl.golden_models import FAMILIES, GOLDEN, target_of

COMPILER, QEMU = shutil.which("riscv64-unknown-elf-gcc"), shutil.which("qemu-system-riscv32")
FLAGS = (
    "-march=rv32imac",
    "-mabi=ilp32",
    "-misa-spec=2.2",
    "--specs=picolibc.specs",
    "--oslib=semihost",
    "--crt0=semihost",
    "-std=c99",
    "-O2",
    "-Wl,--defsym=__flash=0x80000000",
    "-Wl,--defsym=__flash_size=0x200000",
    "-Wl,--defsym=__ram=0x80200000",
    "-Wl,--defsym=__ram_size=0x4000000",
    "-Wl,--defsym=__stack_size=0x10000",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        COMPILER is None or QEMU is None, reason="needs riscv64-unknown-elf-gcc and qemu-system-riscv32"
    ),
]


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs each line of ``jobs`` in its folder: MODEL FAMILY SEMANTICS INPUTS OUTPUTS."""
    folder = tmp_path_factory.mktemp("qemu")
    main = folder / "main.c"
    main.write_text(f"""
        #define main run_engine
        #include "{ENGINE / "tools" / "run_engine.c"}"
        #undef main
        int main(void)
        {{
            static char words[6][64], *line[6] = {{words[0], words[1], words[2], words[3], words[4], words[5]}};
            FILE *jobs = fopen("jobs", "r");
            strcpy(words[0], "run_engine");
            while (fscanf(jobs, "%63s %63s %63s %63s %63s", words[1], words[2], words[3], words[4], words[5]) == 5) {{
                if (run_engine(6, line) != 0) {{
                    return 1;
                }}
                inputs = arena = model = NULL;
            }}
            return 0;
        }}
    """)
    sources = [str(path) for path in sorted(ENGINE.glob("*.c"))]
    command = [str(COMPILER), *FLAGS, "-o", str(folder / "firmware.elf"), str(main), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_outputs_under_qemu_are_the_interpreters_to_the_byte(firmware: Path) -> None:
    cases = [(path.read_bytes(), target_of(path)) for path in GOLDEN]
    cases += [
        (random_model(seed, target, bits).to_bytes(), target)
        for seed in range(6)
        for target in FAMILIES
        for bits in (8, 16)
    ]
    jobs, expected = [], {}
    for index, (data, target) in enumerate(cases):
        model = read_model(data)
        (value,) = model.inputs
        dtype = np.dtype(np.int8 if value.dtype == 3 else np.int16)
        info = np.iinfo(dtype)
        samples = (
            np.random.default_rng(index).integers(info.min, info.max, (2, *value.shape), endpoint=True).astype(dtype)
        )
        (firmware / f"m{index}").write_bytes(data)
        (firmware / f"x{index}").write_bytes(samples.tobytes())
        for semantics in Semantics:
            name = f"y{index}{semantics.value}"
            jobs.append(f"m{index} {FAMILIES[target]} {semantics.value} x{index} {name}\n")
            made = Interpreter(model, target, semantics).run({value.name: samples})
            expected[name] = b"".join(made[out.name][i].tobytes() for i in range(2) for out in model.outputs)
    (firmware / "jobs").write_text("".join(jobs))
    command = [str(QEMU), "-M", "virt", "-m", "128", "-nographic", "-bios", "none", "-kernel", "firmware.elf",
               "-semihosting-config", "enable=on,target=native"]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, cwd=firmware, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, values in expected.items():
        assert (firmware / name).read_bytes() == values, name
