"""What an emulated board is: the ``emulated:`` section of a board file.

Units are in the names. Rates are what the runtime *reaches* on that hardware (fitted to published figures), not data
sheet peaks. See ``docs/emulated.md`` for what each parameter means and where the shipped values come from.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

DataType = Literal["float32", "float16", "int8", "int16"]
"""Class of a computation; signedness does not matter to the cost."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


class Unit(_Section):
    """What a processor and an accelerator have in common: a roofline per node plus overheads."""

    provider: str
    """ONNX Runtime execution provider that stands for the unit in options and receipts."""
    gmac_per_s: dict[DataType, Positive]
    """1e9 multiply-accumulates per second by data type, of one core (processor) or of the whole unit."""
    half_channels: NotNegative = 0.0
    """Output channels at which a matrix operator reaches half its rate (tiles of small layers stay partly empty)."""
    efficiency: dict[str, Positive] = Field(default_factory=dict)
    """Factor on the rate by operator type; ``DepthwiseConv`` and ``GroupedConv`` are kinds of Conv."""
    gelement_per_s: Positive
    """1e9 elements per second of an element-wise operator of cost 1, of one core or of the whole unit."""
    element_cost: dict[str, Positive] = Field(default_factory=dict)
    """Cost of one element by operator type, 1 where absent."""
    memory_gb_s: Positive
    """1e9 bytes per second to and from main memory."""
    cache_mb: NotNegative = 0.0
    """A node whose tensors fit in this many 1e6 bytes moves them at ``cache_gb_s``."""
    cache_gb_s: Positive | None = None
    launch_us: NotNegative
    """Per executed node."""
    invocation_us: NotNegative
    """Per inference (processor) or per run of a compiled subgraph (accelerator)."""
    operators: dict[str, tuple[DataType, ...]]
    """Operator type -> data types the unit executes natively. A processor executes everything else in float32."""

    @model_validator(mode="after")
    def _rates_for_operators(self) -> Unit:
        wanted = {data_type for types in self.operators.values() for data_type in types}
        missing = sorted(wanted - set(self.gmac_per_s))
        if missing:
            raise ValueError(f"operators: data types {', '.join(missing)} have no rate in gmac_per_s")
        return self


class Processor(Unit):
    """The CPU: runs every operator, in float32 where it has no better."""

    provider: str = "CPUExecutionProvider"
    cores: Annotated[int, Field(ge=1)]
    parallel_efficiency: Share = 0.9
    """n threads are as fast as ``1 + (n - 1) * parallel_efficiency`` cores."""
    fork_join_us: NotNegative = 0.0
    """Added to a node that runs on more than one thread; it does only where that pays."""

    @model_validator(mode="after")
    def _float32(self) -> Processor:
        if "float32" not in self.gmac_per_s:
            raise ValueError("gmac_per_s: a processor needs a float32 rate")
        return self


class Accelerator(Unit):
    """An NPU: runs compiled subgraphs of the operators it supports; the rest falls back to the processor."""

    minimum_matrix_nodes: Annotated[int, Field(ge=1)] = 1
    """Subgraphs with fewer Conv/MatMul/Gemm nodes are not compiled and stay on the processor."""
    transfer_us: NotNegative
    """Per tensor that crosses between processor and accelerator."""
    transfer_gb_s: Positive
    compile_ms_per_node: NotNegative = 0.0
    """Compilation in every load of a model that uses the accelerator."""


class Figure(_Section):
    """A published latency of this hardware that the cost model must reproduce."""

    network: str
    """Name in :data:`device_agents.emulated.cost_model.networks.NETWORKS`."""
    precision: Literal["float32", "int8"]
    """``int8``: QDQ, per-channel weights, every operator quantized."""
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    threads: Annotated[int, Field(ge=1)]
    latency_ms: Positive
    max_error: Annotated[float, Field(gt=0, lt=1)]
    """Largest relative error |model / published - 1| that is acceptable; a test holds the model to it."""
    fitted: bool = True
    """Whether the parameters were chosen with this figure in view; ``false`` for figures kept to check them."""
    runtime: str
    """What executed the network there."""
    source: str
    """Where it was published: address, and what the text there leaves open."""


