"""Quantizer backends that do what real ones have been seen to do. Loaded by quantize workers in tests."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness.errors import DataError
from harness.quantize.ort_backend import OrtBackend
from harness.recipes.recipe import Recipe


class _Backend:
    name = "test"

    def __init__(self, act: Callable[[Path], None], phase: Callable[[str], None]) -> None:
        self._act = act
        self._phase = phase

    def version(self) -> str:
        return "1"

    def quantize(self, model: Path, calibration: Path, recipe: Recipe, out: Path) -> tuple[str, ...]:
        self._phase("misbehaving")
        out.write_bytes(b"half a file")
        self._act(out)
        return ()


def _factory(act: Callable[[Path], None]) -> Callable[..., _Backend]:
    return lambda breathe, phase: _Backend(act, phase)


def _hang(out: Path) -> None:
    while True:
        pass


def _hang_in_native_code_with_descendants(out: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    out.with_suffix(".pids").write_text(f"{os.getpid()} {child.pid}")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(600)


def _hog(out: Path) -> None:
    held = []
    while True:
        held.append(np.ones(1 << 22, dtype=np.uint8))
        time.sleep(0.001)


def _hog_at_once(out: Path) -> None:
    np.ones(1 << 40, dtype=np.uint8)


def _segfault(out: Path) -> None:
    ctypes.string_at(0)


def _abort(out: Path) -> None:
    os.write(2, b"terminate called after throwing an instance of 'std::logic_error'\n")
    os.abort()


def _leave(out: Path) -> None:
    os._exit(7)


def _raise(out: Path) -> None:
    raise IndexError("list index out of range in the rewriter")


def _bad_data(out: Path) -> None:
    raise DataError("the calibration data is empty", hint="give some")


def _say_done(out: Path) -> None:
    """Returns as if all were well."""


hang = _factory(_hang)
hang_deep = _factory(_hang_in_native_code_with_descendants)
hog = _factory(_hog)
hog_at_once = _factory(_hog_at_once)
segfault = _factory(_segfault)
abort = _factory(_abort)
leave = _factory(_leave)
raising = _factory(_raise)
bad_data = _factory(_bad_data)
lying = _factory(_say_done)


def copying(breathe: Callable[[], None], phase: Callable[[str], None]) -> OrtBackend:
    """Claims to quantize and returns the float model."""

    class Copying(OrtBackend):
        def quantize(self, model: Path, calibration: Path, recipe: Recipe, out: Path) -> tuple[str, ...]:
            out.write_bytes(model.read_bytes())
            return ()

    return Copying(breathe, phase)


def noisy(breathe: Callable[[], None], phase: Callable[[str], None]) -> OrtBackend:
    """Prints as libraries do, in Python and in C, then works."""
    print("Finding optimal threshold for each tensor")
    sys.stdout.flush()
    os.write(1, b"x" * 100_000)
    return OrtBackend(breathe, phase)


ALL = {
    name: f"misbehaving_backends:{name.replace('-', '_')}"
    for name in (
        "hang", "hang-deep", "hog", "hog-at-once", "segfault", "abort", "leave", "raising", "bad-data", "lying",
        "copying", "noisy",
    )
}  # fmt: skip
