"""What an emulated microcontroller pretends to be: the ``emulated:`` section of a serial board's file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from device_agents.emulated.spec import Noise, NotNegative, Positive, WarmUp

Target = Literal["esp32", "esp32s2", "esp32s3", "esp32c3", "esp32c5", "esp32c6", "esp32p4", "esp32s31"]
_MAC = r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


class Chip(_Section):
    """The chip and its memory."""

    target: Target
    mac: Annotated[str, Field(pattern=_MAC)] = "02:00:00:00:00:01"
    cores: Annotated[int, Field(ge=1, le=2)] = 2
    cpu_mhz: Annotated[int, Field(gt=0)]
    revision: Annotated[int, Field(ge=0, le=999)] = 0
    """Major times 100 plus minor."""
    internal_kb: Annotated[int, Field(gt=0)]
    """Free internal memory, in 1024 bytes."""
    psram_kb: Annotated[int, Field(ge=0)]
    """PSRAM for models and their tensors: three eighths for each of two slots, the rest for data."""
    flash_kb: Annotated[int, Field(ge=0)]
    """The partition for a model, in 1024 bytes."""
    arena_kb: Positive
    """Room for the activations of a loaded model, in 1024 bytes."""
    temperature_c: float | None = None


class ChipFigure(_Section):
    """A published latency that the cost model was fitted to, or checked with."""

    model: str
    """File name in Espressif's esp-dl repository."""
    latency_ms: Positive
    mmac: Positive
    activations_m: Positive
    """Millions of activation values written."""
    max_error: Annotated[float, Field(gt=0, lt=1)]
    """Relative error of the cost model on this figure, at most."""
    source: str


class ChipCosts(_Section):
    """Latency of a model on one core: a sum over its nodes. Fitted by ``benchmarks/esp32_cost_model.py``."""

    name: str
    ms_per_mmac: Positive
    """Per million multiply-accumulates of filters and matrix products with 8-bit activations."""
    ms_per_mactivation: Positive
    """Per million 8-bit values that nodes write."""
    int16_factor: Annotated[float, Field(ge=1)] = 2.27
    """Of nodes with 16-bit activations, and of those that compute in float."""
    multi_core_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of the latency on both cores."""
    flash_factor: Annotated[float, Field(ge=1)] = 1.0
    """Of models whose weights stay in flash."""
    load_ms: NotNegative = 5.0
    load_mb_per_s: Positive = 20.0
    canary_us: Positive
    leave_one_out_error: Annotated[float, Field(ge=0)]
    """Mean relative error over the figures, each predicted without itself."""
    figures: tuple[ChipFigure, ...] = ()


LineFaultKind = Literal["corrupt", "drop", "noise"]
ChipFaultKind = Literal[
    "panic",
    "task_watchdog",
    "brownout",
    "reset",
    "hang",
    "silent",
    "garbage",
    "text",
    "old_firmware",
    "full_slots",
    "stale_reply",
    "flash_fails",
    "unplug",
    "reset_loop",
    "wrong_results",
]


class LineFault(_Section):
    """Something wrong with the line, below everything that must notice it."""

    kind: LineFaultKind
    per_byte: Annotated[float, Field(gt=0, le=1)]
    """Probability: a byte changed (corrupt), a byte lost (drop), a burst of up to 16 random bytes before it (noise)."""


class ChipFault(_Section):
    """Something wrong with the board: strikes when a request of type ``during`` comes, after ``after`` of them."""

    kind: ChipFaultKind
    during: str = "RUN"
    """A request's name: ``HELLO``, ``PUT_CHUNK``, ``LOAD``, ``RUN``, …; ``*``: any."""
    after: Annotated[int, Field(ge=0)] = 0
    times: Annotated[int, Field(ge=1)] | None = 1
    """How often it strikes in the life of the board; ``null``: always."""


class Line(_Section):
    """The serial line. Not paced: as fast as the pty."""

    paced: bool = False
    """Bytes take their time at the rate that both ends agreed on."""
    latency_ms: NotNegative = 0.0
    """One way, on top."""
    clean_baud: Annotated[int, Field(ge=9600)] | None = None
    """Above it, bytes are garbled."""
    faults: tuple[LineFault, ...] = ()


class EmulatedChipSpec(_Section):
    """The ``emulated:`` section of a board with ``transport: {kind: emulated_serial}``."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    pace: Literal["virtual", "real"] = "virtual"
    """``virtual``: device time is counted, not waited for. ``real``: every inference takes its time."""
    chip: Chip
    cost_model: ChipCosts
    noise: Noise = Noise()
    warm_up: WarmUp = WarmUp()
    line: Line = Line()
    faults: tuple[ChipFault, ...] = ()
