"""Execution providers that come as libraries of their own, through ONNX Runtime's EP device API. Runs in a child only.

ONNX Runtime 1.23 and newer loads them with ``register_execution_provider_library``. Sessions do not find them by name:
asked for a name it does not know, ``InferenceSession`` warns and computes on the CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Set

from .errors import RunnerError
from .platform import Plugin

PACKAGES = {
    "QNNExecutionProvider": "onnxruntime_qnn",
    "OpenVINOExecutionProvider": "onnxruntime_ep_openvino",
}
"""Provider -> Python package that carries its library and names it with ``get_library_path()``."""

_registered: Set[str] = set()


class _Cause(NamedTuple):
    signs: List[str]
    what: str
    hint: str


_CAUSES = (
    _Cause(
        ["undefined symbol: CreateEpFactories", "symbol CreateEpFactories"],
        "is no provider plugin of ONNX Runtime",
        "name the plugin itself, such as libonnxruntime_providers_NAME.so, not a library it uses",
    ),
    _Cause(
        [
            "invalid ELF header",
            "file too short",
            "wrong ELF class",
            "not a valid Win32",
            "mach-o, but wrong",
            "dynamically load",
        ],
        "is not a shared library of this machine's kind",
        "install the plugin built for the board's processor and operating system",
    ),
    _Cause(
        [
            "API version",
            "ApiVersion",
            "requires ORT",
            "undefined symbol",
            "GLIBC_",
            "version `",
            "minimum supported version",
        ],
        "was built for another ONNX Runtime or system than the board has",
        "install a plugin and an ONNX Runtime that belong together; the plugin's release notes say which",
    ),
    _Cause(
        ["cannot open shared object", "No such file", "error 126", "Library not loaded", "image not found"],
        "does not load, as a library it needs is missing",
        "install what the detail names, beside the plugin or where the system looks for libraries",
    ),
)


def installed() -> Dict[str, str]:
    """Provider -> version of its package, for the known plugin packages that are there. Loads none of them."""
    from importlib.metadata import PackageNotFoundError, version

    out: Dict[str, str] = {}
    for provider, package in PACKAGES.items():
        if importlib.util.find_spec(package) is not None:
            try:
                out[provider] = version(package.replace("_", "-"))
            except PackageNotFoundError:
                out[provider] = "unknown"
    return out


def is_plugin(provider: str, plugin: Optional[Plugin], built_in: List[str]) -> bool:
    """Whether the provider is to be had as a plugin: one is named, or a known one is installed and none built in."""
    if plugin is not None and plugin.library:
        return True
    return provider not in built_in and importlib.util.find_spec(PACKAGES.get(provider, "?")) is not None


def devices(provider: str, plugin: Optional[Plugin]) -> List[Any]:
    """The ``OrtEpDevice`` to run on: the first of the kind the board file names, or the first at all.

    Raises:
        RunnerError: ``BoardUnfit``: ONNX Runtime takes no plugins, the library is missing, is none, is of another ABI,
            or finds no such device here.
    """
    import onnxruntime

    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise RunnerError(
            "BoardUnfit",
            "{} is a plugin, and ONNX Runtime {} takes none".format(provider, onnxruntime.__version__),
            hint="on the board: {} -m pip install --upgrade onnxruntime (1.23 or newer)".format(_python()),
        )
    library = plugin.library if plugin is not None and plugin.library else _packaged(provider)
    if provider not in _registered:
        _register(provider, library)
        _registered.add(provider)
    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    if not found:
        raise _no_device(provider, library)
    wanted = plugin.device if plugin is not None else ""
    fitting = [device for device in found if not wanted or _kind(device) == wanted]
    if not fitting:
        raise RunnerError(
            "BoardUnfit",
            "{} finds no {} on the board; it has {}".format(
                provider, wanted, ", ".join(sorted({_kind(device) for device in found}))
            ),
            hint="change device: of the provider in the board file, or install the device's driver",
        )
    return fitting[:1]


def _register(provider: str, library: str) -> None:
    import onnxruntime

    if not os.path.isfile(library):
        raise RunnerError(
            "BoardUnfit",
            "the plugin of {} is missing: there is no file {}".format(provider, library),
            hint="correct library: of the provider in the board file",
        )
    try:
        # Some plugins (QNN's) call their provider what the library is registered as.
        onnxruntime.register_execution_provider_library(provider, library)
    except Exception as error:  # ONNX Runtime's classes of errors differ between versions
        raise refusal(provider, library, str(error)) from None


def refusal(provider: str, library: str, text: str) -> RunnerError:
    """What ONNX Runtime's text about a library it does not load means."""
    for cause in _CAUSES:
        if any(sign.lower() in text.lower() for sign in cause.signs):
            said = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text).strip()[-300:]
            what = "the plugin of {}, {}, {}: {}".format(provider, library, cause.what, said)
            return RunnerError("BoardUnfit", what, hint=cause.hint, detail=text)
    what = "ONNX Runtime does not load the plugin of {}, {}: {}".format(provider, library, text[-500:])
    return RunnerError("BoardUnfit", what, hint="install plugin and ONNX Runtime of matching versions", detail=text)


def _packaged(provider: str) -> str:
    package = PACKAGES.get(provider)
    if package is None or importlib.util.find_spec(package) is None:
        raise RunnerError(
            "BoardUnfit",
            "the board has no plugin of {}".format(provider),
            hint="on the board: {} -m pip install {}".format(_python(), (package or "its package").replace("_", "-")),
        )
    try:
        return str(importlib.import_module(package).get_library_path())
    except Exception as error:
        raise RunnerError(
            "BoardUnfit",
            "package {} does not give the library of {}: {}".format(package, provider, error),
            hint="on the board: {} -m pip install --force-reinstall {}".format(_python(), package.replace("_", "-")),
        ) from None


def _no_device(provider: str, library: str) -> RunnerError:
    hint = "install the driver of its device"
    if provider == "OpenVINOExecutionProvider":
        # microsoft/onnxruntime pull request 31981: the plugin passes over devices of other makers, processors too.
        hint += "; this plugin lists Intel's devices only. On other processors install onnxruntime-openvino instead"
    return RunnerError("BoardUnfit", "the plugin of {}, {}, finds no device here".format(provider, library), hint=hint)


def _kind(device: Any) -> str:
    return str(device.device.type).rpartition(".")[2].lower()


def _python() -> str:
    return os.path.basename(sys.executable) or "python3"
