"""The C engine, compiled for this machine with sanitizers, and driven as a program."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from device_agents.emulated.espdl.model import Model
from tests.espdl.espdl_writer import Array
from tests.espdl.golden_models import FAMILIES

ENGINE = Path(__file__).resolve().parents[2] / "device_agents" / "firmware" / "engine"
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILER = shutil.which("gcc") or shutil.which("cc")


def compile_engine(out: Path, *options: str, main: Sequence[str], compiler: str | None = None) -> Path:
    """One program for each of ``main``, ``out`` being the folder they and their common objects are put into."""
    sources = sorted(str(path) for path in ENGINE.glob("*.c"))
    _compile([compiler or COMPILER or "cc", *options, "-c", *sources], out)
    objects = [str(path) for path in sorted(out.glob("*.o"))]
    for name in main:
        source = str(ENGINE / "tools" / f"{name}.c")
        _compile([compiler or COMPILER or "cc", *options, "-o", str(out / name), source, *objects], out)
    return out


def _compile(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Refused(Exception):
    status: str
    op: str
    where: str
    what: str
    needed_bytes: int
    index: int
    expected: int
    got: int


@dataclass(frozen=True)
class Engine:
    program: Path
    folder: Path

    def call(self, *arguments: str) -> str:
        done = subprocess.run([str(self.program), *arguments], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode == 2:
            status, op, where, what, *numbers = done.stdout.strip().split("|")
            raise Refused(status, op, where, what, *(int(number) for number in numbers))
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def file(self, model: bytes) -> str:
        path = self.folder / "model.espdl"
        path.write_bytes(model)
        return str(path)

    def self_test(self, model: bytes, target: str, semantics: str) -> str:
        return self.call(self.file(model), FAMILIES[target], semantics)

    def run(self, data: bytes, model: Model, target: str, semantics: str, samples: Sequence[Array]) -> bytes:
        """The bytes of all outputs, sample by sample."""
        inputs, outputs = self.folder / "inputs", self.folder / "outputs"
        inputs.write_bytes(b"".join(np.ascontiguousarray(sample).tobytes() for sample in samples))
        self.call(self.file(data), FAMILIES[target], semantics, str(inputs), str(outputs))
        return outputs.read_bytes()
