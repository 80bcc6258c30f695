"""A short computation with a known answer, and what a newcomer should know about the board. Runs in a child."""

from __future__ import annotations

import base64
import os
import tempfile
from typing import Dict, List

from .platform import Options, Platform

# y = x + x for float32 [4], opset 13, IR 7: runs on every ONNX Runtime the runner accepts.
_DOUBLE = base64.b64decode(
    "CAc6OgoTCgF4CgF4EgF5GgNhZGQiA0FkZBIBZ1oPCgF4EgoKCAgBEgQKAggEYg8KAXkSCgoICAESBAoCCARCBAoAEA0="
)

_SLEEP_S = 0.05


def self_test(platform: Platform, folder: str, seconds: float) -> Dict[str, str]:
    """Findings in words by name; each starts with ``ok`` or ``problem``.

    ``folder`` is one the runner may write in; ``seconds`` bounds the noise test.
    """
    return {
        "arithmetic": _arithmetic(),
        "runtime": _runtime(platform, folder),
        "clock": _clock(platform),
        "noise": _noise(platform, seconds),
        "temperature": _temperature(platform),
    }


def _arithmetic() -> str:
    import numpy as np

    n = 64
    matrix = (np.arange(n * n, dtype=np.int64).reshape(n, n) % 97) - 48
    product = matrix @ matrix.T
    # The trace of M·Mᵀ is the sum of the squares of M.
    good = int(np.trace(product)) == int((matrix * matrix).sum()) == sum((k % 97 - 48) ** 2 for k in range(n * n))
    return "ok: integer matrix product is exact" if good else "problem: a matrix product came out wrong"


def _runtime(platform: Platform, folder: str) -> str:
    import numpy as np

    options = Options([("CPUExecutionProvider", {})], 1, 1, "all", {})
    with tempfile.TemporaryDirectory(dir=folder) as private:
        path = os.path.join(private, "double.onnx")
        with open(path, "wb") as file:
            file.write(_DOUBLE)
        session = platform.make_session(path, options)
        given = np.array([0.0, 1.5, -2.0, 1e6], dtype=np.float32)
        got = np.asarray(session.run({"x": given})[0])
    if got.tolist() == [0.0, 3.0, -4.0, 2e6]:
        return "ok: a model of one addition gives the right answer"
    return "problem: y = x + x gave {} for {}".format(got.tolist(), given.tolist())


def _clock(platform: Platform) -> str:
    started = platform.clock_ns()
    platform.sleep(_SLEEP_S)
    slept = (platform.clock_ns() - started) / 1e9
    if not 0.99 * _SLEEP_S <= slept <= 20 * _SLEEP_S:
        return "problem: {} s of sleep took {:.3f} s on the device's clock".format(_SLEEP_S, slept)
    steps: List[int] = []
    for _ in range(200):
        before = platform.clock_ns()
        steps.append(platform.clock_ns() - before)
    if min(steps) < 0:
        return "problem: the clock goes backwards"
    return "ok: reading the clock takes {} ns".format(sorted(steps)[100])


def _noise(platform: Platform, seconds: float) -> str:
    """Spread of the medians of equal pieces of work."""
    import numpy as np

    work = np.ones((128, 128), dtype=np.float32)
    medians: List[float] = []
    started = platform.clock_ns()
    for _ in range(200):
        times = []
        for _ in range(50):
            before = platform.clock_ns()
            work.dot(work)
            times.append(platform.clock_ns() - before)
        medians.append(float(sorted(times)[25]))
        if platform.clock_ns() - started > seconds * 1e9:
            break
    low, high = min(medians), max(medians)
    if low <= 0:
        return "ok: this clock only runs while a model does"
    spread = (high - low) / low
    text = "{:.0f} % between {} equal pieces of work".format(100 * spread, len(medians))
    return "ok: " + text if spread < 0.2 else "problem: {}: something else is using this board".format(text)


def _temperature(platform: Platform) -> str:
    state = platform.state()
    celsius = state.get("temperature_c")
    if state.get("throttled"):
        return "problem: the board is throttling{}".format("" if celsius is None else " at {:.0f} °C".format(celsius))
    return "ok: the board does not show one" if celsius is None else "ok: {:.0f} °C".format(celsius)
