"""Timing, placement, node names, sensors, stores: each against an independent source."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from device_agents.runner.errors import RunnerError
from device_agents.runner.onnx_nodes import Graph, Node, read_graph, read_nodes
from device_agents.runner.ort import classify, kernel_times
from device_agents.runner.placement import receipt
from device_agents.runner.platform import KernelTime
from device_agents.runner.sensors import Sensors
from device_agents.runner.store import ModelStore, ResultStore
from device_agents.runner.timing import timed_block

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist" / "model.onnx"
CPU, NPU = "CPUExecutionProvider", "NpuExecutionProvider"


# ---- timing --------------------------------------------------------------------------------------------------------


class FakeClock:
    """Runs only while work is done."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now

    def work(self, nanoseconds: int) -> None:
        self.now += nanoseconds


def test_samples_are_the_durations_in_order() -> None:
    clock = FakeClock()
    got = timed_block(clock.work, [5, 7, 11], clock, min_count=7, min_ns=0, max_ns=10**9)
    assert list(got) == [5, 7, 11, 5, 7, 11, 5]


def test_both_minima_and_the_maximum() -> None:
    clock = FakeClock()
    assert len(timed_block(clock.work, [10], clock, 3, 100, 10**9)) == 10
    assert len(timed_block(clock.work, [10], clock, 30, 100, 10**9)) == 30
    assert len(timed_block(clock.work, [10], clock, 30, 10**9, 205)) == 21
    assert len(timed_block(clock.work, [10], clock, 30, 10**9, 0)) == 1


def test_more_samples_than_one_chunk() -> None:
    clock = FakeClock()
    got = timed_block(clock.work, list(range(1, 1001)), clock, 150_000, 0, 10**15)
    assert len(got) == 150_000
    assert sum(got) == 150 * sum(range(1, 1001))


def test_the_collector_is_off_meanwhile_and_on_again() -> None:
    seen = []
    timed_block(lambda _: seen.append(gc.isenabled()), [None], time.perf_counter_ns, 3, 0, 10**12)
    assert seen == [False] * 3
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        timed_block(lambda _: 1 / 0, [None], time.perf_counter_ns, 3, 0, 10**12)
    assert gc.isenabled()


# ---- node names ----------------------------------------------------------------------------------------------------


def test_nodes_are_those_onnx_reads() -> None:
    graph = onnx.load(EXAMPLE).graph
    expected = [(n.name, n.op_type, tuple(n.output), tuple(n.input)) for n in graph.node]
    found = read_graph(str(EXAMPLE))
    assert [tuple(node) for node in found.nodes] == expected
    assert list(found.initializers) == [tensor.name for tensor in graph.initializer]
    assert (list(found.inputs), list(found.outputs)) == (["image"], ["logits"])


def test_unnamed_nodes_have_the_profile_s_names(tmp_path: Path) -> None:
    model = onnx.load(EXAMPLE)
    for node in model.graph.node:
        node.name = ""
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(path, options, providers=[CPU])
    session.run(None, {"image": np.zeros((1, 1, 28, 28), np.float32)})
    executed = {kernel.node for kernel in kernel_times(json.loads(Path(session.end_profiling()).read_text()))}
    assert len(executed) > 10
    assert executed <= {node.name for node in read_nodes(str(path))}


@pytest.mark.parametrize("content", [b"", b"\x00" * 50, os.urandom(200), EXAMPLE.read_bytes()[:3000]])
def test_damaged_files_have_no_nodes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert read_nodes(str(path)) == []


# ---- placement -----------------------------------------------------------------------------------------------------

NODES = Graph(
    [
        Node("conv", "Conv", ("c",)),
        Node("relu", "Relu", ("r",)),
        Node("two", "Constant", ("k",)),
        Node("mul", "Mul", ("m",)),
        Node("soft", "Softmax", ("s",)),
    ]
)


def kernel(node: str, provider: str = CPU, ns: int = 100) -> KernelTime:
    return KernelTime(node, "Any", provider, ns)


def test_cpu_only_with_fusion() -> None:
    got = receipt(
        NODES, [CPU], {CPU: ["conv", "relu", "mul", "soft"]}, [kernel("r_nchwc"), kernel("mul"), kernel("soft")]
    )
    assert got["nodes"] == {CPU: ["relu", "mul", "soft"]}
    assert (got["fused"], got["folded"]) == (["conv"], ["two"])
    assert got["evidence"] == ["cpu-only", "ort-graph-assignment", "ort-profile"]
    assert got["agrees"] is True
    assert got["offload_ratio"] is None


