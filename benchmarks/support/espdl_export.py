"""Run by ESP-PPQ's own interpreter: quantizes networks, exports them, and writes down what its executor computes.

``python espdl_export.py OUT SAMPLES NETWORK:TARGET:TYPE …`` leaves, for each, ``NETWORK-TARGET-TYPE.espdl`` with the
values of every tensor for one sample inside, and ``….npz`` with those of ``SAMPLES`` others: ``NAME#INDEX``, float32,
in the layout of the exported graph. Every export is a child of its own, because the exporter's state is global.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))


def export(out: Path, samples: int, network: str, target: str, kind: str, setting_name: str = "") -> None:
    import onnx
    import torch
    from esp_ppq.api import QuantizationSettingFactory, espdl_quantize_onnx
    from esp_ppq.executor import TorchExecutor
    from esp_ppq.parser.espdl.espdl_typedef import ExporterPatternInfo
    from espdl_networks import NETWORKS, TINY

    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = np.random.default_rng(11)
    stem = "-".join(part for part in (network, target, kind, setting_name) if part)
    model = (NETWORKS | TINY)[network]()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    path = out / f"{stem}.onnx"
    onnx.save(model, path)  # ESP-PPQ writes its simplified model over this file

    def sample() -> torch.Tensor:
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32))

    calibration = [sample() for _ in range(16)]
    setting = QuantizationSettingFactory.espdl_setting(num_of_bits=16 if kind == "w16a16" else 8)
    setting.quantize_activation_setting.calib_algorithm = "minmax"
    # into one Attention node, which no published model has; the products and the Softmax are what is to be compared
    setting.espdl_attention_fusion = setting_name == "attention"
    if setting_name == "large":  # what AutoQuant's default space uses
        setting.fusion_setting.align_elementwise_to = "Align to Large"
    if setting_name == "trained":
        setting.equalization = setting.bias_correct = setting.tqt_optimization = True
        setting.bias_correct_setting.steps = 8
        setting.tqt_optimization_setting.steps = 20
        setting.tqt_optimization_setting.collecting_device = "cpu"
    if setting_name == "rebuilt":
        setting.weight_split = setting.blockwise_reconstruction = True
        setting.weight_split_setting.value_threshold = 0.1
        setting.weight_split_setting.interested_layers = [
            n.name for n in model.graph.node if n.op_type == "Conv" and n.name
        ][1:2]
        setting.blockwise_reconstruction_setting.steps = 20
        setting.blockwise_reconstruction_setting.collecting_device = "cpu"
    if setting_name == "mixed":
        from esp_ppq.api import get_target_platform

        names = [n.name for n in model.graph.node if n.op_type in ("Conv", "Sigmoid", "Mul")]
        for name in names[2:6]:
            setting.dispatching_table.append(name, get_target_platform(target, 16))

    layout: dict[str, list[int]] = {}
    reset = ExporterPatternInfo.reset

    def keep_layout(self: ExporterPatternInfo) -> None:
        layout.update(self.var_permute)
        reset(self)

    ExporterPatternInfo.reset = keep_layout
    names: list[str] = []

    def quantize(export_names: list[str] | None, **options: object) -> object:
        return espdl_quantize_onnx(
            str(path),
            str(out / f"{stem}.espdl"),
            calibration,
            calib_steps=len(calibration),
            input_shape=shape,
            inputs=[sample()],
            target=target,
            quant_type=kind,
            setting=setting,
            device="cpu",
            error_report=False,
            verbose=0,
            test_output_names=export_names,
            **options,
        )

    graph = quantize(None, skip_export=True)
    names = [name for op in graph.topological_sort() for name in (v.name for v in op.outputs)]
    graph = quantize(names, export_test_values=True)
    executor = TorchExecutor(graph, device="cpu")
    arrays: dict[str, np.ndarray] = {}
    for index in range(samples):
        value = sample()
        results = executor.forward(inputs=[value], output_names=names)
        for name, result in zip(["input", *names], [value, *results], strict=True):
            array = result.detach().numpy()
            perm = layout.get(name)
            if perm is not None and len(perm) == array.ndim:
                array = array.transpose(perm)
            arrays[f"{name}#{index}"] = np.ascontiguousarray(array)
    np.savez_compressed(out / f"{stem}.npz", **arrays)
    for suffix in (".onnx", ".info", ".json"):
        (out / f"{stem}{suffix}").unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    out, samples = Path(arguments[0]), int(arguments[1])
    out.mkdir(parents=True, exist_ok=True)
    import esp_ppq.api  # noqa: F401  (once, before the forks)

    failed = 0
    for what in arguments[2:]:
        child = os.fork()
        if child == 0:
            try:
                export(out, samples, *what.split(":"))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ok = os.waitstatus_to_exitcode(status) == 0
        failed += not ok
        print(f"{what}: {'exported' if ok else 'failed'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
