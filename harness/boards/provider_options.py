"""Options that execution providers know. ONNX Runtime passes over one that is misspelt, mostly in silence."""

from __future__ import annotations

from collections.abc import Mapping

from harness.suggest import closest

KNOWN_OPTIONS: Mapping[str, tuple[str, ...]] = {
    # As the library of onnxruntime-qnn 2.7.0 names them.
    "QNNExecutionProvider": (
        "backend_path", "backend_type", "device_id", "disable_file_mapped_weights", "dump_json_qnn_graph",
        "dump_qnn_ep_input_graph", "dump_qnn_ep_input_graph_dir", "dump_qnn_ir_dlc", "dump_qnn_ir_dlc_dir",
        "enable_block_quant_weight_optimization", "enable_framework_op_trace", "enable_htp_fp16_clamp_overflow",
        "enable_htp_fp16_precision", "enable_htp_graph_splitting", "enable_htp_monolithic_lstm",
        "enable_htp_prepare_and_load", "enable_htp_prepare_only", "enable_htp_shared_memory_allocator",
        "enable_htp_spill_fill_buffer", "enable_vtcm_backup_buffer_sharing", "extended_udma", "htp_arch",
        "htp_bf16_enable", "htp_graph_finalization_optimization_mode", "htp_graph_splitting_num_prepare_threads",
        "htp_performance_mode", "htp_reused_io_limit_mb", "htp_share_resource_optimization", "json_qnn_graph_dir",
        "offload_graph_io_quantization", "op_packages", "profiling_file_path", "profiling_level",
        "qnn_context_priority", "qnn_ir_backend_path", "qnn_saver_path", "rpc_control_latency",
        "skip_backend_op_validation", "skip_qnn_version_check", "soc_model", "vtcm_mb",
    ),
    # As the libraries of onnxruntime-openvino 1.24.1 and onnxruntime-ep-openvino 1.8.1 name them.
    "OpenVINOExecutionProvider": (
        "cache_dir", "context", "device_id", "device_type", "disable_dynamic_shapes", "enable_causallm",
        "enable_opencl_throttling", "enable_qdq_optimizer", "layout", "load_config", "model_priority",
        "num_of_threads", "num_streams", "precision", "reshape_input",
    ),
}  # fmt: skip
"""Of the providers whose options were looked up."""

_NEAR = 0.88


def misspelt(provider: str, option: str) -> str | None:
    """The option that was meant, if this one is nearly a known one. New releases bring others: those pass."""
    known = KNOWN_OPTIONS.get(provider, ())
    return None if option in known else closest(option, known, cutoff=_NEAR)