def test_a_compiled_subgraph_is_known_from_the_assignment() -> None:
    assignment = {NPU: ["conv", "relu", "mul"], CPU: ["soft"]}
    got = receipt(NODES, [NPU, CPU], assignment, [kernel("npu_subgraph_0", NPU, 300), kernel("soft", CPU, 100)])
    assert got["nodes"] == {NPU: ["conv", "relu", "mul"], CPU: ["soft"]}
    assert (got["fused"], got["folded"]) == ([], ["two"])
    assert got["agrees"] is True
    assert got["offload_ratio"] == 0.75
    assert got["time_share"] == {NPU: 0.75, CPU: 0.25}


def test_a_provider_that_takes_nodes_but_runs_none_is_caught() -> None:
    assignment = {NPU: ["conv", "relu"], CPU: ["mul", "soft"]}
    got = receipt(NODES, [NPU, CPU], assignment, [kernel(n) for n in ("conv", "relu", "mul", "soft")])
    assert got["agrees"] is False
    assert set(got["nodes"]) == {CPU}


def test_nodes_in_another_layout_are_the_artifact_s() -> None:
    # As QNN's plugin and ONNX Runtime 1.32 name them: convolutions turned to NHWC, transpositions put in.
    assignment = {NPU: ["conv_token_1", "relu", "Transpose_token_58", "mul"], CPU: ["soft"]}
    got = receipt(NODES, [NPU, CPU], assignment, [kernel("npu_1_0", NPU), kernel("soft")])
    assert got["nodes"] == {NPU: ["conv", "relu", "mul"], CPU: ["soft"]}
    assert (got["fused"], got["agrees"], got["offload_ratio"]) == ([], True, 0.75)


def test_what_runs_on_the_cpu_is_not_offloaded_though_the_assignment_leaves_it_out() -> None:
    got = receipt(NODES, [NPU, CPU], {NPU: ["conv", "relu"]}, [kernel("npu_1", NPU), kernel("mul"), kernel("soft")])
    assert got["offload_ratio"] == 0.5


def test_constants_are_folded_unless_someone_runs_them() -> None:
    scale = Node("dq", "DequantizeLinear", ("w",), ("wq", "s", "z"))
    layer = Node("conv", "Conv", ("y",), ("x", "w"))
    graph = Graph([scale, layer], ["wq", "s", "z"], ["x"], ["y"])
    assert receipt(graph, [CPU], {CPU: ["conv"]}, [kernel("conv")])["folded"] == ["dq"]
    # Assigned: it was there when the graph was divided, so it became part of the convolution.
    assert receipt(graph, [CPU], {CPU: ["dq", "conv"]}, [kernel("conv")])["fused"] == ["dq"]
    placed = receipt(graph, [NPU], {NPU: ["dq", "conv"]}, [kernel("npu_1", NPU)])
    assert placed["nodes"] == {NPU: ["dq", "conv"]}


def test_a_cpu_only_session_that_ran_elsewhere_is_caught() -> None:
    assert receipt(NODES, [CPU], None, [kernel("conv", NPU)])["agrees"] is False


def test_without_a_profile_there_is_one_source() -> None:
    got = receipt(NODES, [CPU], None, [])
    assert got["nodes"] == {CPU: ["conv", "relu", "mul", "soft"]}
    assert (got["fused"], got["folded"]) == ([], ["two"])
    assert got["agrees"] is None
    assert receipt(NODES, [NPU, CPU], None, [])["offload_ratio"] is None


def test_profile_only_counts_kernels() -> None:
    got = receipt(NODES, [NPU, CPU], None, [kernel("a", NPU), kernel("b", NPU), kernel("soft"), kernel("mul")])
    assert got["offload_ratio"] == 0.5
    assert got["agrees"] is None


def test_only_kernels_of_a_profile_count() -> None:
    events = [
        {"name": "conv_kernel_time", "dur": 7, "args": {"provider": CPU, "op_name": "Conv"}},
        {"name": "conv_fence_before", "dur": 1, "args": {}},
        {"name": "model_run", "dur": 9},
        {"name": "session_initialization", "args": None},
    ]
    assert kernel_times(events) == [KernelTime("conv", "Conv", CPU, 7000)]


