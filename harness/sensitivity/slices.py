"""The part of a model that has to run where values of the rest are known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, helper

from harness.quantize.graph import DEQUANTIZE, QUANTIZE, initializers_of
from harness.sensitivity.same_values import reads

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Slice:
    """Some nodes of a model, to be run from tensors whose values are known."""

    model: ModelProto
    """The whole, nodes in order."""
    nodes: tuple[int, ...]
    """Places in the model's list, ascending."""
    known: tuple[str, ...]
    """Tensors of the model that the nodes read and do not compute, constants aside."""
    outputs: tuple[str, ...]
    shared: tuple[str, ...] = ()
    """Dequantized constants that nodes outside the slice read too. ONNX Runtime fuses a constant into its reader where
    it has one only; as outputs of the slice they have the others that they have in the whole model."""

    def build(self, samples: Mapping[str, Array]) -> ModelProto:
        """A model of its own with ``known`` as inputs, of the types and shapes that ``samples`` have."""
        whole = self.model.graph
        made = ModelProto()
        made.ir_version = self.model.ir_version
        made.opset_import.extend(self.model.opset_import)
        graph = made.graph
        graph.name = "slice"
        nodes = [whole.node[index] for index in self.nodes]
        graph.node.extend(nodes)
        outputs = (*self.outputs, *self.shared)
        used = {name for node in nodes for name in reads(node)} | {*outputs}
        graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in used)
        for name in self.known:
            kind = helper.np_dtype_to_tensor_dtype(samples[name].dtype)
            graph.input.append(helper.make_tensor_value_info(name, kind, samples[name].shape))
        written = {name for node in nodes for name in node.output}
        graph.value_info.extend(value for value in whole.value_info if value.name in written)
        types = {value.name: value for value in (*whole.value_info, *whole.output)}
        for name in outputs:
            if name in types:
                graph.output.append(types[name])
            else:
                graph.output.append(helper.make_empty_tensor_value_info(name))
        return made


class Slicer:
    """Cuts slices out of one model."""

    def __init__(self, model: ModelProto) -> None:
        """``model`` has its nodes in order."""
        self._model = model
        self._nodes = list(model.graph.node)
        self._constants = initializers_of(model.graph)
        self._writers = {name: index for index, node in enumerate(self._nodes) for name in node.output if name}
        self.inputs = {value.name for value in model.graph.input} - self._constants.keys()
        """Of the model."""
        self._readers: dict[str, set[int]] = {}
        for index, node in enumerate(self._nodes):
            for name in reads(node):
                self._readers.setdefault(name, set()).add(index)

    def changed(self, is_same: Callable[[str], bool], is_known: Callable[[str], bool]) -> Slice:
        """What must run for the model's outputs that are not the same as in another model (``is_same``) from tensors
        whose values are at hand (``is_known``) and model inputs. No nodes if all outputs are the same."""
        different = [value.name for value in self._model.graph.output if not is_same(value.name)]
        return self.towards(different, is_known)

    def towards(self, wanted: Collection[str], is_known: Callable[[str], bool]) -> Slice:
        """The nodes that compute ``wanted`` from known tensors and model inputs."""
        chosen: set[int] = set()
        known: set[str] = set()
        waiting = [(name, True) for name in wanted]
        while waiting:
            name, must_run = waiting.pop()
            if not name or name in self._constants:
                continue
            if name in self.inputs or (not must_run and self._may_cut(name) and is_known(name)):
                known.add(name)
                continue
            index = self._writers[name]
            if index not in chosen:
                chosen.add(index)
                waiting += [(read, False) for read in reads(self._nodes[index])]
        shared = self._shared(chosen)
        written = {name for index in chosen for name in self._nodes[index].output}
        outputs = tuple(wanted)
        return Slice(
            self._model,
            tuple(sorted(chosen)),
            tuple(sorted(known - written)),
            outputs,
            tuple(sorted(shared.difference(outputs))),
        )

    def _shared(self, chosen: set[int]) -> set[str]:
        """Dequantized constants that others read too; what dequantizes such a constant for others is added."""
        shared: set[str] = set()
        for index in sorted(chosen):
            node = self._nodes[index]
            if node.op_type != DEQUANTIZE or node.input[0] not in self._constants:
                continue
            if not self._readers.get(node.output[0], set()) <= chosen:
                shared.add(node.output[0])
            for other in self._readers[node.input[0]] - chosen:
                if self._nodes[other].op_type == DEQUANTIZE:
                    chosen.add(other)
                    shared.add(self._nodes[other].output[0])
        return shared

    def _may_cut(self, name: str) -> bool:
        """Whether running from here on computes what running the whole does.

        Between QuantizeLinear and DequantizeLinear it does, and among float operators. Inside a unit of both that
        ONNX Runtime runs as one integer operator it would be computed in float instead.
        """
        node = self._nodes[self._writers[name]]
        if node.op_type == QUANTIZE:
            return True
        return node.op_type != DEQUANTIZE and not any(self._is_dequantized(read) for read in node.input)

    def _is_dequantized(self, name: str) -> bool:
        index = self._writers.get(name)
        return index is not None and self._nodes[index].op_type == DEQUANTIZE
