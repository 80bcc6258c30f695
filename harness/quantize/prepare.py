"""Makes a user's model ready for quantization, without touching it on disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness.errors import ModelError
from harness.quantize.child import ask_child
from harness.quantize.contract import Cause, ModelRefused
from harness.recipes.facts import ModelFacts
from harness.tensors import TensorSpec

logger = logging.getLogger(__name__)

TIMEOUT_S = 600.0
_CHILD = "harness.quantize.prepare_child"


@dataclass(frozen=True)
class PreparedModel:
    """A float model with fixed shapes, folded constants and named nodes."""

    path: Path
    digest: str
    """sha256 of its canonical content, see :mod:`harness.quantize.identity`."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    facts: ModelFacts
    notices: tuple[str, ...] = ()
    """What was done that a user should know."""


_PREPARED: TypeAdapter[PreparedModel] = TypeAdapter(PreparedModel)


def prepare_model(
    model: Path,
    out: Path,
    set_dims: Mapping[str, int] | None = None,
    *,
    batch: int = 1,
    timeout_s: float = TIMEOUT_S,
    continue_quantized: bool = False,
) -> PreparedModel:
    """Checks ``model`` and writes its prepared form to ``out`` (external data, if it needs any, beside it).

    A free first axis becomes ``batch`` with a notice; other free dimensions need ``set_dims`` (name -> size). The work
    is done in a child process, since ONNX Runtime can crash on a model; if the optional steps crash, they are left out.
    The same model gives the same bytes. A model that is quantized in part is refused unless ``continue_quantized``:
    then what is quantized stays, and is part of what results are compared with.

    Raises ModelError naming the file and the way out (:class:`~harness.quantize.contract.ModelRefused` where the file
    is well, but nothing can be quantized), and ``RuntimeError`` on a defect of the preparation itself.
    """
    if out.resolve() == model.resolve():
        raise ModelError("the prepared model would overwrite the model itself", where=model)
    request = {
        "model": str(model),
        "out": str(out),
        "set_dims": dict(set_dims or {}),
        "batch": batch,
        "transform": True,
        "continue_quantized": continue_quantized,
    }
    reply = ask_child(_CHILD, request, timeout_s)
    if "died" in reply and reply["phase"] not in ("reading the model", "loading the float model"):
        if reply["phase"] == "running the float model":
            raise ModelRefused(
                f"ONNX Runtime dies ({reply['died']}) when it runs this float model: it cannot be used",
                cause=Cause.CRASHED,
                where=model,
                hint="check that every node's outputs are connected or left out as its operator allows",
            )
        logger.warning("%s: %s died (%s); going on without it", model, reply["phase"], reply["died"])
        left_out = f"{reply['phase']} died ({reply['died']}): left out"
        reply = ask_child(_CHILD, {**request, "transform": False}, timeout_s)
        if "prepared" in reply:
            reply["prepared"]["notices"].append(left_out)
    _check(reply, model)
    return _PREPARED.validate_python(reply["prepared"])


def check_loads(model: Path, *, timeout_s: float = TIMEOUT_S) -> None:
    """Loads ``model``, float or quantized, in a child process on this host.

    Raises ModelError saying why it cannot be loaded; boards with another runtime may differ.
    """
    _check(ask_child(_CHILD, {"model": str(model), "out": "", "check": True}, timeout_s), model)


def _check(reply: Mapping[str, Any], model: Path) -> None:
    if "died" in reply:
        raise ModelError(f"the process {reply['phase']} died ({reply['died']}): it cannot be used", where=model)
    if "internal" in reply:
        defect = RuntimeError(f"preparing {model}: {reply['internal']}")
        defect.add_note(reply["trace"])
        raise defect
    if "cause" in reply.get("error", ()):
        raise ModelRefused(**{**reply["error"], "cause": Cause(reply["error"]["cause"])})
    if "error" in reply:
        raise ModelError(**reply["error"])
