"""What every agent does, the values that cross it, and the errors it may raise.

An *agent* is the host-side object that drives one board over its transport. The harness knows boards only
through :class:`Agent`; nothing in this package imports the harness. All times are integer nanoseconds taken on
the device; link time is never part of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

Tensors = Mapping[str, npt.NDArray[np.generic]]
"""Named arrays: one per model input or output."""


class AgentError(Exception):
    """Base of everything an agent raises.

    ``board`` names the board, ``hint`` says what to do next; both are shown to the user. ``retryable`` says
    whether the same request may succeed after :meth:`Agent.recover`.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, board: str = "", hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.board = board
        self.hint = hint
        self.detail = detail
        """Raw evidence (stderr tail, panic text); logged, not shown by default."""

    def __str__(self) -> str:
        where = f"board {self.board!r}: " if self.board else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword-only arguments do not survive pickling (between Ray actors) by default.
        return (_rebuild, (type(self), self.message, self.board, self.hint, self.detail))


def _rebuild(cls: type[AgentError], message: str, board: str, hint: str, detail: str) -> AgentError:
    return cls(message, board=board, hint=hint, detail=detail)


class LinkError(AgentError):
    """The transport failed: refused, unreachable, dropped, authentication rejected."""

    retryable = True


class DeviceTimeout(AgentError):
    """The board did not answer before the deadline; what ran there was stopped."""

    retryable = True


class DeviceCrash(AgentError):
    """The process that executed the model died (signal, abort, panic); the runner lives."""


class DeviceReboot(AgentError):
    """The boot id changed: whatever was measured before is void."""

    retryable = True


class ModelRejected(AgentError):
    """The runtime refused to load the model."""


class OutOfMemory(AgentError):
    """The board has not enough memory for the model."""


class UnsupportedOperator(ModelRejected):
    """The runtime has no implementation of an operator (or of its types) in the model."""


class BadData(AgentError):
    """What was sent or received does not verify: digest mismatch, wrong input names, shapes or dtypes."""


class LeaseLost(AgentError):
    """Another controller holds the board."""


class Untrusted(AgentError):
    """The board's host key is unknown or changed."""


class BoardUnfit(AgentError):
    """The board lacks what the runner needs: no Python, ONNX Runtime missing or too old, disk full, no write access."""


ERRORS: Mapping[str, type[AgentError]] = {
    cls.__name__: cls
    for cls in (
        LinkError, DeviceTimeout, DeviceCrash, DeviceReboot, ModelRejected, OutOfMemory,
        UnsupportedOperator, BadData, LeaseLost, Untrusted, BoardUnfit,
    )
}  # fmt: skip
"""Error classes by their name on the wire."""


@dataclass(frozen=True)
class ProviderPlugin:
    """Which library, and which of its devices, a provider is that comes as a plugin of ONNX Runtime."""

    provider: str
    library: str = ""
    """Path on the board; empty: the one in the provider's Python package."""
    device: Literal["", "cpu", "gpu", "npu"] = ""
    """Kind of device; empty: the first the plugin finds."""


@dataclass(frozen=True)
class RuntimeOptions:
    """How the board's runtime executes a model. Part of the key of a result."""

    providers: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (("CPUExecutionProvider", ()),)
    """ONNX Runtime execution providers in order, each with its (option, value) pairs."""
    intra_op_threads: int = 1
    inter_op_threads: int = 1
    graph_optimization: Literal["disabled", "basic", "extended", "all"] = "all"
    session_config: tuple[tuple[str, str], ...] = ()
    plugins: tuple[ProviderPlugin, ...] = ()
    """Of providers whose library or device is named; installed packages of plugins are found without."""


@dataclass(frozen=True)
class BoardFacts:
    """What the board says about itself."""

    boot_id: str
    hardware_id: str
    """Stable across reboots: machine id, MAC or serial number."""
    emulated: bool
    machine: str
    """CPU architecture as ``platform.machine()`` gives it."""
    cpu_model: str
    cpu_count: int
    memory_bytes: int
    os: str
    python: str
    runtime: str
    """Name of what executes models, e.g. ``onnxruntime``."""
    runtime_version: str
    providers: tuple[str, ...]
    runner_sha256: str
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BoardState:
    """A reading of what may disturb a measurement; ``None`` where the OS does not show it."""

    boot_id: str
    temperature_c: float | None = None
    frequency_khz: int | None = None
    max_frequency_khz: int | None = None
    governor: str | None = None
    power_mode: str | None = None
    load_average: float | None = None
    throttled: bool | None = None
    """Thermal or under-voltage throttling flag as the OS reports it."""
    memory_available_bytes: int | None = None
    disk_free_bytes: int | None = None
    clock_ns: int = 0
    """Device clock at the reading (virtual time on boards that keep it)."""


