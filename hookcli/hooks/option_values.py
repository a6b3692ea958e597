"""The values that options and the Python API accept. Free of torch, so that a wrong one fails at once."""

from __future__ import annotations

from hookcli.registry.capability import capabilities

GRADIENTS_OF = ("parameters", "outputs", "inputs")
VIA = ("tensor", "module")
VECTORS = ("ones", "randn")
AUTOGRAD_CALLS = ("backward", "grad")
PARALLEL = ("ddp", "fsdp")
FILLS = ("ones", "zeros", "randn", "rand")
OPS = ("functions", "aten")
"""The operators that can have rows: PyTorch's functions as the model calls them, or ATen's operators."""
AMP = ("bfloat16", "float16")
"""The dtypes of torch.autocast."""
ATTENTION = ("math", "flash", "efficient", "cudnn")
"""The kernels of scaled_dot_product_attention, as torch.nn.attention.SDPBackend has them."""
BACKENDS = ("gloo", "nccl")
FURTHER_PROBES = {one.name: one.flag for one in capabilities() if one.flag}
"""Probes of capabilities that `run` and `check` add to what they measure, each by an option of its name."""
OPTIMIZERS = ("sgd", "adamw")
COMM_HOOKS = (
    *("allreduce", "fp16", "bf16", "powersgd", "batched-powersgd"),
    *("quantize-per-tensor", "quantize-per-channel", "noop"),
)
COMM_WRAPPERS = ("fp16", "bf16")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""The modes of torch.compile, all of its default backend."""
COMPILE = ("inductor", "aot_eager", "eager", "cudagraphs", *COMPILE_MODES)
"""Modes and backends that PyTorch comes with; others, as plugins register them, are given as --compile=NAME."""
UNFUSED = ("aot_eager", "eager", "cudagraphs")
"""Backends of these that run operators one by one."""
NUMBER_FORMATS = (
    *("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fn_row", "float8_e5m2", "float8_e5m2_row", "mxfp8"),
    *("int8", "nvfp4", "mxfp4", "int4"),
)
"""The formats to which `hookcli.tensors.number_formats` rounds, the finest first."""
