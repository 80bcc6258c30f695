"""Small float graphs, written node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
IR_OF_OPSET = {
    7: 3,
    8: 3,
    9: 4,
    10: 5,
    11: 6,
    12: 7,
    13: 7,
    14: 7,
    15: 8,
    16: 8,
    17: 8,
    18: 8,
    19: 9,
    20: 9,
    21: 10,
    22: 10,
}


class GraphBuilder:
    """Collects nodes, constants, inputs and outputs; every method returns tensor names."""

    def __init__(self, opset: int = 17, seed: int = 0, float_type: int = TensorProto.FLOAT) -> None:
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self.float_type = float_type
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.domains: dict[str, int] = {"": opset}
        self.functions: list[onnx.FunctionProto] = []

    def input(self, name: str, *shape: int | str, type: int | None = None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, type or self.float_type, list(shape)))
        return name

    def output(self, *names: str, type: int | None = None) -> None:
        for name in names:
            self.outputs.append(helper.make_tensor_value_info(name, type or self.float_type, None))

    def constant(self, name: str, value: Any, dtype: Any = None) -> str:
        """``value`` as it is; float32 arrays take the builder's float type."""
        array = np.asarray(value, dtype=dtype)
        if array.dtype == np.float64 and dtype is None:
            array = array.astype(np.float32)
        if array.dtype == np.float32 and dtype is None:
            array = array.astype(helper.tensor_dtype_to_np_dtype(self.float_type))
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str, *shape: int, scale: float | None = None) -> str:
        """Normal, scaled so that a layer keeps about unit variance."""
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        spread = scale if scale is not None else (1.0 / np.sqrt(max(fan, 1)) if len(shape) > 1 else 0.3)
        return self.constant(name, (self.random.standard_normal(shape) * spread).astype(np.float32))

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: str | Sequence[str], domain: str = "", **attributes: Any
    ) -> str:
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        if domain and domain not in self.domains:
            self.domains[domain] = 1
        self.nodes.append(
            helper.make_node(op_type, list(inputs), names, f"{op_type}_{len(self.nodes)}", domain=domain, **attributes)
        )
        return names[0]

    def subgraph(
        self,
        name: str,
        outputs: Sequence[str],
        inputs: Sequence[onnx.ValueInfoProto] = (),
        type: int = TensorProto.FLOAT,
    ) -> GraphProto:
        """The nodes so far, as the body of a control-flow operator of another builder."""
        return helper.make_graph(
            self.nodes,
            name,
            list(inputs),
            [helper.make_tensor_value_info(o, type, None) for o in outputs],
            list(self.constants.values()),
        )

    def model(self, **changes: Any) -> ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, list(self.constants.values()))
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        made = helper.make_model(graph, opset_imports=opsets, functions=self.functions, **changes)
        made.ir_version = IR_OF_OPSET.get(self.opset, 10)
        # For the shapes of the outputs, which the standard wants.
        shapes = {v.name: v.type for v in onnx.shape_inference.infer_shapes(made).graph.output}
        shapes |= {v.name: v.type for v in made.graph.input}
        for value in made.graph.output:
            value.type.CopyFrom(shapes[value.name])
        return made


def calibration_of(
    model: ModelProto, samples: int = 16, seed: int = 7, scale: Mapping[str, float] | None = None
) -> dict[str, Array]:
    """Model-ready arrays, samples first: each element is a whole input. Integers are 0 or 1."""
    random = np.random.default_rng(seed)
    constants = {t.name for t in model.graph.initializer}
    arrays: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        shape = [samples, *(d.dim_value or 1 for d in value.type.tensor_type.shape.dim)]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
            arrays[value.name] = random.integers(0, 2, shape).astype(dtype)
        else:
            # NumPy's own files know no bfloat16.
            dtype = np.float32 if value.type.tensor_type.elem_type == TensorProto.BFLOAT16 else dtype
            arrays[value.name] = (random.standard_normal(shape) * (scale or {}).get(value.name, 1.0)).astype(dtype)
    return arrays
