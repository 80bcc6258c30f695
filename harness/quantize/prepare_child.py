"""The child process of :func:`harness.quantize.prepare.prepare_model`: JSON request on stdin, JSON lines on stdout."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from harness.errors import ModelError
from harness.quantize.child import take_request
from harness.quantize.contract import ModelRefused
from harness.quantize.identity import identity_of
from harness.quantize.preparation import check_loads, facts_of, prepare
from harness.quantize.shapes import model_inputs, tensor_outputs, tensor_specs


def main() -> int:
    request, send = take_request()
    path, out = Path(request["model"]), Path(request["out"])
    try:
        if request.get("check"):
            check_loads(path, phase=lambda name: send({"phase": name}))
            send({"loads": True})
            return 0
        model, notices = prepare(
            path,
            out,
            request["set_dims"],
            request["batch"],
            transform=request["transform"],
            phase=lambda name: send({"phase": name}),
            continue_quantized=request["continue_quantized"],
        )
        facts = facts_of(model)
        prepared = {
            "path": str(out),
            "digest": identity_of(model, out.parent),
            "inputs": [vars(spec) for spec in tensor_specs(model_inputs(model))],
            "outputs": [vars(spec) for spec in tensor_specs(tensor_outputs(model))],
            "facts": {**vars(facts), "op_types": dict(facts.op_types)},
            "notices": list(notices),
        }
    except ModelError as error:
        cause = {"cause": str(error.cause)} if isinstance(error, ModelRefused) else {}
        send({"error": {"message": error.message, "hint": error.hint, "where": error.where, **cause}})
        return 0
    except (OSError, MemoryError) as error:
        message = f"cannot be prepared on this host: {str(error) or 'not enough memory'}"
        send({"error": {"message": message, "where": str(path)}})
        return 0
    except Exception as error:
        send({"internal": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
        return 0
    send({"prepared": prepared})
    return 0


if __name__ == "__main__":
    sys.exit(main())
