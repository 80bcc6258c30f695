"""The board file: what ``boards/NAME.yaml`` may say, once ``extends:`` is resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from device_agents.emulated.chip.spec import EmulatedChipSpec
from device_agents.emulated.spec import EmulatedSpec
from harness.boards.base import Flag, Number, Section, Text, Whole, invalid
from harness.boards.provider_options import misspelt
from harness.boards.transports import RUNTIME_OF, BoardPath, Transport
from harness.boards.units import Seconds, SizeBytes
from harness.suggest import closest

FIRMWARE_CANARY = "firmware-1"
COMPILED_IN = "compiled-in"
"""The canary of boards whose firmware contains one model: that model."""
"""The canary that the firmware of microcontrollers contains."""
API_VERSION = "boardtune/v1"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
DataType = Literal[
    "float32", "float16", "bfloat16", "uint8", "int8", "uint16", "int16", "uint4", "int4", "int32", "int64", "bool"
]

KNOWN_PROVIDERS = tuple(
    f"{name}ExecutionProvider"
    for name in (
        "CPU", "CUDA", "Tensorrt", "NvTensorRTRTX", "Dml", "OpenVINO", "VitisAI", "QNN", "CANN", "CoreML", "NNAPI",
        "Xnnpack", "ACL", "ArmNN", "Dnnl", "ROCM", "MIGraphX", "Rknpu", "SNPE", "TVM", "Azure", "WebGpu", "JS",
    )
)  # fmt: skip
"""Names ONNX Runtime gives its execution providers; plugins may bring others."""


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        meant = re.sub(r"[^a-z0-9-]+", "-", value.lower()).strip("-")[:63]
        raise invalid(
            "name",
            f"not a board name: {value!r}",
            hint="lower-case letters, digits and '-', at most 63" + (f"; did you mean {meant!r}?" if meant else ""),
        )
    return value


def _scalar_texts(value: Any) -> Any:
    """ONNX Runtime's options are text; numbers are taken as written, yes/no is refused as ambiguous."""
    if not isinstance(value, Mapping):
        return value
    texts: dict[Any, Any] = {}
    for key, item in value.items():
        if isinstance(item, bool):
            raise invalid(
                "option",
                f"option {key!r} is a yes/no value, and options are text",
                hint='put it in quotes as the provider documents it, e.g. "1" or "true"',
                at=str(key),
            )
        texts[key] = str(item) if isinstance(item, int | float) else item
    return texts


Options = Annotated[
    Mapping[Text, Text],
    BeforeValidator(_scalar_texts),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number"]}}),
]


def _provider_name(value: str) -> str:
    if value in KNOWN_PROVIDERS:
        return value
    # Plugins bring names of their own, so only what is nearly a known name, or of another form, is refused.
    known = {name.lower(): name for name in KNOWN_PROVIDERS}
    known |= {name.removesuffix("ExecutionProvider").lower(): name for name in KNOWN_PROVIDERS}
    well_formed = re.fullmatch(r"[A-Za-z0-9_.]+ExecutionProvider", value) is not None
    word = value.removesuffix("ExecutionProvider") if well_formed else value
    close = closest(word, known, cutoff=0.8)
    if close or not well_formed:
        hint = f"did you mean {known[close]!r}?" if close else "they are named like CPUExecutionProvider"
        raise invalid("provider", f"unknown execution provider {value!r}", hint=hint)
    return value


def names_a_file(model: str) -> bool:
    """Whether ``canary.model`` is a path, and not the name of a packaged canary."""
    return model.endswith(".onnx") or "/" in model or "\\" in model


class Metadata(Section):
    """Who the board is."""

    name: Annotated[Text, AfterValidator(_name)]
    """How commands call it: lower-case letters, digits and '-'."""
    sku: Text | None = None
    """Product, e.g. ``raspberry-pi-5-8gb``."""
    labels: Mapping[Text, Text] = Field(default_factory=dict)
    """Free key: value pairs."""


