"""The words that options and the Python API take alike; free of torch, so that a wrong one is told at once."""

from __future__ import annotations

GRADIENTS_OF = ("parameters", "outputs", "inputs")
VIA = ("tensor", "module")
VECTORS = ("ones", "randn")
CALLS = ("backward", "grad")
PARALLEL = ("ddp", "fsdp")
BACKENDS = ("gloo", "nccl")
OPTIMIZERS = ("sgd", "adamw")
COMM_HOOKS = (
    *("allreduce", "fp16", "bf16", "powersgd", "batched-powersgd"),
    *("quantize-per-tensor", "quantize-per-channel", "noop"),
)
FORMATS = ("table", "json", "csv", "markdown")
FORMATS_OF = {"graph": ("dot", "svg"), "trace": ("chrome",), "check": ("junit", "sarif", "github")}
"""Formats beside those that show any report, by the command whose reports they suit."""
COMM_WRAPPERS = ("fp16", "bf16")
