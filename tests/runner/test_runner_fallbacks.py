"""Reasons for fallbacks, and what refusals of plugins mean. Texts of logs and errors are those of the real stacks."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from device_agents.runner import plugins
from device_agents.runner.errors import RunnerError
from device_agents.runner.fallbacks import UNEXPLAINED, fallback_reasons
from device_agents.runner.onnx_nodes import Graph, Node, read_nodes, write_named
from device_agents.runner.ort import refusals
from device_agents.runner.placement import Profile, whole_assignment
from device_agents.runner.platform import Plugin

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist" / "model.onnx"
NPU, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
GRAPH = Graph(
    [
        Node("q_in", "QuantizeLinear", ("xq",), ("x", "s", "z")),
        Node("dq", "DequantizeLinear", ("xf",), ("xq", "s", "z")),
        Node("gelu", "Gelu", ("g",), ("xf",)),
        Node("q", "QuantizeLinear", ("gq",), ("g", "s", "z")),
        Node("dq_out", "DequantizeLinear", ("y",), ("gq", "s", "z")),
    ],
    ["s", "z"],
    ["x"],
    ["y"],
)

# onnxruntime-qnn 2.7.0 at log severity 0.
LOG = """2026 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Conv) :
\tOperator type: Conv Node name: /0/Conv Node index: 0
\tREASON : Cannot get shape

2026 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (QuantizeLinear) :
\tOperator type: QuantizeLinear Node name: q_in Node index: 3
\tREASON : QNN EP is configured to not take Q nodes that consume a graph input.
"""  # noqa: E501


def test_qnn_says_why_node_by_node() -> None:
    assert refusals(LOG) == {
        "/0/Conv": "Cannot get shape",
        "q_in": "QNN EP is configured to not take Q nodes that consume a graph input.",
    }
    assert refusals("") == {}


def test_the_runtime_s_word_comes_first_and_the_rest_is_read_off_the_graph() -> None:
    fallen = ["q_in", "dq", "gelu", "q", "dq_out"]
    found = fallback_reasons(GRAPH, [NPU, CPU], fallen, {"gelu": "no such operator"})
    assert found["gelu"] == "QNNExecutionProvider: no such operator"
    assert "input 'x'" in found["q_in"]
    assert "output 'y'" in found["dq_out"]
    assert found["dq"] == found["q"] == "converts for gelu, which runs on the CPU"


def test_what_nobody_explains_is_said_to_be_unexplained() -> None:
    assert fallback_reasons(GRAPH, [NPU, CPU], ["gelu"], {}) == {"gelu": UNEXPLAINED}
    assert fallback_reasons(GRAPH, [NPU, CPU], ["dq"], {}) == {"dq": UNEXPLAINED}


def test_boards_without_an_accelerator_have_no_fallbacks() -> None:
    assert fallback_reasons(GRAPH, [CPU], ["gelu"], {}) == {}


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("Failed to get symbol CreateEpFactories with error: x.so: undefined symbol: CreateEpFactories", "no provider"),
        ("Failed to load library x.so with error: x.so: invalid ELF header", "machine's kind"),
        ("x.so: /lib/libc.so.6: version `GLIBC_2.38' not found", "another ONNX Runtime or system"),
        # onnxruntime-qnn 2.7.0 under ONNX Runtime 1.23.2
        ("QNN EP requires ORT >= 1.24 (API 24). Host ORT is 1.23.2 (API 23).", "QNN EP requires ORT >= 1.24"),
        ("The requested API version [27] is not available", "another ONNX Runtime or system"),
        ("libfoo.so.2: cannot open shared object file: No such file or directory", "a library it needs is missing"),
        ("something new", "something new"),
    ],
)
def test_what_a_refused_library_means(text: str, means: str) -> None:
    error = plugins.refusal(NPU, "x.so", text)
    assert error.kind == "BoardUnfit"
    assert means in error.message
    assert "x.so" in error.message
    assert error.hint
    assert error.detail == text


def test_real_libraries_that_are_no_plugins(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="there is no file"):
        plugins.devices("AcmeExecutionProvider", Plugin("AcmeExecutionProvider", str(tmp_path / "none.so"), ""))
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(RunnerError, match="machine's kind"):
        plugins.devices("AcmeExecutionProvider", Plugin("AcmeExecutionProvider", str(text), ""))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names of libraries are Linux's")
def test_a_library_that_is_no_plugin() -> None:
    import _ctypes

    with pytest.raises(RunnerError, match="no provider plugin"):
        plugins.devices("AcmeExecutionProvider", Plugin("AcmeExecutionProvider", _ctypes.__file__, ""))


def test_a_provider_without_a_package_or_library() -> None:
    with pytest.raises(RunnerError, match="no plugin of AcmeExecutionProvider"):
        plugins.devices("AcmeExecutionProvider", None)


def test_a_named_copy_is_the_same_model_with_names(tmp_path: Path) -> None:
    model = onnx.load(EXAMPLE)
    for node in list(model.graph.node)[::2]:
        node.name = ""
    source, target = tmp_path / "m.onnx", tmp_path / "n.onnx"
    onnx.save(model, source)
    assert write_named(str(source), str(target))
    copy = onnx.load(target)
    expected = [node.name for node in read_nodes(str(source))]
    assert [node.name for node in copy.graph.node] == expected
    for node, name in zip(model.graph.node, expected, strict=True):
        node.name = name
    assert copy == model


def test_a_model_with_names_is_not_copied(tmp_path: Path) -> None:
    assert not write_named(str(EXAMPLE), str(tmp_path / "n.onnx"))
    assert list(tmp_path.iterdir()) == []


def test_names_come_from_a_profiled_session_that_divided_the_graph_alike() -> None:
    profile = Profile((), {}, {NPU: ["a", "b"], CPU: ["c"]})
    assert whole_assignment({NPU: ["", "b"], CPU: ["c"]}, profile) == profile.assignment
    other = {NPU: [""], CPU: ["", "c"]}
    assert whole_assignment(other, profile) == other
    named = {NPU: ["x", "y"], CPU: ["z"]}
    assert whole_assignment(named, profile) == named
    assert whole_assignment(None, profile) is None
