"""One quantization job, in a process of its own: forked by the worker, or run as a module where forking is unsafe."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from device_agents.host_lock import HostLock
from harness.boards.folders import cache_folder
from harness.errors import BoardtuneError, DataError
from harness.quantize.acceptance import accept, first_line
from harness.quantize.cache import Cache
from harness.quantize.contract import Artifact, Backend, Cause, QuantizeJob, Refusal
from harness.quantize.imported import ImportedBackend
from harness.quantize.ort_backend import OrtBackend, UnsupportedRecipeError
from harness.quantize.vendors.backend import VendorBackend, VendorFailed
from harness.quantize.worker_wire import MessageReader, job_from_json, result_to_json, write_message

Phase = Callable[[str], None]
Send = Callable[[dict[str, Any]], None]
BackendFactory = Callable[[Callable[[], None], Phase], Backend]


def run_job(job: QuantizeJob, backends: Mapping[str, str], send: Send) -> Artifact | Refusal:
    """Quantizes and accepts. ``backends`` maps further backends' names to ``module:factory``.

    ``send`` is told the phases, and when waiting for a clock on this host begins and ends (that is not working time).
    ``job.extra["host_lock"]`` names the folder of the host lock to hold meanwhile, if any.
    """

    def phase(name: str) -> None:
        send({"phase": name})

    try:
        with _quiet(), _working(job, send) as breathe:
            cache = _cache(job)
            backend = _backend(job, backends, breathe, phase, cache)
            notices = backend.quantize(job.model, job.calibration, job.recipe, job.out)
            made = accept(
                job.model,
                job.out,
                job.calibration,
                job.recipe,
                min_snr_db=job.limits.min_snr_db,
                notices=notices,
                breathe=breathe,
                phase=phase,
                cache=cache,
                digests=job.extra.get("digests"),
            )
            if isinstance(made, Artifact) and isinstance(backend, VendorBackend):
                made = replace(made, backend_version=backend.version(), settings=backend.settings)
            return made
    except VendorFailed as error:
        return Refusal(error.cause, str(error), detail=error.detail)
    except MemoryError:
        return Refusal(Cause.OUT_OF_MEMORY, "the quantizer ran out of memory", detail=traceback.format_exc())
    except UnsupportedRecipeError as error:
        return Refusal(Cause.UNSUPPORTED, str(error))
    except DataError as error:
        return Refusal(Cause.BAD_CALIBRATION, str(error))
    except BoardtuneError as error:
        return Refusal(Cause.FAILED, str(error), detail=traceback.format_exc())
    except Exception as error:
        return _refusal_from(error, job)


def _refusal_from(error: Exception, job: QuantizeJob) -> Refusal:
    detail = traceback.format_exc()
    if "bad_alloc" in str(error) or "Failed to allocate memory" in str(error):
        return Refusal(Cause.OUT_OF_MEMORY, f"the quantizer ran out of memory: {first_line(error)}", detail=detail)
    return Refusal(
        Cause.FAILED,
        f"the {job.recipe.backend} quantizer failed on this model ({job.recipe.label}): {first_line(error)}",
        detail=detail,
    )


def _cache(job: QuantizeJob) -> Cache:
    """``job.extra["cache"]`` names the folder; the user's own if it is not given, none if it is empty."""
    folder = job.extra.get("cache")
    if folder == "":
        return Cache(None)
    return Cache(Path(folder) if folder else cache_folder() / "calibration")


def _backend(
    job: QuantizeJob, backends: Mapping[str, str], breathe: Callable[[], None], phase: Phase, cache: Cache
) -> Backend:
    name = job.recipe.backend
    if job.recipe.scheme == "imported":
        return ImportedBackend(job.extra.get("imported"))
    if job.recipe.scheme == "vendor":
        listening = Path(job.extra["vendor_socket"])
        digests = job.extra.get("digests")
        return VendorBackend(name, listening, job.limits.memory_bytes, breathe, phase, cache, digests)
    if name == OrtBackend.name:
        return OrtBackend(breathe, phase, cache, job.extra.get("digests"))
    if name not in backends:
        known = ", ".join([OrtBackend.name, *backends])
        raise UnsupportedRecipeError(f"there is no quantizer backend {name!r} here (there are: {known})")
    module, _, factory = backends[name].partition(":")
    make: BackendFactory = getattr(importlib.import_module(module), factory)
    return make(breathe, phase)


@contextlib.contextmanager
def _working(job: QuantizeJob, send: Send) -> Iterator[Callable[[], None]]:
    """Holds the shared side of the host lock, so that a clock on this host keeps the processors to itself."""
    folder = job.extra.get("host_lock")
    if not folder:
        yield lambda: None
        return
    with contextlib.ExitStack() as stack:
        send({"waiting": True})
        work = stack.enter_context(HostLock(Path(folder)).work())
        send({"waiting": False})

        def breathe() -> None:
            send({"waiting": True})
            work.breathe()
            send({"waiting": False})

        yield breathe


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """ONNX Runtime's tools warn through the root logger about what is known and handled here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def main() -> int:
    """For systems without a safe fork: job and backends on stdin, messages on stdout."""
    replies = os.dup(1)
    os.dup2(2, 1)
    request = MessageReader(0).read(timeout_s=60.0)
    if request is None:
        return 1

    def send(message: dict[str, Any]) -> None:
        write_message(replies, message)

    send({"result": result_to_json(run_job(job_from_json(request["job"]), request["backends"], send))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