@pytest.mark.parametrize(
    ("text", "phase", "kind"),
    [
        ("[E] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Conv(11)", "load", "UnsupportedOperator"),
        ("Fatal error: com.acme:Foo(-1) is not a registered function/op", "load", "UnsupportedOperator"),
        ("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Protobuf parsing failed.", "load", "ModelRejected"),
        ("[E] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer", "run", "OutOfMemory"),
        ("std::bad_alloc", "load", "OutOfMemory"),
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x", "run", "BadData"),
        ("[ONNXRuntimeError] : 1 : FAIL : Non-zero status code", "run", "ModelRejected"),
    ],
)  # fmt: skip
def test_what_the_runtime_s_errors_mean(text: str, phase: str, kind: str) -> None:
    assert classify(RuntimeError(text), phase)[0] == kind


# ---- sensors -------------------------------------------------------------------------------------------------------


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_raspberry_pi_s_files(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/temp": "61350\n",
            "sys/class/thermal/thermal_zone1/temp": "58000\n",
            "sys/class/thermal/thermal_zone2/temp": "-274000\n",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1500000\n",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "1500000\n",
            "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "1500000\n",
            "sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "2400000\n",
            "sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq": "2400000\n",
            "sys/devices/system/cpu/cpufreq/policy4/cpuinfo_max_freq": "2400000\n",
            "sys/devices/system/cpu/cpufreq/policy4/scaling_governor": "performance\n",
            "sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n",
            "proc/meminfo": "MemTotal: 8000 kB\nMemAvailable:    4000 kB\n",
            "proc/loadavg": "0.25 0.1 0.0 1/200 999\n",
            "proc/vmstat": "pgfault 7\noom_kill 3\n",
        },
    )
    sensors = Sensors(tmp_path / "sys", tmp_path / "proc")
    assert sensors.read() == {
        "temperature_c": 61.35,
        "frequency_khz": 2_400_000,
        "max_frequency_khz": 2_400_000,
        "governor": "performance",
        "load_average": 0.25,
        "throttled": True,
        "memory_available_bytes": 4_096_000,
    }
    assert sensors.oom_kills() == 3


def test_throttled_in_the_past_is_not_throttled_now(tmp_path: Path) -> None:
    tree(tmp_path, {"devices/platform/soc/soc:firmware/get_throttled": "50000\n"})
    assert Sensors(tmp_path, tmp_path).throttled() is False


def test_x86_throttle_counters_are_compared_with_the_last_reading(tmp_path: Path) -> None:
    name = "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    tree(tmp_path, {name: "5\n", "firmware/acpi/platform_profile": "balanced\n"})
    sensors = Sensors(tmp_path, tmp_path)
    assert sensors.throttled() is False
    tree(tmp_path, {name: "6\n"})
    assert sensors.throttled() is True
    assert sensors.throttled() is False
    assert sensors.read()["power_mode"] == "balanced"


def test_nothing_shown_is_nothing_said(tmp_path: Path) -> None:
    assert Sensors(tmp_path / "no", tmp_path / "where").read() == {}


# ---- stores --------------------------------------------------------------------------------------------------------


def put(store_folder: Path, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    (store_folder / "models" / f"{sha256}.part").write_bytes(data)
    return sha256


def test_commit_shows_a_file_only_when_it_verifies(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    sha256 = put(tmp_path, b"abc")
    assert not store.has(sha256)
    assert store.part_size(sha256) == 3
    with pytest.raises(RunnerError, match="4 bytes"):
        store.commit(sha256, 4)
    assert store.part_size(sha256) is None
    put(tmp_path, b"abc")
    store.commit(sha256, 3)
    assert Path(store.path(sha256)).read_bytes() == b"abc"


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_names_that_are_no_digest_never_reach_the_file_system(tmp_path: Path, name: str) -> None:
    store = ModelStore(str(tmp_path))
    for call in (store.has, store.path, store.part_size):
        with pytest.raises(RunnerError, match="not a sha256"):
            call(name)
    with pytest.raises(RunnerError, match="not a request id"):
        ResultStore(str(tmp_path)).stored("../" + name)


def test_a_disk_that_is_full_is_told_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"disk is full: \d+ bytes free") as caught:
        ModelStore(str(tmp_path)).make_room("a" * 64, 1 << 60, 1 << 61, set())
    assert caught.value.kind == "BoardUnfit"


def test_old_results_make_way(tmp_path: Path) -> None:
    store = ResultStore(str(tmp_path))
    names = [f"{k:032x}" for k in range(20)]
    for k, name in enumerate(names):
        store.begin(name)
        assert store.running(name)
        store.finish(name, [b"head", b"tail"])
        os.utime(str(store.stored(name)), (k, k))
        assert not store.running(name)
    kept = [name for name in names if store.stored(name)]
    assert names[-1] in kept
    assert len(kept) == 8
    assert Path(str(store.stored(names[-1]))).read_bytes() == b"headtail"