class Provider(Section):
    """An ONNX Runtime execution provider with its options."""

    name: Annotated[Text, AfterValidator(_provider_name)]
    options: Options = Field(default_factory=dict)
    library: BoardPath | None = None
    """Of a provider that is a plugin: its library on the board. Default: that of its Python package."""
    device: Literal["cpu", "gpu", "npu"] | None = None
    """Of a plugin's devices, the kind to use. Default: the first it finds."""

    @model_validator(mode="after")
    def _options_are_spelt_right(self) -> Provider:
        for key in self.options:
            meant = misspelt(self.name, key)
            if meant is not None:
                raise invalid(
                    "option",
                    f"{self.name} has no option {key!r}, and would pass over it in silence",
                    hint=f"did you mean {meant!r}?",
                    at="options",
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(schema)
        return {"description": cls.__doc__ or "", "anyOf": [{"type": "string", "examples": [*KNOWN_PROVIDERS]}, whole]}


class Threads(Section):
    """Sizes of ONNX Runtime's thread pools. 1 repeats best; the number of fast cores is usually quickest."""

    intra: Annotated[Whole, Field(ge=1, le=1024)] = 1
    """Threads inside an operator."""
    inter: Annotated[Whole, Field(ge=1, le=1024)] = 1
    """Threads across operators."""


class Runtime(Section):
    """What executes models on the board."""

    name: Literal["onnxruntime", "esp-dl", "mlperf-tiny"] = "onnxruntime"
    """Default: what runs behind the transport; ``esp-dl`` on serial boards."""
    providers: tuple[Provider, ...] = (Provider(name="CPUExecutionProvider"),)
    """Execution providers, most wanted first: a name, or ``{name: …, options: {…}}``."""
    threads: Threads = Threads()
    graph_optimization: Literal["disabled", "basic", "extended", "all"] = "all"
    session_config: Options = Field(default_factory=dict)
    """Session configuration entries, e.g. ``session.intra_op.allow_spinning: "0"``."""
    exclusive_session: Flag = False
    """The accelerator serves one session at a time: candidate and canary then never run side by side."""

    @model_validator(mode="after")
    def _providers_are_listed_once(self) -> Runtime:
        names = [provider.name for provider in self.providers]
        if not names:
            raise invalid(
                "providers", "no provider is listed", hint="list one, e.g. CPUExecutionProvider", at="providers"
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise invalid("providers", f"provider {twice[0]!r} is listed twice", hint="list it once", at="providers")
        return self


class StateWanted(Section):
    """The state the board is to be in while it measures; read back and told, never set by boardtune."""

    power_mode: Text | None = None
    """As the board's own tool names it (``nvpmodel``, ``xrt-smi``, …)."""
    governor: Text | None = None
    """Frequency governor, e.g. ``performance``."""
    max_temperature_c: Annotated[Number, Field(gt=0, le=150)] | None = None
    """Above this, measuring waits for the board to cool, as long as between two sets; then the result is invalid."""


class Limits(Section):
    """What the board can take; a candidate beyond it is infeasible."""

    max_model_bytes: SizeBytes | None = None
    """Largest model file, e.g. ``200MiB``."""
    max_memory_bytes: SizeBytes | None = None
    """Largest peak memory of a loaded model, e.g. ``2GiB``."""
    data_types: tuple[DataType, ...] | None = None
    """Tensor types the board supports; default: any."""
    operators: tuple[Annotated[Text, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.:]*$")], ...] | None = None
    """ONNX operator types the board supports; default: any."""
    lint: Literal["refuse", "warn"] = "refuse"
    """Of ``.espdl`` models that the board's kernels are known to compute otherwise than the quantizer simulated: not
    tried, or tried and told."""
    min_offload: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Smallest share of operator nodes (0..1) that must run on the accelerator."""
    output_tolerance: Annotated[Number, Field(gt=0, le=1)] = 0.05
    """How far outputs may be from those of the board's CPU provider, as a share of an output's largest magnitude, in
    ``placement --compare-cpu``."""


class Canary(Section):
    """The small pinned model that is measured between candidates to see the board drift."""

    model: Text = "conv-8m"
    """Name of a packaged canary (on serial boards ``firmware-1``, which their firmware contains; on MLPerf Tiny
    boards ``compiled-in``, the model of their firmware), or the path of an ``.onnx`` file relative to this file."""
    sha256: Annotated[Text, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest of the file; needed for a model of your own."""
    median_ms: Annotated[Number, Field(gt=0)] | None = None
    """Its median latency on this board when all is well; ``boards check`` compares with it."""
    tolerance: Annotated[Number, Field(gt=0, lt=1)] = 0.05
    """Relative deviation from ``median_ms`` that is still well."""

    @property
    def is_file(self) -> bool:
        return names_a_file(self.model)

    @model_validator(mode="after")
    def _own_model_is_pinned(self) -> Canary:
        if self.is_file and self.sha256 is None:
            raise invalid(
                "canary",
                "a canary of your own needs its sha256, so that it stays the same model",
                hint=f"add sha256: with what `sha256sum {self.model}` prints",
                at="model",
            )
        return self


def _emulated_kind(value: Any) -> str:
    chip = "chip" in value if isinstance(value, Mapping) else isinstance(value, EmulatedChipSpec)
    return "chip" if chip else "machine"


Emulated = Annotated[
    Annotated[EmulatedSpec, Tag("machine")] | Annotated[EmulatedChipSpec, Tag("chip")], Discriminator(_emulated_kind)
]


class Recovery(Section):
    """What happens after failures of the board."""

    retries: Annotated[Whole, Field(ge=0, le=20)] = 2
    """Attempts to recover the link before a trial fails."""
    quarantine_after: Annotated[Whole, Field(ge=1, le=100)] = 3
    """Board failures in a row after which the board is left out of the run."""
    cool_down_s: Seconds = 5.0
    """Seconds to wait before an attempt."""


class Board(Section):
    """One physical or emulated device."""

    apiVersion: Literal["boardtune/v1"]  # noqa: N815 -- the key's name in the file
    kind: Literal["Board"]
    metadata: Metadata
    transport: Transport
    runtime: Runtime = Runtime()
    state: StateWanted = StateWanted()
    noise: Literal["dedicated", "shared"] = "dedicated"
    """``shared`` if other work runs on the machine: intervals widen and nothing is quarantined for drift."""
    limits: Limits = Limits()
    canary: Canary = Canary()
    recovery: Recovery = Recovery()
    cache_bytes: SizeBytes = 2**30
    """Room for models and data kept on the board, least recently used go first."""
    emulated: Emulated | None = None
    """What an emulated board pretends to be; only with a transport of an emulated kind."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_serial_boards(cls, value: Any) -> Any:
        """Their runtime and canary are those of the firmware."""
        transport = value.get("transport") if isinstance(value, Mapping) else None
        kind = transport.get("kind") if isinstance(transport, Mapping) else None
        if not isinstance(kind, str) or kind not in RUNTIME_OF:
            return value
        filled = dict(value)
        canary = COMPILED_IN if kind == "mlperf_tiny" else FIRMWARE_CANARY
        for section, key, default in (("runtime", "name", RUNTIME_OF[kind]), ("canary", "model", canary)):
            given = filled.get(section, {})
            if isinstance(given, Mapping):
                filled[section] = {key: default, **given}
        return filled

    @model_validator(mode="after")
    def _runtime_fits_transport(self) -> Board:
        if self.runtime.name != RUNTIME_OF.get(self.transport.kind, "onnxruntime"):
            raise invalid(
                "runtime",
                f"runtime {self.runtime.name} does not run behind transport kind {self.transport.kind}",
                hint="esp-dl goes with serial boards, mlperf-tiny with mlperf_tiny, onnxruntime with the others; "
                "runtime.name can be left out",
                at="runtime",
            )
        return self

    @model_validator(mode="after")
    def _emulation_is_whole(self) -> Board:
        wanted: str | None = None
        if self.emulated is not None:
            wanted = "emulated_serial" if isinstance(self.emulated, EmulatedChipSpec) else "emulated_ssh"
        actual = self.transport.kind if self.transport.kind in ("emulated_ssh", "emulated_serial") else None
        if wanted != actual:
            raise invalid(
                "emulated",
                f"transport kind {wanted or actual} and the section emulated: go together, and one is missing",
                hint="add the other, or use a transport of a real board",
                at="emulated" if self.emulated is not None else "transport",
            )
        return self