@dataclass(frozen=True)
class Placement:
    """Placement receipt: which provider ran which nodes of the artifact, and how that is known."""

    nodes: Mapping[str, tuple[str, ...]]
    """Provider name -> names of the artifact's nodes it ran."""
    fused: tuple[str, ...] = ()
    """Nodes that became part of another, so no provider runs them by name."""
    folded: tuple[str, ...] = ()
    """Nodes that were computed, or removed as doing nothing, when the model was loaded: they never run."""
    evidence: tuple[str, ...] = ()
    """Sources, e.g. ``ort-graph-assignment``, ``ort-profile``, ``cpu-only``."""
    agrees: bool | None = None
    """Whether a second source agreed; ``None`` if there was none."""
    offload_ratio: float | None = None
    """Share of executed operator nodes outside the CPU provider, 0..1; ``None`` on a CPU-only board."""
    time_share: Mapping[str, float] = field(default_factory=dict)
    """Provider -> share of the profiled time, where known."""
    fallback_reasons: Mapping[str, str] = field(default_factory=dict)
    """Node or operator type -> why it fell back to the CPU."""


@dataclass(frozen=True)
class DeployReport:
    sha256: str
    size_bytes: int
    sent_bytes: int
    """0 when the digest was already on the board."""
    resumed: bool = False


@dataclass(frozen=True)
class LoadReport:
    session: str
    """Handle for :meth:`Agent.measure`, :meth:`Agent.infer`, :meth:`Agent.unload`."""
    boot_id: str
    load_ns: int
    placement: Placement
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    """(name, dtype, shape) of each model input."""
    outputs: tuple[str, ...]
    peak_memory_bytes: int | None = None
    compiled_sha256: str | None = None
    """Digest of what the board compiled from the model, where it keeps one."""


@dataclass(frozen=True)
class BlockRequest:
    """One block of timed inferences: stops when *both* minima hold, or at ``max_ns``."""

    min_count: int
    min_ns: int
    max_ns: int
    rows: int = 8
    """Cycle through the first ``rows`` samples of the inputs."""
    batch: int = 1
    """Samples per inference. 1 means as many as the model's first axis is fixed at; any other number that a fixed axis
    contradicts is :class:`BadData`."""
    label: str = ""
    """What the block is part of, for boards that make up their noise: another label is another draw."""


@dataclass(frozen=True)
class Block:
    """Raw per-inference times of one block, on the device's clock."""

    boot_id: str
    samples_ns: npt.NDArray[np.int64]
    """int64 [n]."""
    first_ns: int | None
    """Time of the session's first inference ever, present in the session's first block only."""
    before: BoardState
    after: BoardState
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class Inference:
    """Outputs of a pass over samples: every array is [samples, ...]."""

    boot_id: str
    outputs: Tensors
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class DataRef:
    """Samples already on the board (deployed by digest as ``.npz``, one array per model input, samples on axis 0)."""

    sha256: str
    rows: tuple[int, ...] | None = None
    """Indices into the sample axis; ``None`` means all."""


@dataclass(frozen=True)
class Pipeline:
    """Pre- and post-processing that runs on the device inside the timed region (``scope: pipeline``)."""

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Per channel, applied as ``(x * scale - mean) / std`` in float32."""
    transpose: tuple[int, ...] = ()
    """Axes of one sample (without the sample axis), e.g. (2, 0, 1) for HWC -> CHW; empty leaves them."""
    expand_axis: int | None = None
    """Inserts a channel axis into one sample, e.g. 0 turns HW into 1HW."""
    reverse_channels: bool = False
    """RGB <-> BGR, on the last axis before the transpose."""
    dtype: str = "float32"
    post: Literal["none", "softmax", "argmax"] = "none"


class Agent(Protocol):
    """Drives one board. Not thread-safe: one caller at a time.

    Each call raises an :class:`AgentError` on failure and ends by its deadline (``deadline_s``, seconds of the
    controller's monotonic clock), with :class:`DeviceTimeout` if the board did not answer.
    """

    @property
    def name(self) -> str: ...

    def connect(self, deadline_s: float = 60.0) -> BoardFacts:
        """Opens the link, takes the board's lock, makes the runner current, starts it."""

    def describe(self, deadline_s: float = 30.0) -> BoardFacts: ...

    def has(self, sha256: str, deadline_s: float = 30.0) -> bool: ...

    def deploy(self, path: Path, sha256: str, deadline_s: float = 600.0) -> DeployReport:
        """Puts a file (model or ``.npz`` data) on the board under its digest: resumable, verified there, atomic."""

    def load(
        self, sha256: str, options: RuntimeOptions, pipeline: Pipeline | None = None, deadline_s: float = 300.0
    ) -> LoadReport:
        """Loads a deployed model in a process of its own."""

    def measure(
        self, session: str, inputs: Tensors | DataRef, request: BlockRequest, deadline_s: float = 120.0
    ) -> Block: ...

    def infer(self, session: str, inputs: Tensors | DataRef, batch: int = 1, deadline_s: float = 600.0) -> Inference:
        """Runs samples through the model ``batch`` at a time and returns the outputs, in order."""

    def unload(self, session: str, deadline_s: float = 30.0) -> None: ...

    def health(self, deadline_s: float = 30.0) -> BoardState: ...

    def self_test(self, seconds: float = 1.0, deadline_s: float = 60.0) -> Mapping[str, str]:
        """A short computation with a known answer on the device; findings in words by name."""

    def recover(self, deadline_s: float = 120.0) -> BoardFacts:
        """Drops what is left of the link and the runner and connects again. Sessions are gone."""

    def clean(self, deadline_s: float = 60.0) -> Sequence[str]:
        """Removes all that boardtune left on the board; returns what was removed. Only before :meth:`close`."""

    def close(self) -> None:
        """Ends the runner and the link; never raises; may be called twice."""
