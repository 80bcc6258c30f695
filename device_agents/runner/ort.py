"""ONNX Runtime behind the platform seam: sessions, the profiled run, and what its errors mean. Runs in a child only."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import plugins, streams
from .errors import RunnerError
from .onnx_nodes import write_named
from .placement import CPU
from .platform import KernelTime, Options, ProfileNotes, Spec

if TYPE_CHECKING:
    from .arrays import Array

MINIMUM = (1, 16)
_RECORD = {"session.record_ep_graph_assignment_info": "1"}

_DTYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16",
    "tensor(int8)": "int8", "tensor(int16)": "int16", "tensor(int32)": "int32", "tensor(int64)": "int64",
    "tensor(uint8)": "uint8", "tensor(uint16)": "uint16", "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64", "tensor(bool)": "bool",
}  # fmt: skip

_OUT_OF_MEMORY = ("bad_alloc", "failed to allocate memory", "out of memory", "bfcarena", "cannot allocate memory")
_UNSUPPORTED = (
    "not_implemented",
    "could not find an implementation",
    "is not a registered function/op",
    "no op registered for",
)
_BAD_INPUT = ("invalid_argument", "required inputs", "invalid feed input name", "got invalid dimensions")


def versions() -> Tuple[str, List[str], Dict[str, str]]:
    """(ONNX Runtime's version, its execution providers, other versions).

    Raises:
        RunnerError: ``BoardUnfit`` if numpy or ONNX Runtime is missing, broken or too old.
    """
    numpy = _imported("numpy")
    runtime = _imported("onnxruntime")
    version = str(getattr(runtime, "__version__", "0"))
    parts = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    if parts < MINIMUM:
        raise RunnerError(
            "BoardUnfit",
            "ONNX Runtime {} is too old; the runner needs {}.{} or newer".format(version, *MINIMUM),
            hint="on the board: python3 -m pip install --upgrade onnxruntime",
        )
    extra = {"numpy": str(numpy.__version__)}
    providers = list(runtime.get_available_providers())
    if hasattr(runtime, "register_execution_provider_library"):
        for provider, found in plugins.installed().items():
            if provider not in providers:
                providers.insert(0, provider)
                extra[plugins.PACKAGES[provider].replace("_", "-")] = found
    return version, providers, extra


def _imported(name: str) -> Any:
    import importlib
    import sys

    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        raise RunnerError(
            "BoardUnfit",
            "the board's Python ({}) {}".format(
                sys.executable,
                "has no package {!r}".format(name) if missing else "cannot import {!r}: {}".format(name, error),
            ),
            hint="on the board: {} -m pip install numpy onnxruntime".format(os.path.basename(sys.executable)),
        ) from None


class OrtSession:
    """A loaded model. ``run`` is ``InferenceSession.run`` for all outputs."""

    def __init__(self, model_path: str, options: Options) -> None:
        session = _create(model_path, options, _RECORD)
        self.inputs = [_spec(entry, "input") for entry in session.get_inputs()]
        self.outputs = [_spec(entry, "output") for entry in session.get_outputs()]
        self.compiled_sha256: Optional[str] = None
        self._session = session
        # ``None`` for the output names, as a bare loop over ``session.run`` has it: on models of some ten microseconds
        # the difference to a list of names is one or two percent.
        self.run: Callable[[Mapping[str, Array]], Sequence[Array]] = functools.partial(session.run, None)

    def assignment(self) -> Optional[Dict[str, List[str]]]:
        """By ``get_provider_graph_assignment_info`` (ONNX Runtime 1.24 and newer)."""
        return _assignment(self._session)

    def placement_notes(self) -> Dict[str, Any]:
        """Nothing beyond its assignment."""
        return {}


def _assignment(session: Any) -> Optional[Dict[str, List[str]]]:
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    out: Dict[str, List[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        out.setdefault(subgraph.ep_name, []).extend(node.name for node in subgraph.get_nodes())
    return out


def _create(
    model_path: str, options: Options, extra_config: Mapping[str, str], profile_prefix: str = "", log_severity: int = 3
) -> Any:
    import onnxruntime

    _check_available(options)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.intra_op_threads
    settings.inter_op_num_threads = options.inter_op_threads
    if options.inter_op_threads > 1:
        settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    levels = onnxruntime.GraphOptimizationLevel
    settings.graph_optimization_level = {
        "disabled": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }[options.graph_optimization]
    settings.log_severity_level = log_severity
    for key, value in {**extra_config, **options.session_config}.items():
        settings.add_session_config_entry(key, value)
    if profile_prefix:
        settings.enable_profiling = True
        settings.profile_file_prefix = profile_prefix
    if any(_is_plugin(name, options) for name, _ in options.providers):
        for name, values in options.providers:
            if _is_plugin(name, options):
                settings.add_provider_for_devices(plugins.devices(name, options.plugin(name)), dict(values))
            elif name != CPU:  # which comes last by itself
                settings.add_provider(name, dict(values))
        session = onnxruntime.InferenceSession(model_path, settings)
    else:
        session = onnxruntime.InferenceSession(
            model_path,
            settings,
            providers=[name for name, _ in options.providers],
            provider_options=[dict(values) for _, values in options.providers],
        )
    lost = [name for name, _ in options.providers if name not in session.get_providers()]
    if lost:
        raise RunnerError(
            "BoardUnfit",
            "{} did not start; ONNX Runtime fell back to {}".format(
                ", ".join(lost), ", ".join(session.get_providers())
            ),
            hint="check the provider's driver and its options in the board file",
        )
    return session


def _is_plugin(provider: str, options: Options) -> bool:
    import onnxruntime

    return plugins.is_plugin(provider, options.plugin(provider), onnxruntime.get_available_providers())


def _check_available(options: Options) -> None:
    """ONNX Runtime would warn and quietly use the next provider."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    for provider, _ in options.providers:
        if provider in available or _is_plugin(provider, options):
            continue
        hint = "install the ONNX Runtime build of that provider, or change the board file's providers"
        if provider in plugins.PACKAGES:
            hint = "on the board: {} -m pip install {}, or change the board file's providers".format(
                os.path.basename(sys.executable), plugins.PACKAGES[provider].replace("_", "-")
            )
        has = ", ".join(available)
        raise RunnerError(
            "BoardUnfit", "the board's ONNX Runtime has no {}; it has {}".format(provider, has), hint=hint
        )


def _spec(entry: Any, what: str) -> Spec:
    dtype = _DTYPES.get(entry.type)
    if dtype is None:
        raise RunnerError(
            "ModelRejected",
            "{} {!r} is of type {}; only tensors of numbers or booleans can be sent".format(
                what, entry.name, entry.type
            ),
        )
    return Spec(entry.name, dtype, tuple(size if isinstance(size, int) else str(size or "?") for size in entry.shape))


def profile(model_path: str, options: Options, folder: str) -> Tuple[List[KernelTime], ProfileNotes]:
    """Kernels of one inference on zeros (free dimensions are 1), from ONNX Runtime's own profile, and what its log and
    its assignment say. Nodes have names here, also those that have none in the file."""
    import numpy as np
    import onnxruntime

    accelerated = any(name != CPU for name, _ in options.providers)
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 3
    with tempfile.TemporaryDirectory(dir=folder) as private:
        log = os.path.join(private, "log")
        named = os.path.join(private, "model.onnx")
        if accelerated and write_named(model_path, named):
            model_path = named
        with streams.errors_into(log):
            session = _create(model_path, options, _RECORD, os.path.join(private, "profile"), 0 if accelerated else 3)
        feeds = {}
        for spec in (_spec(entry, "input") for entry in session.get_inputs()):
            shape = [size if isinstance(size, int) else 1 for size in spec.shape]
            feeds[spec.name] = np.zeros(shape, dtype=spec.dtype)
        try:
            session.run(None, feeds, quiet)
        finally:
            path = session.end_profiling()
        with open(log, encoding="utf-8", errors="replace") as file:
            refused = refusals(file.read())
        with open(path, encoding="utf-8", errors="replace") as file:
            return kernel_times(json.load(file)), ProfileNotes(refused, _assignment(session))


def refusals(log: str) -> Dict[str, str]:
    """Node -> why it was refused, of what ONNX Runtime logs at its most talkative.

    QNN tells each group of nodes it examined as ``Validation FAILED``, with a reason for each node
    (``QnnEp::LogNodeSupport`` in onnxruntime-qnn).
    """
    out: Dict[str, str] = {}
    for node, reason in re.findall(r"Node name: (\S*) Node index: \d+\s+REASON : ([^\n]+)", log):
        out.setdefault(node, re.sub(r"^\S*/(\S+\.cc:\d+ )", r"\1", reason.strip())[:300])
    return out


def kernel_times(events: Sequence[Mapping[str, Any]]) -> List[KernelTime]:
    """The ``*_kernel_time`` events of an ONNX Runtime profile."""
    suffix = "_kernel_time"
    out: List[KernelTime] = []
    for event in events:
        name, args = str(event.get("name", "")), event.get("args") or {}
        if name.endswith(suffix) and args.get("provider"):
            duration_ns = int(event.get("dur", 0)) * 1000
            out.append(
                KernelTime(name[: -len(suffix)], str(args.get("op_name", "")), str(args["provider"]), duration_ns)
            )
    return out


def _plain(error: BaseException) -> str:
    """ONNX Runtime's text without its codes and the names of our files, which help nobody."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    return re.sub(r"Load model from \S+ failed:\s*", "", text) or type(error).__name__


def classify(error: BaseException, phase: str) -> Tuple[str, str]:
    """What an exception of ONNX Runtime means, by its text: its Python classes differ between versions."""
    text = "{}: {}".format(type(error).__name__, error)
    low = text.lower()
    if isinstance(error, MemoryError) or any(sign in low for sign in _OUT_OF_MEMORY):
        return "OutOfMemory", "the runtime ran out of memory: {}".format(_plain(error))
    if any(sign in low for sign in _UNSUPPORTED) or type(error).__name__ == "NotImplemented":
        return "UnsupportedOperator", "the runtime has no implementation of an operator: {}".format(_plain(error))
    if phase == "run":
        if any(sign in low for sign in _BAD_INPUT):
            return "BadData", "the runtime refused the inputs: {}".format(_plain(error))
        return "ModelRejected", "the runtime failed while executing the model: {}".format(_plain(error))
    return "ModelRejected", "the runtime refused the model: {}".format(_plain(error))
