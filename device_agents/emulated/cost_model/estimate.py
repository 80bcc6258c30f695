"""Placement, schedule, latency and memory of a model on the units of a cost model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from onnx import ModelProto

from device_agents.emulated.spec import Accelerator, CostModel, DataType, Unit

from .fusion import Group, groups
from .graph import VIEWS, Effort, Graph, Operation, effort
from .roofline import Work, node_ns
from .tensors import Tensor

Optimization = Literal["disabled", "basic", "extended", "all"]


@dataclass(frozen=True)
class NodeCost:
    """One executed node."""

    name: str
    op_type: str
    provider: str
    data_type: DataType
    """What it is computed in."""
    macs: int
    moved_bytes: int
    time_ns: float
    folded: tuple[str, ...] = ()
    """Artifact nodes that run inside it."""


@dataclass(frozen=True)
class Estimate:
    """One inference, warm and without noise."""

    nodes: tuple[NodeCost, ...]
    """In the order of execution."""
    subgraphs: int
    """Runs of compiled accelerator subgraphs."""
    transfer_ns: float
    overhead_ns: float
    """Invocations of the session and of subgraphs."""
    fallback_reasons: Mapping[str, str]
    """Node that runs on the processor although an accelerator was asked for -> why."""
    folded_constants: tuple[str, ...]
    weight_bytes: int
    activation_bytes: int
    """Most that intermediate tensors take at one time."""

    @property
    def latency_ns(self) -> float:
        return sum(node.time_ns for node in self.nodes) + self.transfer_ns + self.overhead_ns

    @property
    def macs(self) -> int:
        return sum(node.macs for node in self.nodes)

    def by_provider(self) -> dict[str, tuple[str, ...]]:
        """Provider -> artifact nodes it took, folded ones included."""
        taken: dict[str, list[str]] = {}
        for node in self.nodes:
            taken.setdefault(node.provider, []).extend((node.name, *node.folded))
        return {provider: tuple(names) for provider, names in taken.items()}


def estimate(
    model: ModelProto,
    cost_model: CostModel,
    input_shapes: Mapping[str, tuple[int, ...]],
    *,
    providers: Iterable[str] = ("CPUExecutionProvider",),
    threads: int = 1,
    optimization: Optimization = "all",
) -> Estimate:
    """Cost of one inference at the given input shapes.

    ``threads``: of the processor, 0 for one per core. Raises :class:`.tensors.UnknownShapes`.
    """
    graph = Graph(model, input_shapes)
    accelerator = cost_model.accelerator
    if accelerator is not None and accelerator.provider not in set(providers):
        accelerator = None
    return _Estimator(graph, cost_model, accelerator, threads, optimization).run()


@dataclass(frozen=True)
class _Step:
    """One execution: a group, or a QuantizeLinear or DequantizeLinear on its own."""

    main: Operation
    data_type: DataType
    effort: Effort
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    folded: tuple[Operation, ...]
    on_accelerator: bool
    extra_bytes: int = 0


class _Estimator:
    def __init__(
        self,
        graph: Graph,
        cost_model: CostModel,
        accelerator: Accelerator | None,
        threads: int,
        optimization: Optimization,
    ) -> None:
        self._graph = graph
        self._model = cost_model
        self._processor = cost_model.processor
        self._accelerator = accelerator
        self._threads = threads
        fuse = optimization in ("extended", "all")
        self._groups = groups(graph, fold_norms=optimization != "disabled", fuse=fuse)
        self._reasons: dict[int, str] = {}

    def run(self) -> Estimate:
        placed = self._place()
        order = self._schedule(placed)
        while (small := self._too_small(order)) is not None:
            placed = [group for group in placed if group.main.index not in small]
            order = self._schedule(placed)
        return self._cost(order)

    def _place(self) -> list[Group]:
        """The groups that the accelerator takes."""
        accelerator = self._accelerator
        if accelerator is None:
            return []
        taken = []
        for group in self._groups:
            supported = accelerator.operators.get(group.main.op_type)
            if supported is None:
                self._reasons[group.main.index] = f"{group.main.op_type} is not supported by {accelerator.provider}"
            elif group.data_type not in supported:
                self._reasons[group.main.index] = (
                    f"{group.main.op_type} in {group.data_type} is not supported by {accelerator.provider} "
                    f"(it takes {', '.join(supported)})"
                )
            else:
                taken.append(group)
        return taken

    def _schedule(self, accelerated: list[Group]) -> list[_Step]:
        """Steps in an order that keeps to one unit as long as it can, as a graph partitioner does."""
        on_accelerator = {group.main.index for group in accelerated}
        steps = self._steps(on_accelerator)
        made_by = {tensor.name: i for i, step in enumerate(steps) for tensor in step.writes}
        waiting = [{made_by[t.name] for t in step.reads if t.name in made_by} - {i} for i, step in enumerate(steps)]
        users: dict[int, list[int]] = {}
        for i, needed in enumerate(waiting):
            for j in needed:
                users.setdefault(j, []).append(i)
        ready = {i for i, needed in enumerate(waiting) if not needed}
        order: list[_Step] = []
        current = False
        while ready:
            here = [i for i in ready if steps[i].on_accelerator == current]
            if not here:
                current = not current
                continue
            chosen = min(here, key=lambda i: steps[i].main.index)
            ready.remove(chosen)
            order.append(steps[chosen])
            for user in users.get(chosen, ()):
                waiting[user].discard(chosen)
                if not waiting[user]:
                    ready.add(user)
        return order

    def _steps(self, on_accelerator: set[int]) -> list[_Step]:
        steps: list[_Step] = []
        absorbed: set[int] = set()
        kept: dict[int, int] = {}
        for group in self._groups:
            accelerated = group.main.index in on_accelerator
            unit: Unit = self._accelerator if accelerated and self._accelerator else self._processor
            native = group.data_type == "float32" or group.data_type in unit.operators.get(group.main.op_type, ())
            integer = native and bool(group.dequantize or group.quantize)
            folded = [*group.chain]
            if integer:
                folded += [*group.dequantize, *group.quantize]
                absorbed.update(op.index for op in group.quantize)
                for op in group.dequantize:
                    kept[op.index] = kept.get(op.index, 0) + 1
            data_type: DataType = group.data_type if native else "float32"
            reads = group.reads(self._graph, native=integer)
            writes = group.writes(self._graph, native=integer)
            extra = 0
            if group.data_type == "float16" and not native:
                # ONNX Runtime inserts Cast nodes: 2 bytes read and 4 written in front, the reverse behind.
                extra = 6 * sum(t.elements for t in (*reads, *writes) if t.is_float)
            steps.append(
                _Step(
                    group.main,
                    data_type,
                    effort(self._graph, group.main),
                    reads,
                    writes,
                    tuple(folded),
                    accelerated,
                    extra,
                )
            )
        # A DequantizeLinear with a reader outside the integer groups is executed for that reader.
        for op in self._graph.operations:
            if op.op_type == "DequantizeLinear":
                readers = self._graph.consumers.get(op.outputs[0], [])
                if kept.get(op.index, 0) >= len(readers) > 0 and op.outputs[0] not in self._graph.outputs:
                    absorbed.add(op.index)
        alone = {op.index for step in steps for op in step.folded} - absorbed
        steps = [self._without(step, alone) for step in steps]
        for op in self._graph.operations:
            if op.op_type in ("QuantizeLinear", "DequantizeLinear") and op.index not in absorbed:
                steps.append(self._lonely(op))
        return steps

    @staticmethod
    def _without(step: _Step, indices: set[int]) -> _Step:
        """The step with folded nodes that are executed on their own as well left to themselves."""
        folded = tuple(op for op in step.folded if op.index not in indices or op.op_type not in _QDQ)
        return _Step(**{**step.__dict__, "folded": folded})

    def _lonely(self, op: Operation) -> _Step:
        reads = (self._graph.tensor(op.inputs[0]),)
        writes = (self._graph.tensor(op.outputs[0]),)
        return _Step(op, "float32", Effort(op.op_type, elements=writes[0].elements), reads, writes, (), False)

    def _too_small(self, order: list[_Step]) -> set[int] | None:
        """Main nodes of a compiled subgraph that has too few matrix operators, if there is one."""
        if self._accelerator is None:
            return None
        minimum = self._accelerator.minimum_matrix_nodes
        for subgraph in _runs(order):
            matrices = sum(step.effort.macs > 0 for step in subgraph)
            if matrices < minimum:
                indices = {step.main.index for step in subgraph}
                for index in indices:
                    self._reasons[index] = (
                        f"its subgraph has {matrices} matrix operators; {self._accelerator.provider} compiles "
                        f"subgraphs of at least {minimum}"
                    )
                return indices
        return None

    def _cost(self, order: list[_Step]) -> Estimate:
        nodes = []
        for step in order:
            unit: Unit = self._accelerator if step.on_accelerator and self._accelerator else self._processor
            moved = 0
            if step.main.op_type not in VIEWS:
                moved = sum(t.size_bytes for t in (*step.reads, *step.writes)) + step.extra_bytes
            time_ns = node_ns(unit, Work(step.effort, step.data_type, moved), self._threads)
            folded = tuple(op.name for op in step.folded)
            nodes.append(
                NodeCost(
                    step.main.name,
                    step.main.op_type,
                    unit.provider,
                    step.data_type,
                    step.effort.macs,
                    moved,
                    time_ns,
                    folded,
                )
            )
        subgraphs = len(_runs(order))
        overhead_us = self._processor.invocation_us
        if self._accelerator is not None:
            overhead_us += subgraphs * self._accelerator.invocation_us
        reasons = {step.main.name: self._reasons[step.main.index] for step in order
                   if not step.on_accelerator and step.main.index in self._reasons}  # fmt: skip
        return Estimate(
            nodes=tuple(nodes),
            subgraphs=subgraphs,
            transfer_ns=self._transfers(order),
            overhead_ns=overhead_us * 1e3,
            fallback_reasons=reasons,
            folded_constants=tuple(op.name for op in self._graph.folded_constants),
            weight_bytes=self._graph.weight_bytes(),
            activation_bytes=_peak_bytes(order, self._graph),
        )

    def _transfers(self, order: list[_Step]) -> float:
        """Every tensor that crosses between processor (which holds the model's inputs and outputs) and accelerator."""
        accelerator = self._accelerator
        if accelerator is None:
            return 0.0
        home = {tensor.name: step.on_accelerator for step in order for tensor in step.writes}
        crossing: dict[tuple[str, bool], Tensor] = {}
        for step in order:
            for tensor in step.reads:
                if tensor.constant or tensor.name in self._graph.constants:
                    continue
                if home.get(tensor.name, False) != step.on_accelerator:
                    crossing[tensor.name, step.on_accelerator] = tensor
        for name in self._graph.outputs:
            if home.get(name, False):
                crossing[name, False] = self._graph.tensor(name)
        moved = sum(tensor.size_bytes for tensor in crossing.values())
        return len(crossing) * accelerator.transfer_us * 1e3 + moved / accelerator.transfer_gb_s


_QDQ = ("QuantizeLinear", "DequantizeLinear")


def _runs(order: list[_Step]) -> list[list[_Step]]:
    """Consecutive accelerator steps: what is compiled and run as one subgraph."""
    found: list[list[_Step]] = []
    previous = False
    for step in order:
        if step.on_accelerator:
            if not previous:
                found.append([])
            found[-1].append(step)
        previous = step.on_accelerator
    return found


def _peak_bytes(order: list[_Step], graph: Graph) -> int:
    """Largest sum of live intermediate tensors over the schedule; views share their input's buffer."""
    last_use: dict[str, int] = {}
    for i, step in enumerate(order):
        for tensor in step.reads:
            last_use[tensor.name] = i
    live = {name: graph.tensor(name).size_bytes for name in graph.inputs}
    peak = sum(live.values())
    for i, step in enumerate(order):
        written = {tensor.name: tensor.size_bytes for tensor in step.writes}
        if step.main.op_type not in VIEWS:
            live.update(written)
            peak = max(peak, sum(live.values()))
        for tensor in step.reads:
            if last_use[tensor.name] == i and tensor.name not in graph.outputs:
                live.pop(tensor.name, None)
        live.update(written)
    return max(peak, sum(live.values()))
