"""A model loaded on an emulated board: outputs by really executing it, time from the cost model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from device_agents.host_lock import HostLock
from device_agents.runner import ort
from device_agents.runner.platform import Options

from .costs import Costs, processing_ns
from .machine import Machine
from .noise import Contexts, Turn, factors
from .waiting import wait_until

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from device_agents.runner.pipeline import Work

    from .cost_model import Estimate

    Array = npt.NDArray[np.generic]

T = TypeVar("T")

_KEPT_OUTPUTS = 64
_PRECISE = {"session.x64quantprecision": "1"}
"""Sums of u8 × s8 products do not saturate on Arm or in an NPU; on older x86 they do unless asked not to."""


class EmulatedSession:
    """A loaded model: outputs by ONNX Runtime on this host, time by the cost model."""

    def __init__(self, machine: Machine, life: str, model_path: str, options: Options) -> None:
        self._machine = machine
        self._contexts = Contexts(machine, life)
        self._lock = HostLock(machine.host_lock) if machine.host_lock else None
        self._spec = machine.spec
        path = Path(model_path)
        self._digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with self._working():
            real = _open(model_path, options)
            self._costs = Costs(machine.spec.cost_model, model_path, options)
            warm = self._costs.at_declared_shapes()
        self.inputs, self.outputs = real.inputs, real.outputs
        self._real_run = real.run
        self._executed: OrderedDict[bytes, Sequence[Array]] = OrderedDict()
        self._seen: dict[int, tuple[Mapping[str, Array], bytes]] = {}
        self._peak = warm
        self._assignment = {provider: [*names] for provider, names in warm.by_provider().items()}
        self.compiled_sha256 = self._compiled(warm)
        self.load_ns = self._load_ns(path.stat().st_size, warm)
        self._turn: Turn = self._contexts.load(self._digest)
        self._epoch = -1
        self._inferences = 0
        self.label = ""
        """Of the block that comes next."""
        self._factor = 1.0
        self._factors = self._stream()
        self.run: Callable[[Mapping[str, Array]], Sequence[Array]] = (
            self._run_real if self._spec.pace == "real" else self._run_virtual
        )

    def assignment(self) -> dict[str, list[str]]:
        return self._assignment

    def placement_notes(self) -> dict[str, object]:
        """The receipt names what it rests on: one model of the board, which no second source confirms."""
        return {
            "evidence": ["emulated-cost-model"],
            "agrees": None,
            "fallback_reasons": dict(self._peak.fallback_reasons),
        }

    # ---- time ----------------------------------------------------------------------------------------------------

    def next_block(self) -> None:
        """The state is read before and after each block: what follows has noise of its own."""
        turn = self._contexts.renew(self._digest, self._turn)
        self._epoch = 0 if turn != self._turn else self._epoch + 1
        self._turn = turn
        self._factors = self._stream()
        if self._epoch % 2 == 0:
            self._strike(self._machine.count_block())

    def _stream(self) -> Iterator[float]:
        key = (self._spec.seed, self._digest, self.label, self._turn.ordinal, self._epoch)
        return factors(self._spec.noise, *key)

    def _duration_ns(self, feeds: Mapping[str, Array]) -> int:
        estimate = self._costs.at({name: array.shape for name, array in feeds.items()})
        if estimate.activation_bytes > self._peak.activation_bytes:
            self._peak = estimate
            self.check_memory()
        self._factor = next(self._factors)
        duration = estimate.latency_ns * self._factor * self._machine.slow_down
        warm_up = self._spec.warm_up
        cold = math.exp(-self._inferences / warm_up.decay_inferences)
        if cold > 1e-9:
            duration *= 1.0 + (warm_up.cold_factor - 1.0) * cold
        self._inferences += 1
        return round(duration)

    def _run_virtual(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        outputs = self._outputs(feeds)
        self._machine.advance(self._duration_ns(feeds), busy=True)
        return outputs

    def _run_real(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        started = time.perf_counter_ns()
        outputs = self._outputs(feeds)
        duration = self._duration_ns(feeds)
        self._machine.advance(duration, busy=True)
        wait_until(started + duration)
        return outputs

    def process(self, work: Work, action: Callable[[], T]) -> T:
        """Pre- or post-processing around an inference: it shares the noise of the inference done last."""
        started = time.perf_counter_ns()
        result = action()
        plain = processing_ns(self._spec.cost_model.processor, work)
        duration = round(plain * self._factor * self._machine.slow_down)
        self._machine.advance(duration, busy=True)
        if self._spec.pace == "real":
            wait_until(started + duration)
        return result

    def _load_ns(self, size_bytes: int, warm: Estimate) -> int:
        model = self._spec.cost_model
        milliseconds = model.load_ms + size_bytes / 1e3 / model.load_mb_per_s
        if model.accelerator is not None:
            on_accelerator = sum(node.provider == model.accelerator.provider for node in warm.nodes)
            milliseconds += on_accelerator * model.accelerator.compile_ms_per_node
        return round(milliseconds * 1e6)

    # ---- outputs -------------------------------------------------------------------------------------------------

    def _outputs(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        """Executed once per distinct input: the timed loop gives the same few again and again."""
        seen = self._seen.get(id(feeds))
        if seen is not None and seen[0] is feeds:
            outputs = self._executed.get(seen[1])
            if outputs is not None:
                return outputs
        digest = _content(feeds)
        outputs = self._executed.get(digest)
        if outputs is None:
            with self._working():
                outputs = self._real_run(feeds)
            for output in outputs:
                output.flags.writeable = False
            self._executed[digest] = outputs
            if len(self._executed) > _KEPT_OUTPUTS:
                self._executed.popitem(last=False)
        if len(self._seen) > 2 * _KEPT_OUTPUTS:
            self._seen.clear()
        # The mapping is kept, so its id stays its own.
        self._seen[id(feeds)] = (feeds, digest)
        return outputs

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        # A board with real time is timed under the clock of this host's lock, held by who asked.
        if self._lock is None or self._spec.pace == "real":
            yield
            return
        with self._lock.work():
            yield

    # ---- memory and compilation ----------------------------------------------------------------------------------

    @property
    def peak_memory_bytes(self) -> int:
        """The runtime, the weights as parsed and as packed for kernels, and the most that activations take."""
        runtime = round(self._spec.cost_model.runtime_mb * 1e6)
        return runtime + 2 * self._peak.weight_bytes + self._peak.activation_bytes

    def check_memory(self) -> None:
        available = self._spec.presents.memory_mb * 1_000_000
        if self.peak_memory_bytes > available:
            raise RuntimeError(
                f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : BFCArena: Failed to allocate memory: the model needs "
                f"{self.peak_memory_bytes / 1e6:.0f} MB, the board has {available / 1e6:.0f} MB"
            )

    def _compiled(self, warm: Estimate) -> str | None:
        """Digest of the accelerator's plan; ``None`` where nothing is compiled."""
        if not warm.subgraphs:
            return None
        processor = self._spec.cost_model.processor.provider
        plan = [[node.name, node.data_type, *node.folded] for node in warm.nodes if node.provider != processor]
        text = json.dumps([self._spec.cost_model.name, self._digest, plan])
        return hashlib.sha256(text.encode()).hexdigest()

    # ---- faults --------------------------------------------------------------------------------------------------

    def _strike(self, blocks: int) -> None:
        if self._machine.strike("crash_in_run", blocks=blocks):
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._machine.strike("reboot", blocks=blocks):
            # The server sees the new boot id and takes the power away from all.
            self._machine.reboot()
            os.kill(os.getpid(), signal.SIGKILL)


def _open(model_path: str, options: Options) -> ort.OrtSession:
    try:
        return ort.OrtSession(model_path, _on_this_host(options, _PRECISE))
    except Exception:
        # What ONNX Runtime 1.32 does for that option fails where float weights share a zero point, as PyTorch exports
        # them: "Attempt to replace the existing tensor". No board but an x86 one would be asked for it.
        return ort.OrtSession(model_path, _on_this_host(options, {}))


def _on_this_host(options: Options, precise: Mapping[str, str]) -> Options:
    config = {**precise, **options.session_config}
    return options._replace(
        providers=[("CPUExecutionProvider", {})], intra_op_threads=1, inter_op_threads=1, session_config=config
    )


def _content(feeds: Mapping[str, Array]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(feeds):
        array = feeds[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()
