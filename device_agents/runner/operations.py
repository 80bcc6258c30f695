"""What a controller that holds the board can ask for."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import frames
from .children import ChildProcess
from .errors import RunnerError
from .fallbacks import fallback_reasons
from .onnx_nodes import read_graph
from .placement import CPU, Profile, receipt, whole_assignment
from .platform import KernelTime, Platform
from .store import ModelStore, clean

Answer = Tuple[Dict[str, Any], Sequence[frames.Buffer]]
_MAX_DEADLINE_S = 86400.0
_PROFILE_LEAST_S, _PROFILE_MOST_S = 5.0, 60.0


class _Loaded:
    def __init__(self, child: ChildProcess, sha256: str) -> None:
        self.child = child
        self.sha256 = sha256


class Operations:
    """One instance per ``serve``; ``perform`` runs one operation by its name on the wire."""

    def __init__(self, platform: Platform, folder: str) -> None:
        self._platform = platform
        self._folder = folder
        self._temporary = os.path.join(folder, "tmp")
        shutil.rmtree(self._temporary, ignore_errors=True)
        os.makedirs(self._temporary, exist_ok=True)
        self._store = ModelStore(folder)
        self._sessions: Dict[str, _Loaded] = {}
        self._facts: Optional[Dict[str, Any]] = None
        self._profiles: Dict[str, Profile] = {}

    def perform(self, operation: str, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        method = getattr(self, "_op_" + operation, None)
        if method is None:
            raise RunnerError("BadData", "unknown operation {!r}".format(operation[:80]))
        answer: Answer = method(request, header, blobs)
        return answer

    def close(self) -> None:
        """Ends all children."""
        for loaded in self._sessions.values():
            loaded.child.kill()
        self._sessions.clear()
        shutil.rmtree(self._temporary, ignore_errors=True)

    # ---- the board -----------------------------------------------------------------------------------------------

    def _op_describe(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        if self._facts is None:
            reply, _ = self._ask_once({"op": "facts"}, _deadline(header))
            self._facts = dict(reply["facts"])
        return {"facts": self._facts}, ()

    def _op_health(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        return {"state": dict(self._platform.state(), disk_free_bytes=shutil.disk_usage(self._folder).free)}, ()

    def _op_self_test(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        command = {"op": "self_test", "folder": self._temporary, "seconds": float(header.get("seconds", 1.0))}
        reply, _ = self._ask_once(command, _deadline(header))
        free = shutil.disk_usage(self._folder).free
        findings = dict(reply["findings"])
        findings["disk"] = "{}: {:.1f} GB free".format("ok" if free > 200e6 else "problem", free / 1e9)
        return {"findings": findings}, ()

    def _op_clean(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        self.close()
        return {"removed": clean(self._folder)}, ()

    # ---- files ---------------------------------------------------------------------------------------------------

    def _op_has(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        return {"has": self._store.has(str(header["sha256"]))}, ()

    def _op_size(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        return {"part_bytes": self._store.part_size(str(header["sha256"]))}, ()

    def _op_make_room(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        in_use = {loaded.sha256 for loaded in self._sessions.values()}
        in_use.update(str(digest) for digest in header.get("keep") or ())
        removed = self._store.make_room(str(header["sha256"]), int(header["size"]), int(header["cache_bytes"]), in_use)
        return {"removed": removed}, ()

    def _op_commit(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        self._store.commit(str(header["sha256"]), int(header["size"]))
        return {}, ()

    # ---- models --------------------------------------------------------------------------------------------------

    def _op_load(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        sha256 = str(header["sha256"])
        path = self._store.path(sha256)
        command = {"op": "load", "path": path, "options": header["options"], "pipeline": header.get("pipeline")}
        deadline_s = _deadline(header)
        until = time.monotonic() + deadline_s
        alone = bool(header.get("alone"))
        # Two sessions at once disturb each other on some accelerators: there the profiled run comes before the load.
        # Elsewhere it comes after, so that it cannot warm anything up for the load that is timed.
        profile = self._profile(sha256, path, header["options"], deadline_s / 3, None) if alone else Profile()
        child = ChildProcess(self._platform, self._folder)
        try:
            reply, _ = child.ask(command, (), until - time.monotonic())
        except RunnerError:
            child.kill()
            raise
        self._sessions[request] = _Loaded(child, sha256)
        if not alone:
            left_s = until - time.monotonic()
            profile = self._profile(sha256, path, header["options"], left_s / 2, int(reply["load_ns"]))
        providers = [str(name) for name, _ in header["options"]["providers"]]
        answer = {key: reply[key] for key in ("load_ns", "inputs", "outputs", "compiled_sha256", "peak_memory_bytes")}
        answer["session"] = request
        graph = read_graph(path)
        answer["placement"] = receipt(graph, providers, whole_assignment(reply["assignment"], profile), profile.kernels)
        placement = answer["placement"]
        placement.update(reply["placement_notes"])
        reasons = fallback_reasons(graph, providers, placement["nodes"].get(CPU, ()), profile.refusals)
        placement["fallback_reasons"] = {**reasons, **placement["fallback_reasons"]}
        return answer, ()

    def _op_measure(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        command: Dict[str, Any] = {key: int(header[key]) for key in ("min_count", "min_ns", "max_ns", "rows")}
        command.update(op="measure", batch=int(header.get("batch", 1)), label=str(header.get("label", "")))
        return self._ask_session(header, command, blobs)

    def _op_infer(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        return self._ask_session(header, {"op": "infer", "batch": int(header["batch"])}, blobs)

    def _op_unload(self, request: str, header: frames.Header, blobs: List[frames.Buffer]) -> Answer:
        loaded = self._sessions.pop(str(header["session"]), None)
        if loaded is not None:
            loaded.child.kill()
        return {}, ()

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _ask_session(self, header: frames.Header, command: Dict[str, Any], blobs: List[frames.Buffer]) -> Answer:
        session = str(header["session"])
        loaded = self._sessions.get(session)
        if loaded is None:
            text = "no session {!r} on the board".format(session[:80])
            raise RunnerError("BadData", text, hint="load the model again")
        if header.get("data_sha256"):
            command["data_path"] = self._store.path(str(header["data_sha256"]))
            command["row_indices"] = header.get("row_indices")
        else:
            command["arrays"] = header.get("arrays") or []
        try:
            reply, out = loaded.child.ask(command, blobs, _deadline(header))
        finally:
            if not loaded.child.alive():
                del self._sessions[session]
        reply.pop("ok", None)
        return reply, out

    def _ask_once(self, command: Dict[str, Any], deadline_s: float) -> Answer:
        """Asks a child of its own and ends it."""
        child = ChildProcess(self._platform, self._folder)
        try:
            return child.ask(command, (), deadline_s)
        finally:
            child.kill()

    def _profile(self, sha256: str, path: str, options: Any, limit_s: float, load_ns: Optional[int]) -> Profile:
        """Of one profiled inference; empty where it fails, for then the receipt has one source less.

        Once per model and options: placement does not change between loads. A model that loads in ``load_ns`` but does
        not end a single inference must not hold up its load for long.
        """
        key = sha256 + json.dumps(options, sort_keys=True)
        if key not in self._profiles:
            patience_s = _PROFILE_MOST_S if load_ns is None else _PROFILE_LEAST_S + 20 * load_ns / 1e9
            limit = min(limit_s, patience_s, _PROFILE_MOST_S)
            command = {"op": "profile", "path": path, "options": options, "folder": self._temporary}
            try:
                reply, _ = self._ask_once(command, limit)
            except RunnerError:
                return Profile()
            kernels = [
                KernelTime(str(node), str(op_type), str(provider), int(duration))
                for node, op_type, provider, duration in reply["kernels"]
            ]
            self._profiles[key] = Profile(kernels, reply["refusals"], reply["assignment"])
        return self._profiles[key]


def _deadline(header: frames.Header) -> float:
    return min(max(0.0, float(header["deadline_s"])), _MAX_DEADLINE_S)