class CostModel(_Section):
    """Named latency model: every inference of a model takes the sum over its nodes of
    ``max(MACs / rate, elements / rate, bytes / bandwidth) + launch``, plus transfers and invocations."""

    name: str
    processor: Processor
    accelerator: Accelerator | None = None
    load_ms: NotNegative
    """Session creation of an empty model."""
    load_mb_per_s: Positive
    """1e6 bytes of model file per second: parse, copy and pack weights."""
    runtime_mb: NotNegative
    """Resident memory of the process before a model is loaded, in 1e6 bytes."""
    figures: tuple[Figure, ...] = ()


class Noise(_Section):
    """Multiplies every sample; the median stays the cost model's."""

    kind: Literal["lognormal", "none"] = "lognormal"
    sigma: Share = 0.01
    """Standard deviation of the logarithm, from sample to sample."""
    block_sigma: Share = 0.003
    """The same from block to block: what all samples of a block share."""
    spike_probability: Share = 0.002
    spike_factor: Annotated[float, Field(ge=1, le=1000)] = 1.5
    """A spike (timer interrupt, other process) lasts this many times as long."""


class WarmUp(_Section):
    """Inference i of a session (from 0) takes ``1 + (factor - 1) * exp(-i / decay)`` times as long."""

    cold_factor: Annotated[float, Field(ge=1, le=1000)] = 1.0
    decay_inferences: Positive = 1.0


class Throttling(_Section):
    """First-order heat: the temperature tends to ``ambient + rise`` while busy and to ``ambient`` while idle."""

    ambient_c: float
    rise_c: Positive
    time_constant_s: Positive
    threshold_c: float
    """At and above it every inference takes ``slow_down`` times as long and the throttle flag is set."""
    slow_down: Annotated[float, Field(ge=1, le=100)]


class Presented(_Section):
    """What the board says about itself."""

    cpu_model: str
    machine: str
    os: str
    memory_mb: Annotated[int, Field(gt=0)]
    runtime_version: str | None = None
    """``None``: that of the ONNX Runtime that really executes."""
    frequency_khz: int | None = None
    governor: str | None = None
    power_mode: str | None = None
    temperature_c: float | None = None
    """Without a throttling model; with one the temperature comes from it."""
    extra: dict[str, str] = Field(default_factory=dict)


FaultKind = Literal[
    "refuse",
    "drop",
    "slow_link",
    "corrupt_upload",
    "disk_full",
    "unwritable",
    "changed_host_key",
    "reject_login",
    "no_python",
    "old_runtime",
    "no_runtime",
    "hang_in_load",
    "crash_in_load",
    "crash_in_run",
    "out_of_memory",
    "reboot",
]


class Fault(_Section):
    """Something that goes wrong, below the code that must notice it."""

    kind: FaultKind
    after_bytes: Annotated[int, Field(ge=0)] = 0
    """drop, corrupt_upload, disk_full: bytes of the upload (of ``drop``: of all received) before it strikes."""
    after_blocks: Annotated[int, Field(ge=0)] = 0
    """crash_in_run, reboot: measured blocks before it strikes, in the life of the board."""
    kb_per_s: Positive = 64.0
    """slow_link: 1e3 bytes per second towards the board."""
    times: Annotated[int, Field(ge=1)] | None = None
    """How often it strikes; ``None`` means always."""


class EmulatedSpec(_Section):
    """The ``emulated:`` section of a board file."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    pace: Literal["virtual", "real"] = "virtual"
    """``virtual``: device time is counted, not waited for. ``real``: every inference takes its time."""
    cost_model: CostModel
    presents: Presented
    noise: Noise = Noise()
    warm_up: WarmUp = WarmUp()
    throttling: Throttling | None = None
    faults: tuple[Fault, ...] = ()

    @model_validator(mode="after")
    def _throttling_is_reachable(self) -> EmulatedSpec:
        heat = self.throttling
        if heat is not None and heat.threshold_c > heat.ambient_c + heat.rise_c:
            raise ValueError(
                f"throttling: threshold_c {heat.threshold_c} is above the hottest the board gets, "
                f"{heat.ambient_c + heat.rise_c}"
            )
        return self
